"""Files of tokens, one behind the other, mapped into memory."""

from __future__ import annotations

import mmap
import operator
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spdl_async.errors import DecodeError
from spdl_async.io._local import open_regular
from spdl_async.io._npy import MAGIC, MOST_HEADER_BYTES, header_end, parse_header

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_HEADER_BYTES = 128  # of the .npy files written here, whatever the number of tokens


class TokenFile:
    """Windows of a fixed number of tokens, looked at in a file that is mapped into memory.

    A map-style source: ``len(file)`` windows, ``file[i]`` is window ``i``, so ``add_source(TokenFile(…))``
    reads them in order, and a sampler's indices can be looked up with ``.pipe(file)``. A window is an array
    that looks at the file's pages: nothing is copied, nothing is read before it is used, the page cache
    is shared by all processes, and the array is read-only (``.astype(np.int64)`` is what an embedding
    wants, and copies). It may be used by several threads at once; pickled, it is its path and numbers,
    and the other side maps the file anew.

    Two kinds of files: those of :func:`write_tokens`, or any ``.npy`` of one dimension, whose header
    says the dtype; and raw ones without a header, such as nanoGPT's ``train.bin`` (uint16), whose
    ``dtype`` must be given.

    The file stays open as long as the object or one of its windows lives. Replace such a file, never
    shorten it in place: a page that is gone kills the process (``SIGBUS``).

    Args:
        path: the file.
        length: tokens in a window.
        stride: tokens from the start of one window to that of the next; default ``length``. Inputs
            and targets of a language model, shifted by one, come from ``length=n + 1, stride=n``.
        dtype: the integer dtype of a raw file; of a file with a header, if given, what it must have.

    Attributes:
        tokens: all tokens of the file, one array; what is behind the last whole window is seen here only.

    Raises:
        DecodeError: the file's size is not that of its header, or no multiple of the dtype's; or its header
            is of no array of integers of one dimension, or of another dtype.
        OSError: the file cannot be opened or mapped, or is no regular file.
        ValueError: ``length`` or ``stride`` is not above 0, or ``dtype`` holds no integers, or is missing
            for a raw file.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "train.npy")
        ...     write_tokens(path, [[1, 2, 3], [4, 5]], separator=0)
        ...     file = TokenFile(path, length=3)
        ...     len(file), file[1]
        7
        (2, array([0, 4, 5], dtype=uint16))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        length: int,
        stride: int | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        for what, number in (("length", length), ("stride", stride)):
            if number is not None and (type(number) is not int or number < 1):
                raise ValueError(f"TokenFile: {what} must be an int of at least 1, not {number!r}")
        self._path = os.fsdecode(path)
        self._length = length
        self._stride = length if stride is None else stride
        self._dtype = None if dtype is None else _integers(dtype, "TokenFile")
        self.tokens = self._mapped()
        self._windows = max(0, (len(self.tokens) - length) // self._stride + 1)

    def __len__(self) -> int:
        return self._windows

    def __getitem__(self, index: int, /) -> NDArray[Any]:
        """Return a window, of shape (length,), read-only.

        Raises:
            IndexError: there is no such window.
            TypeError: the index is no whole number.
        """
        # Samplers hand out numpy's integers too, whose products overflow without an error.
        at = operator.index(index)
        at = at + self._windows if at < 0 else at
        if not 0 <= at < self._windows:
            raise IndexError(f"{self._path}: no window {index} of {self._windows}")
        start = at * self._stride
        return self.tokens[start : start + self._length]

    def __repr__(self) -> str:
        return (
            f"<TokenFile {self._path!r}: {len(self.tokens):,} tokens of {self.tokens.dtype}, "
            f"{self._windows:,} windows of {self._length}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "tokens"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.tokens = self._mapped()
        self._windows = max(0, (len(self.tokens) - self._length) // self._stride + 1)

    def _mapped(self) -> NDArray[Any]:
        with open_regular(self._path) as file:
            size = os.fstat(file.fileno()).st_size
            pages: bytes | mmap.mmap = b""
            if size:
                pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        view = memoryview(pages)
        try:
            start, dtype, count = self._layout(view)
        except DecodeError as error:
            raise DecodeError(
                f"{self._path}: {error}", path=self._path, offset=error.offset
            ) from error.__cause__
        return np.frombuffer(view, dtype, count, start) if count else np.ndarray((0,), dtype, b"")

    def _layout(self, view: memoryview[int]) -> tuple[int, np.dtype[Any], int]:
        """Return where the tokens begin, their dtype and number."""
        if view[:6] != MAGIC:
            if self._dtype is None:
                raise ValueError(
                    f"{self._path} has no header, so its dtype must be given, such as dtype=np.uint16"
                )
            if len(view) % self._dtype.itemsize:
                raise DecodeError(
                    f"{len(view):,} bytes are no whole number of tokens of {self._dtype}", offset=0
                )
            return 0, self._dtype, len(view) // self._dtype.itemsize
        try:
            start = header_end(view)
            head = parse_header(bytes(view[: min(start, 12 + MOST_HEADER_BYTES)]))
        except IndexError:
            raise DecodeError("cut short within its header", offset=len(view)) from None
        if len(head.shape) != 1 or head.dtype.kind not in "iu":
            raise DecodeError(
                f"an array of shape {head.shape} and dtype {head.dtype}, not of one dimension and integers",
                offset=10,
            )
        if self._dtype is not None and head.dtype != self._dtype:
            raise DecodeError(f"its tokens are {head.dtype}, not {self._dtype}", offset=10)
        if start + head.nbytes != len(view):
            raise DecodeError(
                f"{head.shape[0]:,} tokens of {head.dtype} would end at byte {start + head.nbytes:,}, the "
                f"file ends at byte {len(view):,}",
                offset=min(len(view), start + head.nbytes),
            )
        return start, head.dtype, head.shape[0]


def write_tokens(
    path: str | os.PathLike[str],
    documents: Iterable[Sequence[int] | NDArray[Any]],
    *,
    dtype: DTypeLike = np.uint16,
    separator: int | None = None,
    raw: bool = False,
) -> int:
    """Write documents of tokens one behind the other, for :class:`TokenFile`; return the number of tokens.

    The file is a ``.npy`` file of one dimension and little-endian integers, which ``numpy.load(path,
    mmap_mode="r")`` reads as well; with ``raw=True`` it has no header, as nanoGPT's ``.bin`` files have none.
    It is written as ``PATH.tmp-…`` beside it and renamed when it is complete, so that ``path`` never
    holds a part. Documents are taken one by one and are not kept.

    Args:
        path: the file; it is replaced.
        documents: 1-D arrays or lists of ints; any iterable, such as a pipeline.
        dtype: the integer dtype to store; uint16 holds vocabularies of up to 65,536.
        separator: a token to write behind each document.
        raw: write no header.

    Raises:
        TypeError: a document is no 1-D sequence of ints.
        ValueError: a token does not fit into ``dtype``; the message has the document's number, from 0.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "train.bin")
        ...     write_tokens(path, [[1, 2], [258]], raw=True)
        ...     path.read_bytes()
        3
        b'\\x01\\x00\\x02\\x00\\x02\\x01'
    """
    kind = _integers(dtype, "write_tokens").newbyteorder("<")
    end = None if separator is None else _tokens_of([separator], kind, "the separator")
    final = Path(os.fsdecode(path))
    partial = final.with_name(f"{final.name}.tmp-{os.getpid()}-{os.urandom(4).hex()}")
    count = 0
    try:
        with open(partial, "xb") as file:
            if not raw:
                file.write(bytes(_HEADER_BYTES))
            for number, document in enumerate(documents):
                tokens = _tokens_of(document, kind, f"document {number}")
                file.write(tokens.data)
                count += len(tokens)
                if end is not None:
                    file.write(end.data)
                    count += 1
            if not raw:
                file.seek(0)
                file.write(_npy_header(kind, count))
        os.replace(partial, final)
    except BaseException:  # also an interrupt: nothing is left behind
        partial.unlink(missing_ok=True)
        raise
    return count


def _integers(dtype: DTypeLike, who: str) -> np.dtype[Any]:
    kind = np.dtype(dtype)
    if kind.kind not in "iu":
        raise ValueError(f"{who}: dtype must be one of integers, such as np.uint16, not {dtype!r}")
    return kind


def _tokens_of(document: Any, kind: np.dtype[Any], what: str) -> NDArray[Any]:
    tokens = np.asarray(document)
    if tokens.ndim != 1 or (tokens.dtype.kind not in "iu" and tokens.size):
        raise TypeError(
            f"write_tokens: {what} must be a 1-D array or list of ints, not {type(document).__name__} "
            f"of shape {tokens.shape} and dtype {tokens.dtype}"
        )
    if tokens.size and not np.can_cast(tokens.dtype, kind):
        limits = np.iinfo(kind)
        for token in (int(tokens.min()), int(tokens.max())):
            if not limits.min <= token <= limits.max:
                raise ValueError(f"write_tokens: token {token} of {what} does not fit into {kind}")
    return np.ascontiguousarray(tokens, kind)


def _npy_header(kind: np.dtype[Any], count: int) -> bytes:
    text = f"{{'descr': {kind.str!r}, 'fortran_order': False, 'shape': ({count},), }}"
    fixed = MAGIC + b"\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
    return fixed + text.encode("ascii").ljust(_HEADER_BYTES - 11) + b"\n"
