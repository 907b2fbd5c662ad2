"""Trees of chains in plain loops: what merged and routed programs must deliver.

The stages of a chain are those loops that ``spdl_async.testing.reference_run`` is made of.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, cast

from chaos_kinds import Spending
from fuzz_ops import Op, digest

from spdl_async import DROP, TooManyFailures
from spdl_async.testing import Expected, Step
from spdl_async.testing._reference import NOTHING, Items, Policy, _Ended, _Loops, _Stage

Turns = Literal["turns", "first", "only", "weights", "zip", "mix"]


@dataclass
class Work:
    """A stage: the verb, what the pipeline calls, and what plain loops call."""

    verb: str
    argument: Any
    reference: Any
    options: dict[str, Any]
    text: str
    spending: Spending | None = None


@dataclass
class Route:
    """A router, and the stages of its branches."""

    op: Op
    router: Any
    branches: list[list[Work | Route]]
    options: dict[str, Any]
    text: str

    @property
    def batched(self) -> bool:
        """Whether items are lists."""
        return bool(self.options.get("batched"))


@dataclass
class Source:
    """One source: how it is made, and its policy."""

    kind: str
    op: Op
    values: range
    on_error: Any


@dataclass
class Merged:
    """Several chains, and whose turn it is."""

    turns: Turns
    branches: list[Chained]
    weights: list[int] | None = None


@dataclass
class Chained:
    """A chain: where items come from, and what is done with them."""

    source: Source | Merged
    stages: list[Work | Route] = field(default_factory=list)


@dataclass
class Place:
    """Where a branch is: the number of the routed item that it works at."""

    at: float = -1


def answer(op: Op, count: int, value: Any) -> Any:
    """Return what a router says about an item."""
    op.check(value)
    if op.drops and digest("drops", op.key, value) % op.drops == 0:
        return DROP
    return digest("route", op.key, value) % count


def answers(op: Op, count: int, values: list[Any]) -> Any:
    """Return what a router says about the elements of a list."""
    op.check(values)
    return [digest("route", op.key, value) % count for value in values]


@dataclass
class Expectation(Expected):
    """What a program delivers, and how many failures its stages have spent together.

    Attributes:
        also: errors that may be told in place of ``error``: those of other parts of the same list.
    """

    spent: int = 0
    also: list[BaseException] = field(default_factory=list)


def evaluate(tree: Chained, sources: dict[str, Any], on_error: Policy, epoch: int) -> Expectation:
    """Run a tree in plain loops, in a thread that runs no loop."""
    expected = Expectation()
    with asyncio.Runner() as runner:
        loops = _Tree(runner, expected, on_error, epoch)
        loops.makers, loops.default = sources, on_error
        results = loops.chain(tree)
        try:
            for value in results:
                expected.outputs.append(value)
        except _Ended as ended:
            expected.error = ended.error
            expected.also = loops.ties.get(id(ended), [])
        for part in reversed(loops.parts):  # what a failure has left open above it
            part.close()
    if isinstance(on_error, Spending):
        expected.spent = on_error.failures
    return expected


class _Tree(_Loops):
    """The loops of chains, and those of what chains are joined by."""

    makers: dict[str, Any]
    default: Policy

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.parts: list[Items] = []
        self.ties: dict[int, list[BaseException]] = {}

    def kept(self, items: Iterator[Any]) -> Items:
        """Remember what is to be closed."""
        self.parts.append(cast("Items", items))
        return self.parts[-1]

    def chain(self, tree: Chained) -> Items:
        """Return the results of a chain."""
        source = tree.source
        if isinstance(source, Merged):
            items = self.kept(self.merged(source))
        else:
            made = self.makers[source.kind](source.op, source.values)
            stage = _Stage("source", source.on_error or self.default)
            items = self.kept(self.read(made, stage))
        return self.along(tree.stages, items, Place())

    def along(self, stages: list[Work | Route], items: Items, place: Place) -> Items:
        """Return what stages make of items; ``place`` follows the item that they are at."""
        for number, stage in enumerate(stages):
            if isinstance(stage, Route):
                items = self.kept(self.routed(stage, items, place))
                continue
            options = {name: value for name, value in stage.options.items() if name != "within"}
            spending = stage.spending
            if spending is not None:
                options["on_error"] = spending
                items = self.kept(self.counted(spending, items))
            step = Step(verb=cast("Any", stage.verb), argument=stage.reference, options=options)
            items = self.kept(self.step(step, number, items))
            if spending is not None:
                items = self.kept(self.looked_at(spending, items))
        return items

    def counted(self, spending: Spending, above: Items) -> Items:
        """Count what comes to a stage; a share is looked at behind every call from the hundredth on."""
        for item in above:
            spending.calls += 1
            yield item
            if isinstance(spending.limit, Fraction) and spending.calls >= 100:
                self.look(spending)

    def looked_at(self, spending: Spending, items: Items) -> Items:
        """Look at a stage's budget once more at its end."""
        yield from items
        self.look(spending)

    def look(self, spending: Spending) -> None:
        try:
            spending.look()
        except TooManyFailures as error:
            raise _Ended(error) from None

    def merged(self, merged: Merged) -> Items:
        """Yield the items of several chains in turns."""
        weights = merged.weights or [1] * len(merged.branches)
        read = [b for b, weight in zip(merged.branches, weights, strict=True) if weight]
        branches = [self.chain(branch) for branch in read]
        if merged.turns == "zip":
            yield from zip(*branches, strict=False)
            return
        if merged.turns == "mix":
            yield from itertools.chain(*branches)
            return
        while branches:
            for branch in list(branches):
                value = next(branch, NOTHING)
                if value is not NOTHING:
                    yield value
                elif merged.turns == "first":
                    return
                else:
                    branches.remove(branch)

    def routed(self, route: Route, above: Items, place: Place) -> Items:
        """Send all items through their branches, then tell what came of each in order."""
        policy = route.options.get("on_error") or self.default
        stage = _Stage("router", policy, route.options.get("retry"))
        ask = functools.partial(self.asked, route)
        given: list[tuple[Any, Any]] = []
        places: list[float] = []
        failure = None
        try:
            for pair in self.maps(ask, stage, above):
                given.append(pair)
                places.append(place.at)
        except _Ended as ended:
            failure = ended
        end = place.at  # where the router failed, or behind everything
        found: list[tuple[float, int, Any]] = []
        failures: list[tuple[float, int, _Ended]] = []
        for branch in range(len(route.branches)):
            entries = list(self.entries(route, branch, given))
            at, ended_by = self.through(route.branches[branch], entries, failure, branch, found)
            if ended_by is not None:
                failures.append((at, branch, ended_by))
        found.sort(key=lambda one: one[0])
        cut, culprit, error = min(
            failures, key=lambda one: one[:2], default=(math.inf, -1, failure)
        )
        if route.batched:
            found = list(self.together(given, found, cut))
            # Which part of a list fails first depends on the schedule.
            others = [one[2].error for one in failures if one[0] == cut and one[2] is not error]
            self.ties[id(error)] = others
        for at, branch, value in found:
            if at < cut or (at == cut and branch == culprit) or cut == math.inf:
                place.at = places[int(at)] if at < math.inf else end
                yield value
        place.at = places[int(cut)] if cut < math.inf else end
        if error is not None:
            raise error

    def asked(self, route: Route, value: Any) -> Any:
        """Return an item and where it goes."""
        if route.batched:
            return answers(route.op, len(route.branches), value), value
        number = answer(route.op, len(route.branches), value)
        return DROP if number is DROP else (number, value)

    def entries(
        self, route: Route, branch: int, given: list[tuple[Any, Any]]
    ) -> Iterator[tuple[int, Any]]:
        """Yield what a branch is given, with the number of the routed item."""
        for at, (number, value) in enumerate(given):
            if not route.batched:
                if number == branch:
                    yield at, value
                continue
            part = [one for one, to in zip(value, number, strict=True) if to == branch]
            if part:
                yield at, part

    def through(
        self,
        stages: list[Work | Route],
        entries: list[tuple[int, Any]],
        failure: _Ended | None,
        branch: int,
        found: list[tuple[float, int, Any]],
    ) -> tuple[float, _Ended | None]:
        """Run a branch to its end; return where and by what it was ended."""
        place = Place()

        def feed() -> Items:
            for at, value in entries:
                place.at = at
                yield value
            place.at = math.inf
            if failure is not None:
                raise failure

        try:
            for value in self.along(stages, feed(), place):
                found.append((place.at, branch, value))
        except _Ended as ended:
            return place.at, ended
        return place.at, None

    def together(
        self, given: list[tuple[Any, Any]], found: list[tuple[float, int, Any]], cut: float
    ) -> Iterator[tuple[float, int, Any]]:
        """Yield lists with each element in its place."""
        parts = {(at, branch): value for at, branch, value in found}
        for at, (numbers, _) in enumerate(given):
            if at >= cut:
                return
            left = {to: iter(parts[at, to]) for to in set(numbers) if (at, to) in parts}
            if left:
                yield at, -1, [next(left[to]) for to in numbers if to in left]
