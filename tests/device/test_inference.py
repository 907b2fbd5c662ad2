"""``inference``: the modes that a model sees, where it sees them, and how it is given its batch."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, assert_type

import pytest

from spdl_async import BuildError, PipelineBuilder

pytest.importorskip("torch")

import torch

from spdl_async.device import inference

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class Modes:
    """What a thread is told by torch."""

    inference: bool
    grad: bool
    autocast: torch.dtype | None

    @staticmethod
    def here() -> Modes:
        on = torch.is_autocast_enabled("cpu")
        return Modes(
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
            torch.get_autocast_dtype("cpu") if on else None,
        )


OUTSIDE = Modes(False, True, None)


class Probe(torch.nn.Module):
    """Tells the modes in which it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.seen: list[tuple[Modes, bool, bool, int]] = []

    def forward(self, batch: Any) -> Any:
        flags = (self.training, self.linear.training, threading.get_ident())
        self.seen.append((Modes.here(), *flags))
        return self.linear(batch)

    def encode(self, batch: Any) -> Any:
        return self.forward(batch)


def here(item: Any) -> Modes:
    return Modes.here()


def test_a_model_sees_inference_and_eval_mode_in_the_thread_that_runs_it() -> None:
    model = Probe()
    batches = PipelineBuilder().add_source([torch.ones(1, 2)] * 3)
    results = list(batches.pipe(inference(model)).build())
    assert len(results) == len(model.seen) == 3
    for modes, training, inner, thread in model.seen:
        assert modes == Modes(True, False, None)
        assert not training
        assert not inner
        assert thread != threading.get_ident()
    assert all(result.is_inference() and not result.requires_grad for result in results)
    assert Modes.here() == OUTSIDE


def test_no_grad_gives_results_for_another_model_to_learn_from() -> None:
    frozen, model = Probe(), Probe()
    features = inference(frozen, mode="no_grad")(torch.ones(1, 2))
    assert frozen.seen[0][0] == Modes(False, False, None)
    assert not features.requires_grad
    model(features).sum().backward()
    assert model.linear.weight.grad is not None
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        model(inference(frozen)(torch.ones(1, 2))).sum().backward()
    clone = inference(frozen)(torch.ones(1, 2)).clone()
    model(clone).sum().backward()


def test_results_can_be_read_and_stacked_outside() -> None:
    result = inference(torch.nn.Identity())(torch.ones(2))
    assert (result + 1).tolist() == [2, 2]
    assert torch.stack([result, result]).sum() == 4
    assert result.numpy().tolist() == [1, 1]


@pytest.mark.parametrize("fuse", [True, False])
def test_the_modes_do_not_leak_to_other_ops_in_the_same_thread(fuse: bool) -> None:
    threads: list[int] = []

    def model(item: int) -> Modes:
        threads.append(threading.get_ident())
        return Modes.here()

    def after(modes: Modes) -> tuple[Modes, Modes]:
        threads.append(threading.get_ident())
        return modes, Modes.here()

    builder = PipelineBuilder().add_source(range(4))
    op = inference(model, autocast=("cpu", torch.bfloat16))
    stages = builder.pipe(op, concurrency=2, fuse=fuse).pipe(after, concurrency=2, fuse=fuse)
    with ThreadPoolExecutor(1) as pool:
        results = list(stages.build(executor=pool))
    assert results == [(Modes(True, False, torch.bfloat16), OUTSIDE)] * 4
    assert len(set(threads)) == 1


def test_the_modes_end_where_the_model_raises() -> None:
    error = ValueError("no")

    def fails(item: Any) -> None:
        raise error

    op = inference(fails, autocast=("cpu", torch.float16))
    with pytest.raises(ValueError, match="no") as caught:
        op(1)
    assert caught.value is error
    assert Modes.here() == OUTSIDE


# Eval mode


def test_a_model_is_left_alone_until_the_first_call() -> None:
    model = Probe()
    op = inference(model)
    assert model.training
    op(torch.ones(1, 2))
    assert not model.training  # nor is it put back


def test_parts_in_training_mode_are_found_at_the_first_call() -> None:
    model = Probe()
    model.training = False
    inference(model)(torch.ones(1, 2))
    assert not model.linear.training


def test_a_model_that_was_trained_meanwhile_is_put_back_into_eval_mode() -> None:
    model = Probe()
    op = inference(model)
    for _ in range(2):
        model.train()
        op(torch.ones(1, 2))
    assert [(training, inner) for _, training, inner, _ in model.seen] == [(False, False)] * 2


@pytest.mark.parametrize("again", [False, True])
def test_no_thread_runs_a_model_that_another_is_putting_into_eval_mode(again: bool) -> None:
    changes: list[bool] = []  # made once: a class's own train() may merge weights, say
    flipped, go_on = threading.Event(), threading.Event()

    class Slow(torch.nn.Linear):
        def train(self, mode: bool = True) -> Slow:
            if not mode:  # the module that holds it has its own flag set already
                changes.append(mode)
                flipped.set()
                assert go_on.wait(10)
            super().train(mode)
            return self

    model = Probe()
    op = inference(model)
    if again:
        op(torch.ones(1, 2))
        model.train()
        model.seen.clear()
    model.linear = Slow(2, 2)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(op, torch.ones(1, 2))]
        assert flipped.wait(10)
        assert not model.training
        calls.append(pool.submit(op, torch.ones(1, 2)))
        # The second call cannot end before the first one lets it: without the wait it ends now.
        waits = threading.Event()
        calls[1].add_done_callback(lambda call: waits.set())
        assert not waits.wait(0.05)
        go_on.set()
        for call in calls:
            call.result()
    assert changes == [False]
    assert [(training, inner) for _, training, inner, _ in model.seen] == [(False, False)] * 2


def test_a_method_of_a_model_puts_the_model_into_eval_mode() -> None:
    for partial in (False, True):
        model = Probe()
        encode = functools.partial(model.encode) if partial else model.encode
        inference(encode)(torch.ones(1, 2))
        assert model.seen[0][0].inference
        assert not model.linear.training


def test_one_model_runs_in_several_threads_at_once() -> None:
    together = threading.Barrier(2, timeout=10)

    class Meets(Probe):
        def forward(self, batch: Any) -> Any:
            together.wait()
            return super().forward(batch)

    model = Meets()
    batches = [torch.full((1, 2), float(i)) for i in range(4)]
    pipeline = (
        PipelineBuilder()
        .add_source(batches)
        .pipe(inference(model, autocast=torch.bfloat16), concurrency=2)
        .build()
    )
    results = list(pipeline)
    assert len({thread for *_, thread in model.seen}) == 2
    assert {modes for modes, *_ in model.seen} == {Modes(True, False, torch.bfloat16)}
    for batch, result in zip(batches, results, strict=True):
        assert torch.allclose(result.float(), model.linear(batch), atol=0.1)


# Autocast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_that_of_the_device_of_the_weights(dtype: torch.dtype) -> None:
    model = Probe()
    assert inference(model, autocast=dtype)(torch.ones(1, 2)).dtype is dtype
    assert model.seen[0][0].autocast is dtype
    assert model.linear.weight.dtype is torch.float32


@dataclass
class Batch:
    name: str
    image: torch.Tensor


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(2),
        {"name": "x", "images": [torch.ones(2)]},
        ("x", torch.ones(2)),
        Batch("x", torch.ones(2)),
    ],
    ids=["tensor", "dict", "tuple", "dataclass"],
)
def test_without_weights_autocast_is_that_of_the_device_of_the_batch(batch: Any) -> None:
    expected = Modes(True, False, torch.bfloat16)
    assert inference(here, autocast=torch.bfloat16)(batch) == expected

    class Bare(torch.nn.Module):
        def forward(self, batch: Any) -> Modes:
            return Modes.here()

    assert inference(Bare(), autocast=torch.bfloat16)(batch) == expected


def test_the_device_of_a_tensor_decides_and_not_a_default() -> None:
    on_mps = inference(here, autocast=("mps", torch.float16))
    assert on_mps(1).autocast is None  # the one of the CPU

    class Elsewhere(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1, device="meta"))

        def forward(self, batch: Any) -> Modes:
            return Modes.here()

    with pytest.raises(RuntimeError, match="unsupported autocast device_type 'meta'"):
        inference(Elsewhere(), autocast=torch.bfloat16)(torch.ones(1))


def test_autocast_without_a_device_in_sight_is_an_error() -> None:
    with pytest.raises(TypeError, match=r'here.*autocast=\("cuda", torch\.bfloat16\)'):
        inference(here, autocast=torch.bfloat16)(["text"])


# How a model is called


def test_a_batch_is_the_only_argument_whatever_it_is() -> None:
    given = ((1, 2), {"a": 3}, [4])
    op = inference(lambda *args, **kwargs: (args, kwargs))
    for batch in given:
        assert op(batch) == ((batch,), {})


def test_a_batch_may_be_the_arguments() -> None:
    def model(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    assert inference(model, call="args")((1, 2)) == ((1, 2), {})
    assert inference(model, call="args")([1, 2]) == ((1, 2), {})
    assert inference(model, call="kwargs")({"a": 3}) == ((), {"a": 3})

    def keep_key(model: Any, batch: dict[str, Any]) -> Any:
        return batch["key"], model(batch["x"])

    keyed = inference(model, call=keep_key)
    assert keyed({"key": "k", "x": 1}) == ("k", ((1,), {}))


@pytest.mark.parametrize(
    ("call", "batch", "message"),
    [
        ("args", {"a": 1}, "a tuple or list .*, not dict; use call='kwargs'"),
        ("args", torch.ones(2), "a tuple or list .*, not Tensor; use call='single'"),
        ("kwargs", (1, 2), "a mapping .*, not tuple; use call='args'"),
    ],
)
def test_a_batch_that_cannot_be_the_arguments_is_an_error(
    call: Any, batch: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        inference(here, call=call)(batch)  # type: ignore[no-untyped-call]  # of an Any


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("resnet", "a torch.nn.Module or a function, not str"),
        (torch.nn.Linear, "not the class Linear; make an instance"),
        ({"weight": torch.ones(1)}, "not dict; load a state dict into a model first"),
        (None, "not NoneType"),
    ],
)
def test_what_is_no_model_is_an_error(model: Any, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        inference(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"call": "star"}, "call='star' is not one of 'single', 'args', 'kwargs'"),
        ({"call": None}, "call=None is not one of"),
        ({"mode": "eval"}, "mode='eval' is neither"),
        ({"autocast": True}, "autocast=True is not torch.bfloat16"),
        ({"autocast": torch.float32}, "autocast=torch.float32 is not"),
        ({"autocast": "cuda"}, "autocast='cuda' is not"),
        ({"autocast": (torch.float16, "cuda")}, "is not torch.bfloat16"),
        ({"autocast": ("cuda", None)}, "autocast=.'cuda', None. is not torch.bfloat16"),
        ({"call": ["args"]}, "call=.'args'. is not one of"),
        ({"autocast": ("cuda", torch.float16, 1)}, "is not torch.bfloat16"),
    ],
)
def test_wrong_options_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        inference(here, **options)


def test_what_would_run_outside_of_the_modes_is_an_error() -> None:
    async def coroutine(item: Any) -> Any:
        return item

    def generator(item: Any) -> Iterator[Any]:
        yield item

    models: list[tuple[Any, str]] = [(coroutine, "a coroutine"), (generator, "a generator")]
    for model, word in models:
        with pytest.raises(TypeError, match=f"{word}, whose body would run without inference mode"):
            inference(model)(1)


# Names, types, imports


def test_the_stage_is_named_after_the_model() -> None:
    names: list[tuple[Any, str]] = [
        (Probe(), "Probe"),
        (Probe().encode, "Probe.encode"),
        (functools.partial(Probe().encode), "Probe.encode"),
        (here, "here"),
        (lambda item: item, "lambda"),
    ]
    for model, name in names:
        op: Any = inference(model)
        text = str(PipelineBuilder().add_source([1]).pipe(op).build().describe())
        assert name in text
        assert op.__name__ == name


def test_types() -> None:
    def count(items: list[int]) -> int:
        return len(items)

    def both(first: int, second: str) -> str:
        return second * first

    assert_type(inference(count)([1]), int)
    assert_type(inference(both, call="args")((2, "a")), str)
    assert_type(inference(Probe())(torch.ones(1, 2)), Any)
    pipeline = PipelineBuilder().add_source([[1]]).pipe(inference(count)).build()
    assert list(pipeline) == [1]


def test_the_package_is_imported_without_torch() -> None:
    code = "import sys, spdl_async.device; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True)
