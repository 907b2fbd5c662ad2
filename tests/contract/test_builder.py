"""The builder is an immutable value, and what it refuses it explains. Design §2, contract 11."""

from __future__ import annotations

import gc
import inspect
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from faces import FACES, Face, drive
from kinds import kind_id, same

from spdl_async import (
    BatchBy,
    BuildError,
    Pipeline,
    PipelineBuilder,
    SpdlAsyncError,
    UnusedBuilderWarning,
)

pytestmark = pytest.mark.timeout(30)


def numbers(n: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(n))


def double(n: int) -> int:
    return 2 * n


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_a_prefix_can_be_shared_and_is_never_changed(face: Face) -> None:
    prefix = numbers(6).pipe(double)
    before = repr(prefix)
    train, evaluate = prefix.aggregate(4), prefix.filter(lambda n: n > 4)
    assert drive(train, face).result() == [[0, 2, 4, 6], [8, 10]]
    assert drive(evaluate, face).result() == [6, 8, 10]
    assert drive(prefix, face).result() == [0, 2, 4, 6, 8, 10]
    assert drive(train, face).result() == [[0, 2, 4, 6], [8, 10]]  # built a second time
    assert repr(prefix) == before


def test_every_verb_returns_a_new_builder() -> None:
    start = PipelineBuilder()
    builder: Any = start.add_source(range(3))
    made: list[Any] = [start, builder]
    for verb in ("pipe", "filter", "expand", "aggregate", "disaggregate", "add_sink"):
        arguments = {"aggregate": (2,), "disaggregate": (), "add_sink": (3,)}.get(verb, (same,))
        made.append(getattr(builder, verb)(*arguments))
        with pytest.raises(AttributeError):
            made[-1].anything = 1
    assert len({id(one) for one in made}) == len(made)
    for one in made[1:]:
        one.build()


def unused(make: Callable[[], Any]) -> list[warnings.WarningMessage]:
    """Return the warnings of making a builder and dropping it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
        gc.collect()
    return [w for w in caught if issubclass(w.category, UnusedBuilderWarning)]


def here() -> int:
    """Return the caller's line."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


VERBS: dict[str, tuple[str, Callable[[PipelineBuilder[Any]], Any]]] = {
    "pipe": ("pipe(double)", lambda b: b.pipe(double)),
    "filter": ("filter(double)", lambda b: b.filter(double)),
    "expand": ("expand(double)", lambda b: b.expand(double)),  # type: ignore[arg-type]  # never run
    "aggregate": ("aggregate(3)", lambda b: b.aggregate(3)),
    "disaggregate": ("disaggregate()", lambda b: b.disaggregate()),
    "sink": ("add_sink(4)", lambda b: b.add_sink(4)),
    "lambda": ("pipe(lambda)", lambda b: b.pipe(lambda n: n)),
}


@pytest.mark.parametrize(("text", "verb"), VERBS.values(), ids=VERBS.keys())
def test_a_dropped_builder_warns_with_file_and_line(text: str, verb: Any) -> None:
    prefix: PipelineBuilder[Any] = numbers(3)
    found = unused(lambda: verb(prefix))
    assert len(found) == 1
    message = str(found[0].message)
    line = verb.__code__.co_firstlineno
    assert message.startswith(f"the result of .{text} at {__file__}:{line} was never used")
    assert f"write builder = builder.{text.partition('(')[0]}(" in message
    assert (found[0].filename, found[0].lineno) == (__file__, line)
    prefix.build()


def test_a_dropped_source_warns_and_an_empty_builder_does_not() -> None:
    line = here() + 1
    found = unused(lambda: PipelineBuilder().add_source(range(3)))
    assert len(found) == 1
    assert f"{__file__}:{line}" in str(found[0].message)
    assert unused(PipelineBuilder) == []


def test_the_statement_whose_result_is_forgotten_warns_alone() -> None:
    def forgetful() -> Pipeline[int]:
        builder = numbers(3)
        builder.pipe(double)
        return builder.build()

    assert [str(w.message).partition(" at ")[0] for w in unused(forgetful)] == [
        "the result of .pipe(double)"
    ]


def test_what_was_extended_built_applied_or_used_as_a_source_does_not_warn() -> None:
    def used() -> None:
        numbers(3).pipe(double).aggregate(2).add_sink(2).build()
        shared = numbers(3)
        shared.pipe(double).build()
        shared.apply(lambda b: b.pipe(double)).build()
        PipelineBuilder().add_source(numbers(3).pipe(double)).build()

    assert unused(used) == []


def test_a_fragment_that_returns_the_builder_it_got_is_fine() -> None:
    assert list(numbers(3).apply(lambda b: b).build()) == [0, 1, 2]


def test_what_is_one_path_or_text_is_no_source() -> None:
    sources: tuple[Any, ...] = ("photos", Path("photos"))
    for source in sources:
        with pytest.raises(BuildError, match=r"list_files\(folder, '\*\*/\*\.jpg'\)"):
            PipelineBuilder().add_source(source).build()


def test_a_class_in_place_of_its_object_says_so() -> None:
    class Scale:
        def __init__(self, *, by: int) -> None: ...

        def __call__(self, item: int) -> int:
            return item

    with pytest.raises(BuildError, match=r"the class Scale.* make one: Scale\(…\)"):
        numbers(3).pipe(cast("Any", Scale)).build()


def test_an_aggregator_in_pipe_says_where_it_belongs() -> None:
    with pytest.raises(BuildError, match=r"add an aggregator by \.aggregate\(…\)"):
        numbers(3).pipe(BatchBy(float, 2)).build()  # type: ignore[call-overload]  # the mistake


def test_a_call_that_python_refuses_does_not_warn_of_the_builder_too() -> None:
    """The error says what is wrong; that the builder before it has no use then is no news."""

    def wrong(use: Callable[[Any], Any], error: type[Exception]) -> None:
        with pytest.raises(error):
            use(numbers(3))

    uses: tuple[tuple[Callable[[Any], Any], type[Exception]], ...] = (
        (lambda b: b.pipe(double, num_workers=2), TypeError),
        (lambda b: b.shuffle(), TypeError),
        (lambda b: b.batch(3), AttributeError),
        (lambda b: b.run_sync(), AttributeError),
    )
    for use, error in uses:
        assert not unused(partial(wrong, use, error))


def test_what_only_a_pipeline_has_is_said_of_a_builder() -> None:
    builder: Any = numbers(3)
    with pytest.raises(AttributeError, match=r"write builder\.build\(\)\.run_sync"):
        builder.run_sync()
    with pytest.raises(AttributeError, match="'PipelineBuilder' object has no attribute 'batch'"):
        builder.batch()
    assert not hasattr(builder, "run")


def test_apply_through_a_reusable_function() -> None:
    def fragment(b: PipelineBuilder[int]) -> PipelineBuilder[list[int]]:
        return b.pipe(double).aggregate(2)

    assert list(numbers(3).apply(fragment).build()) == [[0, 2], [4]]
    twice = numbers(4).apply(fragment).disaggregate().apply(fragment)
    assert list(twice.build()) == [[0, 4], [8, 12]]
    forgets: Any = lambda b: None  # noqa: E731 -- a fragment that forgets its return
    with pytest.raises(BuildError, match=r"apply.*return"):
        numbers(3).apply(forgets)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_a_builder_or_pipeline_as_source_is_inlined(face: Face) -> None:
    inner = numbers(10).pipe(double, concurrency=2).add_sink(1)
    for source in (inner, inner.build()):
        outer = PipelineBuilder().add_source(source).pipe(double, concurrency=2).aggregate(4)
        outcome = drive(outer, face)
        assert outcome.result() == [[0, 4, 8, 12], [16, 20, 24, 28], [32, 36]]
        names = [stage.name for stage in outcome.statistics.stages]
        assert names == ["source", "double", "double_2", "aggregate(4)"]
    pipeline = outer.build()
    assert len(pipeline) == 3
    assert drive(pipeline, face).result() == drive(pipeline, face).result()


def test_an_inlined_pipeline_takes_no_options_and_needs_a_source() -> None:
    inner = numbers(3).build()
    with pytest.raises(BuildError, match="inner"):
        PipelineBuilder().add_source(inner, name="x")
    with pytest.raises(BuildError, match="no source"):
        PipelineBuilder().add_source(PipelineBuilder())


def test_names_default_to_the_op_s_and_are_made_unique() -> None:
    class Op:
        def __call__(self, n: int) -> int:
            return n

        def method(self, n: int) -> int:
            return n

    built = (
        numbers(3)
        .pipe(double)
        .pipe(double)
        .pipe(lambda n: n)
        .pipe(Op())
        .pipe(Op().method)
        .pipe({0: 0})
        .filter(bool)
        .pipe(double, name="last")
        .aggregate(2)
        .aggregate(2)
    )
    with built.build().run_sync(inline=True) as run:
        names = [stage.name for stage in run.statistics().stages]
    assert names[:3] == ["source", "double", "double_2"]
    assert names[3:] == [
        "lambda", "Op", "method", "dict", "bool", "last", "aggregate(2)", "aggregate(2)_2",
    ]  # fmt: skip


def test_an_explicit_name_that_a_default_has_taken_is_no_trap() -> None:
    """Only explicit duplicates are errors; a default gives way, whichever comes first."""
    for built in (
        numbers(3).pipe(double).pipe(same, name="double"),
        numbers(3).pipe(same, name="double").pipe(double),
    ):
        with built.build().run_sync(inline=True) as run:
            names = [stage.name for stage in run.statistics().stages]
        assert len(set(names)) == 3
        assert "double" in names


def test_an_explicit_duplicate_name_is_an_error() -> None:
    with pytest.raises(BuildError, match=r"'twice'.*unique"):
        numbers(3).pipe(same, name="twice").pipe(double, name="twice").build()
    with pytest.raises(BuildError, match=r"'src'"):
        PipelineBuilder().add_source([1], name="src").pipe(same, name="src").build()


def sources(b: Any) -> Any:
    return b.add_source(range(3)).add_source(range(3))


STRUCTURE: dict[str, tuple[str, Callable[[], Any]]] = {
    "second source": ("add_source.*has a source", lambda: sources(PipelineBuilder())),
    "no source": ("no source.*add_source", lambda: PipelineBuilder().build()),
    "no source but stages": (
        "no source.*add_source",
        lambda: PipelineBuilder().pipe(same).build(),  # type: ignore[arg-type]  # the error
    ),
    "second sink": ("add_sink.*sink", lambda: numbers(3).add_sink().add_sink()),
    "stage after the sink": (r"pipe\(double\).*sink", lambda: numbers(3).add_sink().pipe(double)),
    "aggregate after it": (r"aggregate\(2\).*sink", lambda: numbers(3).add_sink().aggregate(2)),
}


@pytest.mark.parametrize(("text", "make"), STRUCTURE.values(), ids=STRUCTURE.keys())
def test_a_chain_of_the_wrong_shape(text: str, make: Callable[[], Any]) -> None:
    with pytest.raises(BuildError, match=text):
        make()


OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("pipe", {"concurrency": 0}, "concurrency"),
    ("pipe", {"concurrency": -2}, "concurrency"),
    ("pipe", {"concurrency": True}, "concurrency"),
    ("pipe", {"concurrency": 2.0}, "concurrency"),
    ("filter", {"concurrency": "4"}, "concurrency"),
    ("expand", {"concurrency": None}, "concurrency"),
    ("pipe", {"output_order": "sorted"}, "output_order.*input.*completion"),
    ("expand", {"output_order": None}, "output_order"),
    ("pipe", {"name": ""}, "name"),
    ("pipe", {"name": 7}, "name"),
    ("pipe", {"fuse": "no"}, "fuse"),
    ("filter", {"executor": 4}, "Executor"),
]


@pytest.mark.parametrize(("verb", "options", "text"), OPTIONS, ids=str)
def test_a_bad_option_names_the_stage_and_what_is_right(
    verb: str, options: dict[str, Any], text: str
) -> None:
    """The stage is named by its op, so that it is found in a chain of twenty."""
    with pytest.raises(BuildError) as caught:
        getattr(numbers(3).pipe(same), verb)(double, **options).build()
    assert re.search(text, str(caught.value))
    assert verb in str(caught.value)
    assert "double" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, SpdlAsyncError)


async def fetch(session: str) -> int:
    return len(session)


def lines(path: str) -> Iterator[str]:
    yield path


@pytest.mark.parametrize("verb", ["pipe", "expand", "filter"])
def test_an_op_that_was_called_by_mistake(verb: str) -> None:
    with pytest.raises(
        BuildError, match=r"a coroutine object, what calling fetch.* function itself"
    ):
        getattr(numbers(3), verb)(fetch("s")).build()
    with pytest.raises(
        BuildError, match=r"a generator object, what calling lines.* function itself"
    ):
        getattr(numbers(3), verb)(lines("s")).build()
    gc.collect()  # a coroutine that was never awaited would warn, which is an error here


@pytest.mark.parametrize("size", [0, -1, None, 2.0, "4", True])
def test_a_bad_sink_size(size: Any) -> None:
    with pytest.raises(BuildError, match=r"add_sink.*buffer_size"):
        numbers(3).add_sink(size)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_threads": 0}, "num_threads"),
        ({"num_threads": 1.5}, "num_threads"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"seed": True}, "seed"),
        ({"on_error": "ignore"}, "on_error"),
        ({"name": 7}, "name"),
    ],
    ids=str,
)
def test_a_bad_option_of_build(options: dict[str, Any], text: str) -> None:
    with pytest.raises(BuildError, match=rf"build.*{text}"):
        numbers(3).build(**options)


def test_build_is_pure() -> None:
    def source() -> list[int]:
        raise AssertionError("the source was opened")

    before = threading.active_count()
    pipeline = PipelineBuilder().add_source(source).pipe(double, concurrency=8).build()
    assert threading.active_count() == before
    assert bool(pipeline) is True
    del pipeline


@pytest.mark.parametrize(
    "options",
    [
        {"loop": "main"},
        {"epoch": -1},
        {"epoch": True},
        {"shutdown_timeout": -1},
        {"shutdown_timeout": float("inf")},
        {"shutdown_timeout": float("nan")},
        {"shutdown_timeout": "30"},
        {"shutdown_timeout": True},
    ],
    ids=str,
)
def test_a_bad_option_of_run(options: dict[str, Any]) -> None:
    pipeline = numbers(3).build()
    with pytest.raises(BuildError, match=rf"run.*{next(iter(options))}"):
        pipeline.run(**options)
    if "loop" not in options:
        with pytest.raises(BuildError, match=rf"run.*{next(iter(options))}"):
            pipeline.run_sync(**options)
