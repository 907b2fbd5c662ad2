"""Choosing, numbering, reordering and keeping in plain loops."""

from __future__ import annotations

import builtins
import hashlib
import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

from spdl_async import BuildError

SHAPES: Final = ("shuffle", "take", "skip", "enumerate", "cache")


def shaped(
    verb: str, argument: Any, options: Mapping[str, Any], epoch: int, above: Iterator[Any]
) -> Iterator[Any]:
    """Return what one of these verbs makes of the values above."""
    if verb == "shuffle":
        seed = options.get("seed")
        if seed is None:
            raise BuildError(
                "reference_run: give shuffle a seed; without one its order depends on build(seed=)"
            )
        return shuffled(argument, seed, epoch, above)
    if verb == "cache":
        return above
    if verb == "take":
        return itertools.islice(above, argument)
    if verb == "skip":
        return itertools.islice(above, argument, None)
    return builtins.enumerate(above, argument)


def shuffled(size: int, seed: int, epoch: int, above: Iterator[Any]) -> Iterator[Any]:
    """Exchange each value for a random one of a full buffer; empty that at the end, or at a failure."""
    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    draw = random.Random(int.from_bytes(digest[:16], "big")).random
    buffer: list[Any] = []
    failure = None
    while True:
        try:
            value = next(above)
        except StopIteration:
            break
        except BaseException as error:  # noqa: BLE001 -- raised below, after what came before it
            failure = error
            break
        if len(buffer) < size:
            buffer.append(value)
            continue
        at = int(draw() * size)
        yield buffer[at]
        buffer[at] = value
    while buffer:
        at = int(draw() * len(buffer))
        buffer[at], buffer[-1] = buffer[-1], buffer[at]
        yield buffer.pop()
    if failure is not None:
        raise failure
