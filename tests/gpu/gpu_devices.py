"""The devices on which these tests run: the fake one everywhere, and the GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks._rigs import CudaRig, FakeRig, Rig

# torch warns of drivers and devices, and of layouts that are in beta: that is not ours to fail for.
ON_GPU = (
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
)

each_device = pytest.mark.parametrize(
    "kind", [pytest.param("fake"), pytest.param("cuda", marks=ON_GPU)]
)


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test on the GPU alone."""
    for mark in ON_GPU:
        test = mark(test)
    return test


def open_rig(kind: str) -> Rig:
    """Return the device of a kind."""
    return CudaRig() if kind == "cuda" else FakeRig()
