"""Token sequences of one length, packed from documents of any."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from spdl_async.errors import BuildError

Document = Sequence[int] | NDArray[Any]

PADDING = -1  # in place of a document's number


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedTokens:
    """A sequence of fixed length, made of parts of documents, one behind the other.

    Part ``i`` is ``tokens[cu_seqlens[i]:cu_seqlens[i + 1]]`` and belongs to document ``documents[i]``.
    The form of ``cu_seqlens`` is that which attention for sequences of variable length takes.

    Attributes:
        tokens: shape (length,), of the packer's dtype.
        cu_seqlens: the boundaries: int32, shape (parts + 1,), from 0 to length.
        documents: the number of each part's document, counted from 0 in the order of arrival: int64,
            shape (parts,). The last is -1 where the sequence ends with padding.
    """

    tokens: NDArray[Any]
    cu_seqlens: NDArray[np.int32]
    documents: NDArray[np.int64]

    @property
    def segment_ids(self) -> NDArray[np.int32]:
        """The number of each token's part, from 0; -1 for padding. int32, shape (length,).

        A token may attend to those with the same number.
        """
        parts = np.arange(len(self.documents), dtype=np.int32)
        parts[self.documents == PADDING] = PADDING
        return np.repeat(parts, np.diff(self.cu_seqlens))

    @property
    def position_ids(self) -> NDArray[np.int32]:
        """The position of each token in its part, from 0. int32, shape (length,)."""
        starts = np.repeat(self.cu_seqlens[:-1], np.diff(self.cu_seqlens))
        return np.arange(len(self.tokens), dtype=np.int32) - starts

    @property
    def mask(self) -> NDArray[np.bool_]:
        """True where there is a token, False where there is padding. Shape (length,)."""
        return np.repeat(self.documents != PADDING, np.diff(self.cu_seqlens))


class OpenSequence:
    """A sequence that is being filled."""

    __slots__ = ("documents", "filled", "parts")

    def __init__(self) -> None:
        self.parts: list[NDArray[Any]] = []
        self.documents: list[int] = []
        self.filled = 0

    def add(self, part: NDArray[Any], document: int) -> None:
        """Put a part behind the others."""
        self.parts.append(part)
        self.documents.append(document)
        self.filled += len(part)


class TokenPacker:
    """The aggregator that :func:`pack_tokens` makes."""

    def __init__(
        self,
        length: int,
        *,
        fit: Literal["split", "best"],
        window: int,
        separator: int | None,
        pad: int,
        dtype: DTypeLike,
    ) -> None:
        self._length = length
        self._fit = fit
        self._window = window
        self._pad = pad
        self._dtype = np.dtype(dtype)
        self._separator = None if separator is None else np.array([separator], self._dtype)
        self._begin()

    def __deepcopy__(self, memo: object) -> Self:
        """Return a fresh one: a run's own."""
        fresh = object.__new__(type(self))
        fresh.__dict__.update(self.__dict__)
        fresh._begin()
        return fresh

    def _begin(self) -> None:
        self._last = OpenSequence()  # of fit="split"
        self._open: dict[int, OpenSequence] = {}  # of fit="best", by a number of their own
        self._rooms: list[tuple[int, int]] = []  # (free, number) of each open one, in order
        self._made = 0  # numbers of open sequences so far
        self._arrived = self._sequences = self._tokens = self._split = 0

    def accumulate(self, document: Document, /) -> list[PackedTokens]:
        """Take one document; return the sequences that are full now.

        Raises:
            TypeError: it is no 1-D sequence of integers.
            ValueError: a token does not fit into the dtype.
        """
        tokens = self._checked(document)
        number, self._arrived = self._arrived, self._arrived + 1
        if not len(tokens):
            return []
        if self._separator is not None:
            tokens = np.concatenate((tokens, self._separator))
        return (self._fill if self._fit == "split" else self._place)(tokens, number)

    def flush(self) -> list[PackedTokens]:
        """Return what is held, padded, and hold nothing any more."""
        left = [self._open.pop(number) for _, number in self._rooms]
        self._rooms.clear()
        if self._last.filled:
            left.append(self._last)
            self._last = OpenSequence()
        return [self._packed(sequence) for sequence in left]

    def statistics(self) -> Mapping[str, object]:
        """Return numbers for the stage's statistics."""
        places = self._sequences * self._length
        return {
            "sequences": self._sequences,
            "documents": self._arrived,
            "tokens": self._tokens,
            "split": self._split,
            "padding": 1.0 - self._tokens / places if places else 0.0,
        }

    def _checked(self, document: Document) -> NDArray[Any]:
        tokens = np.asarray(document)
        if tokens.ndim != 1 or (tokens.dtype.kind not in "iu" and tokens.size):
            raise TypeError(
                f"pack_tokens: a document must be a 1-D array or list of ints, not "
                f"{type(document).__name__} of shape {tokens.shape} and dtype {tokens.dtype}"
            )
        if tokens.size and not np.can_cast(tokens.dtype, self._dtype):
            range_ = np.iinfo(self._dtype)
            low, high = int(tokens.min()), int(tokens.max())
            if low < range_.min or high > range_.max:
                wrong = low if low < range_.min else high
                raise ValueError(
                    f"pack_tokens: token {wrong} does not fit into dtype={self._dtype}; choose a wider one"
                )
        return tokens.astype(self._dtype, copy=False)

    def _fill(self, tokens: NDArray[Any], number: int) -> list[PackedTokens]:
        """Cut the stream of all documents wherever a sequence is full."""
        full: list[PackedTokens] = []
        at = 0
        while at < len(tokens):
            part = tokens[at : at + self._length - self._last.filled]
            # What is held for later must not keep a far bigger document alive, or change with it.
            self._last.add(part.copy(), number)
            at += len(part)
            if self._last.filled == self._length:
                full.append(self._packed(self._last))
                self._last = OpenSequence()
        self._split += len(full) > 1 or (len(full) == 1 and self._last.filled > 0)
        return full

    def _place(self, tokens: NDArray[Any], number: int) -> list[PackedTokens]:
        """Put a document whole where it leaves the least room."""
        full: list[PackedTokens] = []
        whole = len(tokens) // self._length * self._length
        for at in range(0, whole, self._length):
            sequence = OpenSequence()
            sequence.add(tokens[at : at + self._length], number)
            full.append(self._packed(sequence))
        rest = tokens[whole:].copy()
        self._split += len(tokens) > self._length
        if not len(rest):
            return full
        at = bisect_left(self._rooms, (len(rest), -1))
        if at < len(self._rooms):
            free, name = self._rooms.pop(at)
        else:
            free, name = self._length, self._made
            self._made += 1
            self._open[name] = OpenSequence()
        self._open[name].add(rest, number)
        insort(self._rooms, (free - len(rest), name))
        free, name = self._rooms[0]  # the fullest
        if free == 0 or len(self._rooms) > self._window:
            del self._rooms[0]
            full.append(self._packed(self._open.pop(name)))
        return full

    def _packed(self, sequence: OpenSequence) -> PackedTokens:
        tokens = np.full(self._length, self._pad, self._dtype)
        np.concatenate(sequence.parts, out=tokens[: sequence.filled])
        self._sequences += 1
        self._tokens += sequence.filled
        sizes = [len(part) for part in sequence.parts]
        documents = sequence.documents
        if sequence.filled < self._length:
            sizes.append(self._length - sequence.filled)
            documents = [*documents, PADDING]
        boundaries = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=boundaries[1:])
        return PackedTokens(
            tokens=tokens, cu_seqlens=boundaries, documents=np.array(documents, np.int64)
        )


def pack_tokens(
    length: int,
    *,
    fit: Literal["split", "best"] = "split",
    window: int = 64,
    separator: int | None = None,
    pad: int = 0,
    dtype: DTypeLike = np.int64,
) -> TokenPacker:
    """Return an aggregator that packs tokenized documents into sequences of one length.

    For ``.aggregate(pack_tokens(1024))`` below a stage that tokenizes: its items are documents, 1-D arrays
    (of CPU tensors too) or lists of ints, and a :class:`PackedTokens` comes out for each full sequence.
    Every token of every document comes out exactly once, and parts keep the order within
    their document. At the end what is left is padded, unless ``drop_last=True``, which drops it.

    *Which fit.* ``"split"`` takes all documents as one stream and cuts it: no padding but in the last
    sequence, and the documents' order is kept, but a document may begin in one sequence and end in the next,
    where it is a part of its own. ``"best"`` keeps documents together: only one longer than ``length``
    is cut, into full sequences and a rest; each is put into that one of up to ``window`` open sequences
    where it leaves the least room. When none has room and there are ``window`` already, the fullest one
    leaves, padded. That is the best-fit packing of "Fewer Truncations Improve Language Modeling"
    (arXiv 2404.10830), on a stream: without sorting all documents first. Wider windows pad less; sequences
    leave as they become full, so the documents' order is kept within a window only.

    Its ``statistics()``, shown by ``run.statistics()``, count what has left: ``sequences``; ``tokens``,
    without padding; ``padding``, its share in all places, 0 to 1; ``documents`` that arrived; and those
    of them that were ``split``. Empty documents are counted and leave no trace.

    Args:
        length: tokens in a sequence.
        fit: ``"split"`` or ``"best"``.
        window: how many sequences may be open at once with ``fit="best"``.
        separator: a token to put behind each document, such as the tokenizer's end of text; it is one of the
            document's. Default: none.
        pad: the token that fills up a sequence.
        dtype: the integer dtype of the sequences; a token that it cannot hold is a failure of its document.

    Raises:
        BuildError: a number is out of range, or ``dtype`` holds no integers, or not these.

    Example:
        >>> from spdl_async import PipelineBuilder
        >>> documents = PipelineBuilder().add_source([[1, 2, 3], [4], [5, 6]])
        >>> for packed in documents.aggregate(pack_tokens(4, separator=9)).build():
        ...     print(packed.tokens, packed.cu_seqlens, packed.documents)
        [1 2 3 9] [0 4] [0]
        [4 9 5 6] [0 2 4] [1 2]
        [9 0 0 0] [0 1 4] [ 2 -1]
    """
    for what, number in (("length", length), ("window", window)):
        if type(number) is not int or number < 1:
            raise BuildError(f"pack_tokens: {what} must be an int of at least 1, not {number!r}")
    if length > np.iinfo(np.int32).max:
        raise BuildError(f"pack_tokens: length must fit into int32, not {length!r}")
    if fit not in ("split", "best"):
        raise BuildError(f"pack_tokens: fit must be 'split' or 'best', not {fit!r}")
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind.kind not in "iu":
        raise BuildError(f"pack_tokens: dtype must be one of integers, not {dtype!r}")
    for what, token in (("separator", separator), ("pad", pad)):
        if what == "separator" and token is None:
            continue
        limits = np.iinfo(kind)
        if type(token) is not int or not limits.min <= token <= limits.max:
            raise BuildError(
                f"pack_tokens: {what} must be an int that {kind} can hold, not {token!r}"
            )
    return TokenPacker(length, fit=fit, window=window, separator=separator, pad=pad, dtype=kind)
