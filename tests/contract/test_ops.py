"""What counts as an op and how it is called: kinds, arity, ``on``, ``DROP``, None. Contract 1, 11, 21."""

from __future__ import annotations

import asyncio
import collections
import functools
import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import Any

import pytest
from faces import ENGINE_FACES, FACES, Face, drive, notes_of
from kinds import kind_id

from spdl_async import DROP, BuildError, Drop, PipelineBuilder

pytestmark = pytest.mark.timeout(30)


def numbers(n: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(n))


def add(a: int, b: int) -> int:
    return a + b


async def add_async(a: int, b: int) -> int:
    return a + b


def repeat(times: int, n: int) -> Generator[int, None, None]:
    for _ in range(times):
        yield n


async def repeat_async(times: int, n: int) -> AsyncGenerator[int, None]:
    for _ in range(times):
        yield n


class Ops:
    """Bound methods of each kind, a static and a class method."""

    def plain(self, n: int) -> int:
        return n + 1

    async def on_loop(self, n: int) -> int:
        return n + 1

    def many(self, n: int) -> Generator[int, None, None]:
        yield n
        yield n

    async def many_async(self, n: int) -> AsyncGenerator[int, None]:
        yield n
        yield n

    @staticmethod
    def static(n: int) -> int:
        return n + 1

    @classmethod
    def of_class(cls, n: int) -> int:
        return n + 1


class Plain:
    def __call__(self, n: int) -> int:
        return n + 1


class OnLoop:
    async def __call__(self, n: int) -> int:
        return n + 1


class Many:
    def __call__(self, n: int) -> Generator[int, None, None]:
        yield n
        yield n


class ManyAsync:
    async def __call__(self, n: int) -> AsyncGenerator[int, None]:
        yield n
        yield n


class Wrapped:
    """A class as an op: called, it makes an instance, although instances have an async call."""

    def __init__(self, n: int) -> None:
        self.n = n

    async def __call__(self, n: int) -> int:
        raise AssertionError("the instance was called")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and self.n + 1 == other

    __hash__ = None  # type: ignore[assignment]  # as Python sets it beside __eq__


def decorated(op: Any) -> Any:
    @functools.wraps(op)
    def wrapper(n: int) -> Any:
        return op(n)

    return wrapper


OPS: dict[str, Any] = {
    "lambda": lambda n: n + 1,
    "partial": functools.partial(add, 1),
    "partial-of-partial": functools.partial(functools.partial(add), b=1),
    "partial-async": functools.partial(add_async, 1),
    "partial-of-partial-async": functools.partial(functools.partial(add_async), 1),
    "partial-of-async-object": functools.partial(OnLoop()),
    "bound": Ops().plain,
    "bound-async": Ops().on_loop,
    "partial-of-bound-async": functools.partial(Ops().on_loop),
    "static": Ops.static,
    "class-method": Ops.of_class,
    "object": Plain(),
    "async-object": OnLoop(),
    "builtin": (1).__add__,
    "class": Wrapped,
    "dict": {n: n + 1 for n in range(20)},
    "list": list(range(1, 21)),
    "default-dict": collections.defaultdict(int, {n: n + 1 for n in range(20)}),
    "decorated-async": decorated(Ops().on_loop),
    "future": lambda n: _future(n + 1),
    "two-defaults": lambda n, k=1: n + k,
    "star": lambda *args: args[0] + 1,
}
MANY: dict[str, Any] = {
    "partial": functools.partial(repeat, 2),
    "partial-async": functools.partial(repeat_async, 2),
    "bound": Ops().many,
    "bound-async": Ops().many_async,
    "object": Many(),
    "async-object": ManyAsync(),
    "partial-of-bound": functools.partial(Ops().many),
    "partial-of-async-object": functools.partial(ManyAsync()),
}


class _future:  # noqa: N801 -- reads as a function where it is used
    """An awaitable that is no coroutine."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, int]:
        yield from asyncio.sleep(0).__await__()
        return self.value


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
def test_contract_1_one_to_one_ops(op: Any, concurrency: int, face: Face) -> None:
    assert drive(numbers(20).pipe(op, concurrency=concurrency), face).result() == list(range(1, 21))


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("op", MANY.values(), ids=MANY.keys())
def test_contract_1_generator_functions_behind_something(op: Any, face: Face) -> None:
    for concurrency in (1, 3):
        outputs = drive(numbers(10).pipe(op, concurrency=concurrency), face).result()
        assert outputs == [n for n in range(10) for _ in range(2)]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_1_what_else_is_returned_is_data(face: Face) -> None:
    """Iterators, generator objects, lists and async generators are data for ``pipe``."""
    made: list[Any] = []

    def op(n: int) -> Any:
        made.append([iter([n]), repeat(2, n), [n], repeat_async(1, n), {n}][n])
        return made[-1]

    outputs = drive(numbers(5).pipe(op), face).result()
    assert all(a is b for a, b in zip(outputs, made, strict=True))


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_1_the_rest_of_a_fused_group_runs_after_an_awaited_result(face: Face) -> None:
    seen: list[tuple[str, int]] = []
    lock = threading.Lock()

    def step(name: str) -> Any:
        def op(n: int) -> int:
            with lock:
                seen.append((name, n))
            return n + 1

        return op

    async def later(n: int) -> int | Drop:
        await asyncio.sleep(0)
        return DROP if n % 5 == 2 else n + 1

    built = (
        numbers(50)
        .pipe(step("a"), concurrency=4, name="a")
        .pipe(lambda n: later(n) if n % 2 else n + 1, concurrency=4, name="b")
        .pipe(step("c"), concurrency=4, name="c")
        .pipe(lambda n: later(n), concurrency=4, name="d")
        .pipe(step("e"), concurrency=4, name="e")
    )
    expected = []
    for n in range(50):
        m = n + 1
        if m % 2 and m % 5 == 2:
            continue
        m += 2
        if m % 5 != 2:
            expected.append(m + 2)
    outcome = drive(built, face)
    assert outcome.result() == expected
    counts = collections.Counter(name for name, _ in seen)
    assert counts["a"] == 50
    assert (
        counts["c"]
        == outcome.statistics.stage("c").items_in
        == outcome.statistics.stage("b").items_out
    )
    assert counts["e"] == len(expected)
    assert outcome.statistics.stage("b").dropped == 50 - counts["c"]


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
def test_fused_ops_share_a_thread_and_are_metered_each(face: Face) -> None:
    threads: dict[int, set[int]] = collections.defaultdict(set)

    def op(n: int) -> int:
        threads[n].add(threading.get_ident())
        return n

    built = numbers(40).pipe(op, concurrency=3, name="a").pipe(op, concurrency=3, name="b")
    outcome = drive(built, face)
    assert outcome.result() == list(range(40))
    assert all(len(used) == 1 for used in threads.values())
    assert [outcome.statistics.stage(name).items_in for name in "ab"] == [40, 40]


WRONG: dict[str, Any] = {
    "none": lambda: 1,
    "two": add,
    "keyword-only": lambda *, n: n,
    "async": add_async,
    "generator": repeat,
    "async-generator": repeat_async,
    "partial-full": functools.partial(add, 1, 2),
    "unbound": Ops.plain,
}


@pytest.mark.parametrize("verb", ["pipe", "filter", "expand"])
@pytest.mark.parametrize("op", WRONG.values(), ids=WRONG.keys())
def test_contract_11_wrong_arity_is_an_error_at_build(op: Any, verb: str) -> None:
    builder: Any = getattr(numbers(3), verb)(op, name="my stage")
    with pytest.raises(BuildError, match=r"my stage.*(argument|signature)"):
        builder.build()


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_contract_11_wrong_arity_of_a_builtin_is_an_error_at_the_first_item(
    policy: Any, face: Face
) -> None:
    """``inspect.signature`` knows nothing of some builtins; the pass is still no silent nothing."""
    for op in (max, getattr):
        outcome = drive(numbers(3).pipe(op, on_error=policy, name="odd"), face)  # type: ignore[arg-type]
        assert outcome.outputs == []
        assert outcome.error is not None
        assert "odd" in str(outcome.error) + notes_of(outcome.error)


@pytest.mark.parametrize(
    "op", [None, 7, "decode", b"x", object(), {1, 2}], ids=lambda op: type(op).__name__
)
def test_contract_11_what_is_no_op_is_an_error_that_names_the_stage(op: Any) -> None:
    with pytest.raises(BuildError, match="my stage"):
        numbers(3).pipe(op, name="my stage").build()


def test_contract_11_a_generator_function_is_no_predicate() -> None:
    def predicate(n: int) -> Iterator[bool]:
        yield True

    with pytest.raises(BuildError, match="predicate"):
        numbers(3).filter(predicate).build()
