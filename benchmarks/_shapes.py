"""The row about merging and routing: what they cost an item, beside a plain stage."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks._growth import Sizes
from benchmarks._measure import Contestant, Race, Target
from benchmarks._ours import sync_rate
from benchmarks._peers import BATCH, noop
from spdl_async import Merge, PipelineBuilder

PLAIN = "a plain stage"
TWO = "two plain stages, not fused"

Builder = PipelineBuilder[Any]


def source(items: int) -> Builder:
    """Begin a chain of numbers."""
    return PipelineBuilder().add_source(range(items))


def stage(builder: Builder) -> Builder:
    """Add a no-op thread stage of concurrency 4."""
    return builder.pipe(noop, concurrency=4, fuse=False)


def unchanged(builder: Builder) -> Builder:
    """Return a branch that does nothing."""
    return builder


def odd(item: int) -> int:
    """Return the branch of an item."""
    return item & 1


def odds(batch: list[int]) -> list[int]:
    """Return the branches of a list's elements."""
    return [item & 1 for item in batch]


def plain(items: int) -> Builder:
    """Return the chain with one plain stage."""
    return stage(source(items)).aggregate(BATCH)


def two_plain(items: int) -> Builder:
    """Return the chain with two."""
    return stage(stage(source(items))).aggregate(BATCH)


def merged(items: int, weights: tuple[float, float] | None = None) -> Builder:
    """Return a chain whose items come from two sources, half from each, and go through no stage."""
    halves = Merge(source(items // 2), source(items - items // 2), weights=weights)
    return PipelineBuilder().add_source(halves).aggregate(BATCH)


def routed(items: int, branch: Any = unchanged, **options: Any) -> Builder:
    """Return a chain whose items go through one of two branches."""
    made: Builder = source(items).route(odd, branch, branch, concurrency=4, **options)
    return made.aggregate(BATCH)


def routed_batches(items: int) -> Builder:
    """Return the chain whose lists of 32 are taken apart and put together again."""
    lists = source(items).aggregate(BATCH)
    made: Builder = lists.route(odds, unchanged, unchanged, concurrency=4, batched=True)
    return made


def shapes(sizes: Sizes) -> Race:
    """Issue 3: merge and route cost less than twice a plain stage, an item."""
    items = sizes.items
    half = (Target(bound=0.5, reference=PLAIN),)
    half_of_two = (Target(bound=0.5, reference=TWO),)

    def race(name: str, make: Any, targets: tuple[Target, ...] = (), **options: Any) -> Contestant:
        def run() -> float:
            return sync_rate(make(items, **options).build(), items)

        return Contestant(name=name, run=run, targets=targets)

    completion = {"output_order": "completion"}
    return Race(
        key="shapes",
        title="merge and route beside a plain no-op thread stage, concurrency 4, batches of 32, for",
        unit="items/s",
        baseline=PLAIN,
        contestants=[
            race(PLAIN, plain),
            race(TWO, two_plain),
            race("Merge of two sources, no stage", merged, half),
            race("Merge with weights, no stage", partial(merged, weights=(1, 1)), half),
            race("route, two empty branches", routed, half),
            race("route, two empty branches, completion order", routed, half, **completion),
            race("route, batched, two empty branches", routed_batches, half),
            race("route, a stage in each branch", partial(routed, branch=stage), half_of_two),
            race(
                "route, a stage in each branch, completion order",
                partial(routed, branch=stage),
                half_of_two,
                **completion,
            ),
        ],
    )
