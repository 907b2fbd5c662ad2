"""Caches in programs of chaos: put where one may stand, into programs that were drawn without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from chaos_reference import Chained, Merged, Route, Source, Work

if TYPE_CHECKING:
    from chaos_programs import Program

ITEM_BY_ITEM = ("pipe", "expand", "filter")
IN_PLACE = ("list", "range", "tuple")  # sources whose items are known by their position


def add_caches(program: Program, failures: bool) -> None:
    """Put caches into a program; the draws are of their own, so the program stays as it is.

    In a second epoch a stage is called on what is not found only, so where ops fail, whether all its
    calls did so is something else than in plain loops.
    """
    random = Random(f"{program.seed} caches")
    if failures and program.epochs > 1:
        return
    for tree in chains(program.tree):
        most = item_by_item(tree.stages)
        if most and random.random() < (0.6 if program.epochs > 1 else 0.25):
            at = random.randint(1, most)
            size = random.choice((1, 3_000, "10MB"))
            options: dict[str, Any] = {"memory": size, "concurrency": random.randint(1, 4)}
            if not isinstance(tree.source, Source) or tree.source.kind not in IN_PLACE:
                options["key"] = repr
            tree.stages.insert(at, Work("cache", None, None, options, f"cache({size})"))


def chains(tree: Chained) -> Iterator[Chained]:
    """Yield a chain and those that are merged in its source."""
    yield tree
    if isinstance(tree.source, Merged):
        for branch in tree.source.branches:
            yield from chains(branch)


def item_by_item(stages: Sequence[Work | Route]) -> int:
    """Return how many stages from the first on may stand above a cache."""
    for number, stage in enumerate(stages):
        if isinstance(stage, Work):
            fits = stage.verb in ITEM_BY_ITEM
        else:
            fits = not stage.batched and all(
                item_by_item(branch) == len(branch) for branch in stage.branches
            )
        if not fits:
            return number
    return len(stages)
