"""Arrays in NumPy's ``.npy`` format, looked at where they are: nothing is copied.

The format is that of NEP 1 and of ``numpy.lib.format``: the magic bytes, a version, the length of the
header, the header (a Python literal in text), the elements.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.lib.format import descr_to_dtype

from spdl_async.errors import DecodeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview

MAGIC = b"\x93NUMPY"
_VERSION_1 = MAGIC + b"\x01\x00"
# numpy's own limit: ast.literal_eval is not meant for longer texts of unknown origin.
MOST_HEADER_BYTES = 10_000
_FIXED = {1: 10, 2: 12, 3: 12}  # bytes before the header's text, by version
_TYPE = re.compile(
    r"[<>|=]?(?:\?|b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[SUV]\d{1,9}"
    r"|[mM]8(?:\[\d{0,9}(?:generic|Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)"
)
# What numpy and ast raise on a header that makes no sense.
_SENSELESS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


class Header(NamedTuple):
    """What stands before the elements of a ``.npy`` file."""

    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    shape: tuple[int, ...]
    nbytes: int  # of the elements


def load_npy(data: Buffer) -> NDArray[Any]:
    """Return the array of a ``.npy`` file's bytes, without copying its elements.

    The array looks at ``data`` and keeps it alive. It can be written to only where ``data`` can (a
    ``bytearray``); copy it (``.copy()``) to change it otherwise. Give the view of an ``mmap`` to read
    from the disk only what is used. Versions 1.0, 2.0 and 3.0, C and Fortran order, 0-d and empty
    arrays and structured dtypes are read; the byte order is kept as it is stored
    (``array.astype(array.dtype.newbyteorder("="))`` changes it). Headers are remembered: thousands of
    arrays of the same shape and dtype are parsed once.

    Never unpickles: arrays of objects are refused, as unpickling can run any code.

    Args:
        data: the whole file; bytes, bytearray, or a contiguous memoryview.

    Returns:
        An array of the stored shape and dtype.

    Raises:
        DecodeError: this is no ``.npy`` file, it is cut short, something follows the array, the header
            makes no sense, or the array holds Python objects; ``offset`` is the byte concerned.
            Nothing is allocated for a header that claims more than there is.
        TypeError: ``data`` is a path, or no contiguous buffer.

    Example:
        >>> import io
        >>> import numpy as np
        >>> file = io.BytesIO()
        >>> np.save(file, np.arange(6, dtype=np.int16).reshape(2, 3))
        >>> load_npy(file.getvalue())
        array([[0, 1, 2],
               [3, 4, 5]], dtype=int16)
    """
    if type(data) is not bytes:
        data = flat_view(data, "load_npy")
    try:
        quick = data[:8] == _VERSION_1
        start = 10 + data[8] + (data[9] << 8) if quick else header_end(data)
        head = parse_header(bytes(data[:start]))
        if start + head.nbytes != len(data):
            raise _wrong_size(head, start, len(data))
        if type(data) is bytes or not head.nbytes:
            return np.ndarray(head.shape, head.dtype, bytes(data), start, None, head.order)
        # Unlike numpy.ndarray, frombuffer holds on to the buffer, so that a bytearray cannot be resized
        # nor a map closed below the array.
        flat = np.frombuffer(data, head.dtype, offset=start)
        return flat.reshape(head.shape, order=head.order)
    except IndexError:
        raise DecodeError(
            f"a .npy file cut short: it ends at byte {len(data)}, within its header",
            offset=len(data),
        ) from None


def flat_view(data: object, who: str) -> memoryview[int]:
    """Return a view of the single bytes of a buffer.

    Raises:
        TypeError: it is none, or is not contiguous.
    """
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # that it is one is being found out
    except TypeError:
        raise TypeError(
            f"{who} takes the bytes of a file, not {type(data).__name__}: {data!r:.80}; read the file "
            f"first, such as with pathlib.Path(path).read_bytes()"
        ) from None
    if not view.contiguous:
        raise TypeError(
            f"{who} takes contiguous bytes; this memoryview has gaps: bytes(view) copies"
        )
    return view.cast("B") if view.ndim != 1 or view.format != "B" else view


def header_end(data: bytes | memoryview[int]) -> int:
    """Return where the elements begin, of a file of any version.

    Raises:
        DecodeError: it is no ``.npy`` file, or its version or the length of its header is none.
        IndexError: the data ends before that can be said.
    """
    start = bytes(data[:6])
    if start != MAGIC:
        if start and MAGIC.startswith(start):
            raise IndexError
        shown = start.hex(" ") or "nothing"
        hint = "; this is an archive, .npz: use load_npz" if start[:4] == b"PK\x03\x04" else ""
        raise DecodeError(f"no .npy file: it begins with {shown} at byte 0{hint}", offset=0)
    major, minor = data[6], data[7]
    fixed = _FIXED.get(major)
    if fixed is None or minor:
        raise DecodeError(
            f"a .npy file of version {major}.{minor}, at byte 6; 1.0, 2.0 and 3.0 are known",
            offset=6,
        )
    length = sum(data[8 + at] << (8 * at) for at in range(fixed - 8))
    if length > MOST_HEADER_BYTES:
        raise DecodeError(
            f"a .npy file whose header claims {length:,} bytes, at byte 8; at most "
            f"{MOST_HEADER_BYTES:,} are read",
            offset=8,
        )
    return fixed + length


@lru_cache(maxsize=512)
def parse_header(head: bytes) -> Header:
    """Parse everything before the elements.

    Raises:
        DecodeError: it makes no sense.
        IndexError: it is shorter than it says.
    """
    if header_end(head) > len(head):
        raise IndexError
    fixed = _FIXED[head[6]]
    try:
        text = head[fixed:].decode("utf-8" if head[6] == 3 else "latin-1")
        found = ast.literal_eval(text.strip())
        if not isinstance(found, dict) or found.keys() != {"descr", "fortran_order", "shape"}:
            raise ValueError("it must be a dict of descr, fortran_order and shape")
        return _checked(found["descr"], found["fortran_order"], found["shape"])
    except _SENSELESS as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise DecodeError(
            f"a .npy header that makes no sense, at byte {fixed}: {why:.200}", offset=fixed
        ) from error


def _checked(descr: Any, fortran: Any, shape: Any) -> Header:
    """Raise one of ``_SENSELESS`` unless the three belong to an array that can be had."""
    if not isinstance(fortran, bool):
        raise ValueError(f"fortran_order must be True or False, not {fortran!r:.40}")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"the shape must be a tuple of ints of at least 0, not {shape!r:.80}")
    if isinstance(descr, tuple):
        raise ValueError(f"{descr!r:.80} is no dtype that an array can have")
    _check_descr(descr)
    dtype = descr_to_dtype(descr)
    if dtype.hasobject:
        raise ValueError(f"the dtype {descr!r:.80} holds Python objects")
    nbytes = prod(shape) * dtype.itemsize
    # An empty array may still have a shape that numpy cannot have; strides cost nothing to try.
    if prod(shape or (1,)) == 0 or dtype.itemsize == 0:
        np.ndarray(shape, dtype, b"")
    elif len(shape) > 32:
        raise ValueError(f"{len(shape)} dimensions; at most 32 are read")
    return Header(dtype, "F" if fortran else "C", shape, nbytes)


def _check_descr(descr: Any) -> None:
    """Raise ``ValueError`` unless a dtype is of the kinds that numpy writes."""
    if isinstance(descr, str):
        if descr.lstrip("<>|=").startswith(("O", "object")):
            raise ValueError(
                f"the dtype {descr!r:.40} holds Python objects, which only unpickling could read, and "
                f"that can run any code: save numbers or fixed-length strings"
            )
        if _TYPE.fullmatch(descr) is None:
            raise ValueError(f"{descr!r:.80} is no dtype that can be read")
    elif isinstance(descr, tuple):
        _check_descr(descr[0])  # a subarray: (dtype, shape)
        if len(descr) != 2:
            raise ValueError(f"{descr!r:.80} is no dtype that can be read")
    elif isinstance(descr, list):
        for field in descr:
            if not isinstance(field, tuple) or len(field) not in (2, 3):
                raise ValueError(f"{field!r:.80} is no field of a dtype")
            _check_descr(field[1])
    else:
        raise ValueError(f"{descr!r:.80} is no dtype that can be read")


def _wrong_size(head: Header, start: int, size: int) -> DecodeError:
    shape = "×".join(map(str, head.shape)) or "()"
    what = f"{shape} of {head.dtype}"
    if size < start:
        return DecodeError(
            f"a .npy file cut short: it ends at byte {size}, within its header", offset=size
        )
    end = start + head.nbytes
    if size < end:
        return DecodeError(
            f"a .npy file cut short: {what} would end at byte {end:,}, the data at byte {size:,}",
            offset=size,
        )
    return DecodeError(
        f"a .npy file with {size - end:,} bytes too many: {what} ends at byte {end:,}", offset=end
    )
