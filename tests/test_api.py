"""The public names: sorted, documented, shown under the path by which they are imported."""

from __future__ import annotations

import inspect
import pickle

import pytest

import spdl_async


def test_all_is_sorted_and_complete() -> None:
    names = spdl_async.__all__
    # Constants first, then classes, then functions, each in order: what ruff keeps it to.
    assert names == sorted(names, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    public = {
        name
        for name, value in vars(spdl_async).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "annotations"
    }
    assert public == set(names)


def test_public_names_show_the_public_path() -> None:
    for name in spdl_async.__all__:
        value = getattr(spdl_async, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__ == "spdl_async", name
            assert value.__doc__, name


def test_public_methods_have_docstrings() -> None:
    for name in spdl_async.__all__:
        value = getattr(spdl_async, name)
        if inspect.isclass(value):
            for attribute, member in vars(value).items():
                if not attribute.startswith("_") and inspect.isfunction(member):
                    assert member.__doc__, f"{name}.{attribute}"


def test_drop_survives_pickling_and_has_no_truth_value() -> None:
    assert pickle.loads(pickle.dumps(spdl_async.DROP)) is spdl_async.DROP
    with pytest.raises(TypeError, match="is DROP"):
        bool(spdl_async.DROP)


def test_the_exception_tree_is_drawn_in_the_module() -> None:
    drawn = spdl_async.errors.__doc__ or ""
    for name in spdl_async.__all__:
        value = getattr(spdl_async, name)
        if inspect.isclass(value) and issubclass(value, (Exception, Warning)):
            assert name in drawn
            if issubclass(value, Exception) and not issubclass(value, Warning):
                assert issubclass(value, spdl_async.SpdlAsyncError)
