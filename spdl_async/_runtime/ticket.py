"""An item's identity, and what travels through the steps.

What moves between steps is an :class:`Item`: a value, its ticket (which source item it was made
from), and the path of ordinals below each 1→n stage. A step that maps 1→1 changes the value in
place, so an item costs no allocation on its way. Exactly one step owns an item at any time.

One mechanism serves order (the window holds items), error notes (ticket and path), and the count
of what is in flight (``open`` of the ticket).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any, Final

PENDING: Final = 0
DONE: Final = 1
DROPPED: Final = 2
FAILED: Final = 3

GONE: Final = -1
"""The ``at`` of an item that was dropped or skipped in a branch of a route, and settled."""

MAX_KEPT_BYTES: Final = 1024
KEPT_TYPES: Final = frozenset({int, float, bool, type(None)})


class NoItem:
    """Stands in a ticket for a source item that the source failed to give."""


NO_ITEM: Final = NoItem()


class Item:
    """One value on its way.

    The item that the source made is also the ticket of everything that is made from it; it has
    given its value away by then.

    Attributes:
        value: the present value; in a failed item its :class:`OpFailure`.
        index: position in the source, from 0; of a batch, the first member's.
        source: the source item itself when it is small, else its type.
        root: the ticket, that is the item that the source made (or one for a part of the way, see
            ``route_step``); ``None`` in the former.
        open: of a ticket, how many descendants are neither delivered nor dropped yet.
        path: ordinals below each 1→n stage.
        members: of a batch, the items that it was made of (emptied of their values); never changed.
        state: ``PENDING`` while a step works on it, else how that ended.
        at: index of the op in a fused group that dropped or failed it, or is to be called again.
        load: its bytes, where the run has a budget of them (``budget.Load``).
    """

    __slots__ = (
        "at", "index", "load", "members", "open", "path", "root", "source", "state", "tries", "value",
    )  # fmt: skip

    load: Any  # not set where there is no budget

    tries: tuple[object, int]  # whose failed calls, and how many; set at the first that is repeated

    # One call an item: as few and as plain assignments as will do.
    def __init__(
        self,
        value: Any,
        index: int,
        source: Any,
        root: Item | None = None,
        path: tuple[int, ...] = (),
        members: Sequence[Item] | None = None,
    ) -> None:
        self.value = value
        self.index = index
        self.source = source
        self.root = root
        self.path = path
        self.members = members
        self.open = 1
        self.state = PENDING
        self.at = 0

    @property
    def ticket(self) -> Item:
        """What counts the item's descendants: the item that the source made, or its way in a branch."""
        return self if self.root is None else self.root

    def left(self) -> None:
        """Hear, as a ticket for a part of the way, that nothing of it is on that part any more."""

    def spoilt(self) -> None:
        """Hear, as a ticket, that something of it was skipped after a failure."""

    def child(
        self, value: Any, path: tuple[int, ...], members: Sequence[Item] | None = None
    ) -> Item:
        """Return an item with another value that was made from this one."""
        return Item(value, self.index, self.source, self.ticket, path, members)


FORGOTTEN: Final = Exception("spdl_async: a failure that is settled")


class OpFailure:
    """An exception on its way to the policy, with the text of its traceback.

    Attributes:
        attempts: how often the op was called on the item.
        asked: whether the user's ``on_error`` function was asked about it.
        answer: what that raised.
    """

    __slots__ = ("answer", "asked", "attempts", "exception", "input_was_none", "text", "trace")

    def __init__(self, exception: BaseException, text: str, input_was_none: bool = False) -> None:
        self.exception = exception
        self.text = text
        self.input_was_none = input_was_none
        self.attempts = 1
        self.asked = False
        self.answer: BaseException | None = None
        self.trace: Any = None

    def forget(self) -> None:
        """Let go of the exception of an item that is skipped, or called again.

        Its frames may hold this failure, or what holds it: a cycle, in which the item's value would
        live until a garbage collection.
        """
        self.exception = FORGOTTEN
        self.trace = None


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
        for member in (item,) if item.members is None else item.members:
            if member.members is None:
                ticket = member.root or member
                ticket.open -= 1
                if not ticket.open:
                    if ticket.root is None:
                        self.closed += 1
                    else:
                        ticket.left()
            else:
                self.release(member)

    def free(self, item: Item) -> None:
        """Hear that an item's value was given to others."""

    def split_load(self, item: Item, to: Item, number: int) -> None:
        """Hear that so many of an item's bytes are kept for another one now."""

    def pass_load(self, item: Item, to: Item) -> None:
        """Hear that another item has an item's value now."""

    def adopt(self, parent: Item, children: int) -> None:
        """Account for ``children`` new descendants of ``parent``."""
        if parent.members is None:
            ticket = parent.ticket
            if not ticket.open and ticket.root is None:
                self.closed -= 1
            ticket.open += children
        else:
            for member in parent.members:
                self.adopt(member, children)


def spoil(item: Item) -> None:
    """Tell the tickets of an item that it was skipped after a failure, so not all of them is there."""
    for member in item.members or (item,):
        ticket = member.root
        while ticket is not None:
            ticket.spoilt()
            ticket = ticket.root


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
    if item.members is not None and not item.members:
        return "the end of the data"
    if item.members is not None:
        last = _last_of(item.members)
        if last.index != item.index:
            return (
                f"items {item.index}–{last.index} "
                f"({describe_source(item.source)} … {describe_source(last.source)})"
            )
    path = "".join(f".{k}" for k in item.path)
    source = "" if item.source is NO_ITEM else f" ({describe_source(item.source)})"
    return f"item {item.index}{path}{source}"


def which_are(item: Item, samples: Sequence[int]) -> str:
    """Return a short text that says which items some samples of a batch were; of others, nothing."""
    members = item.members
    if not samples or members is None or max(samples) >= len(members):
        return ""
    return ", ".join(f"sample {at} from {where_is(members[at])}" for at in samples)


def _last_of(members: Iterable[Item]) -> Item:
    last = None
    for last in members:  # noqa: B007 -- the last one is wanted
        pass
    if last is None:
        raise ValueError("a batch has at least one member")
    return last if last.members is None else _last_of(last.members)
