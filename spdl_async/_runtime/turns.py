"""Whose turn it is: round-robin, or draws by weight that depend on nothing but the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

from spdl_async._plan.steps import MergePlan


class Turns:
    """Says which branch of a merge gives the next item.

    Attributes:
        over: no branch gives any more.
    """

    def __init__(self, plan: MergePlan, seed: int, epoch: int) -> None:
        self.weights = plan.weights
        self.left = [at for at in range(len(plan.branches)) if plan.reads(at)]
        self.at = 0
        self.over = not self.left
        # With a seed of the merge's own its place in the pipeline has no influence.
        root = f"{seed}/{plan.op.name}" if plan.seed is None else str(plan.seed)
        self.random = random.Random(f"{root}/{epoch}")
        self.draws: Iterator[int] = iter(())

    def next(self) -> int:
        """Return the branch whose turn it is."""
        if self.weights is None:
            return self.left[self.at]
        while True:
            for branch in self.draws:
                return branch
            weights = [self.weights[branch] for branch in self.left]
            self.draws = iter(self.random.choices(self.left, weights, k=64))

    def gave(self) -> None:
        """Hear that the branch whose turn it was has given an item."""
        if self.weights is None:
            self.at = (self.at + 1) % len(self.left)

    def ended(self, branch: int) -> None:
        """Hear that a branch has no more."""
        at = self.left.index(branch)
        del self.left[at]
        self.draws = iter(())
        self.over = not self.left
        if self.left:
            self.at %= len(self.left)
