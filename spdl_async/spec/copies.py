"""Copies to a device and back as frozen values, and what the engine asks of whoever makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from spdl_async.spec.policy import FailurePolicy, check_int

if TYPE_CHECKING:
    from spdl_async.spec.stages import Scope

MAX_DEPTH = 1_000


class Copying(Protocol):
    """What copies the batches of one run, in one thread."""

    def __call__(self, batch: Any, /) -> Any:
        """Queue the copy of a batch; return what stands for it until somebody takes it."""

    def statistics(self) -> Mapping[str, object]:
        """Return what it did so far; from any thread."""

    def close(self) -> None:
        """Wait for copies under way and let go of memory; in the thread that copied, at its end.

        It raises nothing, as nobody is left who would hear of it.
        """


class Hands(Protocol):
    """How batches on a device change hands: whoever takes one waits for it, on the device."""

    def claim(self, value: Any, /) -> Any:
        """Return the batch for which a value stands, safe to use on the calling thread's stream."""

    def peek(self, value: Any, /) -> Any:
        """Return the batch for which a value stands, for its size; it is not to be read."""

    def carry(self, kind: str, call: Callable[..., Any], /) -> Callable[..., Any]:
        """Return the op that claims its argument, and whose result can be claimed in turn."""

    def carry_many(self, kind: str, call: Callable[..., Any], /) -> Callable[..., Any]:
        """Do the same for a 1→n op."""

    def claiming(self, kind: str, call: Callable[..., Any], /) -> Callable[..., Any]:
        """Return the predicate or router that claims its argument."""

    def carry_aggregator(self, make: Callable[[], Any], /) -> Callable[[], Any]:
        """Do the same for what makes an aggregator."""

    def opened(self, value: Any, /) -> Any:
        """Return the elements of a list that is on a device, each of which can be claimed."""


class Kit(Protocol):
    """What makes the copies of a stage.

    Attributes:
        target: for people: ``"cuda:1"``.
        hands: how its batches change hands.
        some_stay: whether something of its batches may be on a device.
    """

    @property
    def target(self) -> str: ...

    @property
    def hands(self) -> Hands: ...

    @property
    def some_stay(self) -> bool: ...

    def here(self) -> Any:
        """Return the device that is meant in the calling thread, which starts a run."""

    def open(self, here: Any, *, in_own_thread: bool) -> Copying:
        """Return what copies in one run."""


@dataclass(frozen=True, kw_only=True)
class CopySpec:
    """Copy batches to a device, or back.

    Attributes:
        kit: makes what makes the copies, when the pipeline is built.
        target: the device, as it was given.
        to: where: a device, or the host.
        depth: batches copied ahead.
    """

    kit: Callable[[], Kit]
    target: Any
    to: Literal["device", "host"]
    depth: int
    name: str | None = None
    policy: FailurePolicy | None = None
    scope: Scope | None = None

    def __post_init__(self) -> None:
        check_int(self.depth, f"to_{self.to}: depth", most=MAX_DEPTH)

    @property
    def text(self) -> str:
        """The stage as it was written."""
        return f"to_device({self.target!r})" if self.to == "device" else "to_host()"
