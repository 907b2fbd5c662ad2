"""Parquet files, read by row group through pyarrow, as numpy arrays."""

from __future__ import annotations

import operator
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from spdl_async.errors import DecodeError
from spdl_async.io._extras import need
from spdl_async.io._local import open_regular

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PIECE = 1 << 16  # rows that are decoded at once where no batch_size was given


def read_parquet(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview,
    *,
    columns: Sequence[str] | None = None,
    batch_size: int | None = None,
    row_groups: Sequence[int] | None = None,
) -> Generator[dict[str, NDArray[Any]], None, None]:
    """Yield the rows of a Parquet file in batches: a dict of an array for each column.

    Made for ``.expand(read_parquet, concurrency=4)`` below a stage of paths; as a source it is
    ``add_source(partial(read_parquet, path))``. Decoding releases the GIL and uses the calling thread alone.
    The memory in use is about twice that of one row group's chosen columns, or of ``batch_size`` rows.

    Each array has one element, or row, for each row of the batch:

    =================================  ============================================================
    column                             array
    =================================  ============================================================
    integers, floats, booleans         the same dtype
    floats with nulls                  the same dtype, NaN
    dates, times of day and stamps     ``datetime64`` or ``timedelta64`` (null: NaT), or objects
    fixed-size lists of numbers        shape (rows, size), where there are no nulls
    lists of numbers                   objects: an array for each row
    text, bytes, decimals              objects: ``str``, ``bytes``, ``Decimal``
    structs, maps, nested lists        objects, as pyarrow gives them
    integers and booleans with nulls   objects: ``int`` or ``bool``, and None; never rounded
    =================================  ============================================================

    Whether there are nulls is looked at in each batch, so that a column of integers which has some is int64
    in one batch and objects in another. No file says it beforehand in a way to rely on: schemas allow
    nulls nearly always, and pyarrow ends the process where it is asked for the statistics of a damaged file.
    What needs one dtype converts: ``np.where(column == None, -1, column).astype(np.int64)``.

    Dictionary-encoded columns are decoded. Arrays may share memory with pyarrow's and are then
    read-only.

    Args:
        source: a path, or the bytes of a file, which are not copied.
        columns: the columns to read, by their top-level names; the others are not read. Default: all.
        batch_size: the most rows in a batch; batches do not cross row groups. Default: a batch for each row
            group.
        row_groups: the numbers of the row groups to read, from 0, in that order. Default: all.

    Raises:
        DecodeError: this is no Parquet file, it is damaged, or it lacks a column or a row group; the message
            has the path and the row group.
        OSError: the file cannot be opened or read, or is no regular file.
        TypeError: ``columns`` is no list of names, or ``row_groups`` none of whole numbers.
        ValueError: ``batch_size`` is not above 0, or a name or number is twice in its list.
        ImportError: ``pip install "spdl-async[text]"`` was not run.

    Example:
        >>> import io
        >>> import pyarrow
        >>> import pyarrow.parquet
        >>> file = io.BytesIO()
        >>> table = pyarrow.table({"tokens": [3, 4, 5], "url": ["a", "b", "c"]})
        >>> pyarrow.parquet.write_table(table, file)
        >>> list(read_parquet(file.getvalue(), columns=["tokens"], batch_size=2))
        [{'tokens': array([3, 4])}, {'tokens': array([5])}]
    """
    arrow, parquet = need("pyarrow", "text"), need("pyarrow.parquet", "text")
    _check(batch_size)
    columns = _listed("columns", columns)
    row_groups = _listed("row_groups", row_groups)
    path = os.fsdecode(source) if isinstance(source, (str, os.PathLike)) else None
    where = f"{path}: " if path else ""
    group: int | None = None
    with ExitStack() as stack:
        try:
            opened = _open(arrow, path, source)
            stack.callback(opened.close)
            # Reading ahead would start threads of pyarrow's own.
            file = parquet.ParquetFile(opened, pre_buffer=False, page_checksum_verification=True)
            stack.callback(file.close)
            chosen = _chosen(file, columns, row_groups)
            for group in chosen:
                for pieces in _batches(file, group, columns, batch_size):
                    yield {
                        name: _array(arrow, [piece.column(at) for piece in pieces])
                        for at, name in enumerate(pieces[0].schema.names)
                    }
        except (arrow.ArrowException, OSError, ValueError, LookupError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the system's: no such file, no permission, a disk that fails
            place = "" if group is None else f"row group {group}: "
            why = str(error).partition("\n")[0]
            raise DecodeError(f"{where}{place}{_what(group)}: {why:.300}", path=path) from error


def _open(arrow: Any, path: str | None, source: Any) -> Any:
    # pyarrow's own file: reading from a Python file object would need the GIL.
    if path is None:
        return arrow.BufferReader(arrow.py_buffer(source))
    open_regular(path).close()  # pyarrow would wait for who writes into a pipe
    return arrow.OSFile(path)


def _check(batch_size: Any) -> None:
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise ValueError(f"read_parquet: batch_size must be an int above 0, not {batch_size!r}")


def _listed(what: str, given: Any) -> Any:
    """Return a list of names, or of numbers, that were given as any iterable; None stays None."""
    if given is None:
        return None
    try:
        if isinstance(given, (str, bytes)):
            raise TypeError
        if what == "columns":
            items: list[Any] = list(given)
            if not all(isinstance(each, str) for each in items):
                raise TypeError
        else:  # numpy's integers too, as of an array that is shared out among ranks
            items = [operator.index(each) for each in given]
    except TypeError:
        kind = "names" if what == "columns" else "whole numbers"
        example = (
            [given] if isinstance(given, (str, int)) else ["label"] if kind == "names" else [0]
        )
        raise TypeError(
            f"read_parquet: {what} must be a list of {kind}, such as {example!r:.80}, not {given!r:.80}"
        ) from None
    if len(set(items)) != len(items):
        raise ValueError(f"read_parquet: {what} has something twice: {given!r:.200}")
    return items


def _chosen(
    file: Any, columns: Sequence[str] | None, row_groups: Sequence[int] | None
) -> Sequence[int]:
    """Return the numbers of the row groups to read.

    Raises:
        LookupError: the file lacks one of them, or a column.
        ValueError: its numbers of rows do not agree.
    """
    names, groups = file.schema_arrow.names, file.num_row_groups
    rows = sum(file.metadata.row_group(number).num_rows for number in range(groups))
    if rows != file.metadata.num_rows:  # pyarrow would leave rows out, or make room for too many
        raise ValueError(
            f"its row groups have {rows:,} rows, where it claims {file.metadata.num_rows:,}"
        )
    for name in columns or ():
        if name not in names:  # pyarrow would leave it out silently
            raise LookupError(f"it has no column {name!r}; it has {', '.join(names):.500}")
    for number in row_groups or ():
        if not 0 <= number < groups:
            raise LookupError(f"it has no row group {number!r}; it has {groups}, from 0")
    return range(groups) if row_groups is None else row_groups


def _batches(
    file: Any, group: int, columns: Sequence[str] | None, batch_size: int | None
) -> Iterator[list[Any]]:
    """Yield the batches of a row group, each in pieces.

    Raises:
        ValueError: it has fewer rows than it claims.
    """
    claimed = file.metadata.row_group(group).num_rows
    # pyarrow makes room for a whole batch at once, so the size must not be what a damaged file claims.
    most = _PIECE if batch_size is None else min(batch_size, max(1, claimed))
    rows, held = 0, []
    for piece in file.iter_batches(
        batch_size=most, row_groups=[group], columns=columns, use_threads=False
    ):
        rows += len(piece)
        if batch_size is not None:
            yield [piece]
        else:
            held.append(piece)
    if rows != claimed and (columns is None or columns):
        raise ValueError(f"it has {rows:,} rows where it claims {claimed:,}")
    if held:
        yield held


def _what(group: int | None) -> str:
    if group is None:
        return "no Parquet file that can be read"
    return "damaged, or of a kind that pyarrow cannot read"


def _array(arrow: Any, pieces: list[Any]) -> NDArray[Any]:
    """Return a column of a batch as the table in :func:`read_parquet` says."""
    if arrow.types.is_dictionary(pieces[0].type):
        pieces = [piece.dictionary_decode() for piece in pieces]
    column = pieces[0] if len(pieces) == 1 else arrow.concat_arrays(pieces)
    kind = column.type
    is_numeric = _is_numeric(arrow, kind)
    if column.null_count == 0 and arrow.types.is_fixed_size_list(kind):
        values = column.flatten()
        if _is_numeric(arrow, values.type) and values.null_count == 0:
            flat: NDArray[Any] = values.to_numpy(zero_copy_only=False)
            return flat.reshape(len(column), kind.list_size)
    is_plain = is_numeric and (column.null_count == 0 or arrow.types.is_floating(kind))
    is_list = arrow.types.is_list(kind) or arrow.types.is_large_list(kind)
    if (
        is_plain
        or arrow.types.is_temporal(kind)
        or (is_list and _is_numeric(arrow, kind.value_type) and column.flatten().null_count == 0)
    ):
        array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return array
    objects = np.empty(len(column), object)
    objects[:] = column.to_pylist()
    return objects


def _is_numeric(arrow: Any, kind: Any) -> bool:
    types = arrow.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
