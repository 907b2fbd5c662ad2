"""An item's identity, and what travels through the steps.

What moves between steps is an :class:`Item`: a value, the ticket of the source item that it was
made from, and the path of ordinals below each 1→n stage. A step that maps 1→1 changes the value in
place, so an item costs no allocation on its way. Exactly one step owns an item at any time.

One mechanism serves order (the window holds items), error notes (ticket and path), and the count
of what is in flight (``Ticket.open``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any, Final

PENDING: Final = 0
DONE: Final = 1
DROPPED: Final = 2
FAILED: Final = 3

MAX_KEPT_BYTES: Final = 1024
KEPT_TYPES: Final = frozenset({int, float, bool, type(None)})


class NoItem:
    """Stands in a ticket for a source item that the source failed to give."""


NO_ITEM: Final = NoItem()


class Ticket:
    """The identity of one source item.

    Attributes:
        epoch: number of the pass.
        index: position in the source, from 0.
        open: descendants that are neither delivered nor dropped yet.
        source: the source item itself when it is small, else its type.
    """

    __slots__ = ("epoch", "index", "open", "source")

    def __init__(self, epoch: int, index: int, source: Any) -> None:
        self.epoch = epoch
        self.index = index
        self.open = 1
        self.source = source


class Item:
    """One value on its way.

    Attributes:
        value: the present value; in a failed item its :class:`OpFailure`.
        ticket: the source item that it was made from; of a batch, the first member's.
        path: ordinals below each 1→n stage.
        members: of a batch, the items that it was made of (emptied of their values); never changed.
        state: ``PENDING`` while a step works on it, else how that ended.
        at: index of the op in a fused group that dropped or failed it.
    """

    __slots__ = ("at", "members", "path", "state", "ticket", "value")

    def __init__(
        self,
        value: Any,
        ticket: Ticket,
        path: tuple[int, ...] = (),
        members: Sequence[Item] | None = None,
    ) -> None:
        self.value = value
        self.ticket = ticket
        self.path = path
        self.members = members
        self.state = PENDING
        self.at = 0


class OpFailure:
    """An exception on its way to the policy, with the text of its traceback."""

    __slots__ = ("exception", "input_was_none", "text")

    def __init__(self, exception: BaseException, text: str, input_was_none: bool = False) -> None:
        self.exception = exception
        self.text = text
        self.input_was_none = input_was_none


class Ledger:
    """Counts source items in flight: ``opened`` grows where they are read, ``closed`` on the loop."""

    __slots__ = ("closed", "opened", "peak")

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.peak = 0

    def note_peak(self) -> None:
        """Remember the largest number seen in flight."""
        flying = self.opened - self.closed
        self.peak = max(self.peak, flying)

    def release(self, item: Item) -> None:
        """Account for an item that was delivered or dropped."""
        if item.members is None:
            ticket = item.ticket
            ticket.open -= 1
            if not ticket.open:
                self.closed += 1
            return
        for member in item.members:
            if member.members is None:
                ticket = member.ticket
                ticket.open -= 1
                if not ticket.open:
                    self.closed += 1
            else:
                self.release(member)

    def adopt(self, parent: Item, children: int) -> None:
        """Account for ``children`` new descendants of ``parent``."""
        if parent.members is None:
            if not parent.ticket.open:
                self.closed -= 1
            parent.ticket.open += children
        else:
            for member in parent.members:
                self.adopt(member, children)


def kept_source(value: Any) -> Any:
    """Return the part of a source item that a ticket may keep: itself when small, else its type."""
    kind = type(value)
    if kind in KEPT_TYPES:
        return value
    if kind is str or kind is bytes:
        return value if len(value) <= MAX_KEPT_BYTES else kind
    if isinstance(value, PurePath):
        return value
    is_plain_tuple = kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_fields"))
    if is_plain_tuple and len(value) <= 8:
        return tuple(map(kept_source, value))
    return kind


def describe_source(source: Any) -> str:
    """Return a short text for what ``kept_source`` kept; of nothing, an empty one."""
    if source is NO_ITEM:
        return ""
    if isinstance(source, type):
        return f"<{source.__name__}>"
    if type(source) is tuple:
        return f"({', '.join(map(describe_source, source))}{',' if len(source) == 1 else ''})"
    text = str(source) if isinstance(source, PurePath) else repr(source)
    return text if len(text) <= 200 else f"{text[:197]}..."


def where_is(item: Item) -> str:
    """Return a short text that says which item this is."""
    ticket = item.ticket
    if item.members is not None and not item.members:
        return "the end of the data"
    if item.members is not None:
        last = _last_ticket(item.members)
        if last.index != ticket.index:
            return (
                f"items {ticket.index}–{last.index} "
                f"({describe_source(ticket.source)} … {describe_source(last.source)})"
            )
    path = "".join(f".{k}" for k in item.path)
    source = "" if ticket.source is NO_ITEM else f" ({describe_source(ticket.source)})"
    return f"item {ticket.index}{path}{source}"


def _last_ticket(members: Iterable[Item]) -> Ticket:
    last = None
    for last in members:  # noqa: B007 -- the last one is wanted
        pass
    if last is None:
        raise ValueError("a batch has at least one member")
    return last.ticket if last.members is None else _last_ticket(last.members)
