"""Write samples into tar archives that `tar_samples`, tarfile and WebDataset read."""

from __future__ import annotations

import io
import json
import operator
import os
import secrets
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

from spdl_async.io._samples import KEY, OFFSET, SHARD, split_name

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Encoder = Callable[[Any], Buffer]

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)


class TarWriter:
    """Write samples into one tar archive, or into a numbered series of them.

    The same samples give the same bytes: no times, owners or names of this machine are written. A file
    has a temporary name, its own with ``.partial-…`` behind it, until it is whole; when the ``with`` block
    is left by an exception the file that was begun is removed, and the ones before it stay.

    A sample is a dict with a ``__key__`` and fields by extension, as :func:`tar_samples` gives them.
    Bytes-like values are written as they are, str in UTF-8, whole numbers and floats as their text, numpy
    arrays below the extension ``npy``, anything JSON can hold below ``json``; ``encoders`` has the rest.
    Not for several threads at once.

    Args:
        target: path of the archive; with ``max_count`` or ``max_bytes`` a pattern with a place for the
            number, as ``"train-{:06d}.tar"``; or a binary file, which is not closed.
        max_count: most samples in an archive; then the next one begins.
        max_bytes: most bytes of an archive; only a sample that is larger by itself exceeds it.
        encoders: functions that turn a value into bytes, by extension, before all other rules.

    Attributes:
        paths: the archives that are whole, in order.

    Raises:
        ValueError: a pattern without a place for the number where one is needed or the reverse, limits
            below 1 or with a file.

    Example:
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> with TarWriter(folder / "train-{:03d}.tar", max_count=2) as writer:
        ...     for n in range(3):
        ...         writer.write({"__key__": f"{n:04d}", "txt": f"number {n}", "cls": n})
        >>> [path.name for path in writer.paths]
        ['train-000.tar', 'train-001.tar']
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | BinaryIO,
        *,
        max_count: int | None = None,
        max_bytes: int | None = None,
        encoders: Mapping[str, Encoder] | None = None,
    ) -> None:
        for option, value in (("max_count", max_count), ("max_bytes", max_bytes)):
            if value is not None and operator.index(value) < 1:
                raise ValueError(f"{option} is at least 1, but is {value}")
        rotates = max_count is not None or max_bytes is not None
        self._given: BinaryIO | None = None
        self._pattern = ""
        if isinstance(target, (str, os.PathLike)):
            self._pattern = os.fspath(target)
            _check_pattern(self._pattern, rotates)
        elif rotates:
            raise ValueError("max_count and max_bytes make several files: give a path pattern")
        else:
            self._given = target
        self._rotates = rotates
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._encoders = dict(encoders or {})
        self._file: BinaryIO | None = None
        self._partial = ""
        self._keys: set[str] = set()
        self._bytes = 0
        self._number = 0
        self._closed = False
        self.paths: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write one sample; its fields lie together, in the dict's order.

        Raises:
            ValueError: the sample has no ``__key__`` or no fields, its key is in this archive already,
                or a name would be read back as another key or extension.
            TypeError: a value that no rule turns into bytes.
            OSError: writing failed.
        """
        if self._closed:
            raise ValueError("this TarWriter is closed")
        if not hasattr(sample, "items"):
            raise TypeError(
                f"a sample is a dict with its key in {KEY!r}, not {type(sample).__name__}"
            )
        key = sample.get(KEY)
        if not isinstance(key, str):
            raise ValueError(f"a sample needs its key as a str in {KEY!r}, but has {key!r}")
        parts = list(self._parts(key, sample))
        if not parts:
            raise ValueError(f"sample {key!r} has no fields")
        count = sum(map(len, parts))
        if self._file is not None and self._is_full(count):
            self._finish()
        file = self._file or self._begin()
        if key in self._keys:
            raise ValueError(f"sample {key!r} is in this archive already")
        try:
            for part in parts:
                file.write(part)
        except BaseException:
            self.abort()  # half a sample must not be followed by another one
            raise
        self._keys.add(key)
        self._bytes += count

    def close(self) -> None:
        """End the archive and give it its name; with no sample at all, it is an empty one."""
        if self._closed:
            return
        if self._file is None and not self.paths:
            self._begin()
        if self._file is not None:
            self._finish()
        self._closed = True

    def abort(self) -> None:
        """Remove the file that was begun; what was written into a file that was given stays there."""
        self._closed = True
        if self._file is not None and self._given is None:
            self._file.close()
            os.unlink(self._partial)
        self._file = None

    def _is_full(self, count: int) -> bool:
        if self._max_count is not None and len(self._keys) >= self._max_count:
            return True
        after = self._bytes + count + len(END)
        return self._max_bytes is not None and bool(self._keys) and after > self._max_bytes

    def _begin(self) -> BinaryIO:
        self._keys.clear()
        self._bytes = 0
        if self._given is not None:
            self._file = self._given
            return self._file
        # A name that nobody has chosen before; in the same folder, as a rename needs it.
        self._partial = f"{self._path()}.partial-{secrets.token_hex(4)}"
        self._file = open(self._partial, "xb", buffering=1 << 20)  # noqa: SIM115 -- closed in _finish
        return self._file

    def _finish(self) -> None:
        file = self._file
        assert file is not None
        file.write(END)
        if self._given is None:
            file.flush()
            os.fsync(file.fileno())  # else a crash can leave the name without the content
            file.close()
            path = self._path()
            os.replace(self._partial, path)
            self.paths.append(Path(path))
            self._number += 1
        self._file = None

    def _path(self) -> str:
        return self._pattern.format(self._number) if self._rotates else self._pattern

    def _parts(self, key: str, sample: Mapping[str, Any]) -> Iterator[bytes | memoryview]:
        for field, value in sample.items():
            if field in (KEY, SHARD, OFFSET):
                continue
            name = f"{key}.{field}"
            if split_name(name) != (key, field) or "\0" in name:
                raise ValueError(
                    f"{name!r} would not be read back as key {key!r} and field {field!r}: the last part "
                    f"of a key has no dot, and a field no upper case"
                )
            data = memoryview(self._encode(key, field, value)).cast("B")
            info = tarfile.TarInfo(name)  # whose defaults have no time, owner or group
            info.size = len(data)
            yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            yield data
            yield bytes(-len(data) % BLOCK)

    def _encode(self, key: str, field: str, value: Any) -> Buffer:
        last = field.rpartition(".")[2]
        encoder = self._encoders.get(field) or self._encoders.get(last)
        if encoder is not None:
            return encoder(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return value
        if last == "json":
            return json.dumps(value, ensure_ascii=False).encode("utf-8")
        if last == "npy":
            return _npy(value)
        if isinstance(value, str):
            return value.encode("utf-8")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value).encode("ascii")
        raise TypeError(
            f"sample {key!r}: {field!r} is of type {type(value).__name__}, which no rule turns into "
            f"bytes; give encoders={{{field!r}: function}}, or the extension 'npy' to arrays and 'json' to "
            f"the like"
        )


def _check_pattern(pattern: str, rotates: bool) -> None:
    try:
        numbered = pattern.format(0) != pattern.format(1)
    except (IndexError, KeyError, ValueError) as error:
        if rotates:
            raise ValueError(f"{pattern!r} is no pattern with one number: {error!r}") from None
        return  # a name that happens to have braces
    if rotates and not numbered:
        raise ValueError(
            f"{pattern!r} has no place for the number of the archive: write it as 'train-{{:06d}}.tar'"
        )
    if numbered and not rotates:
        raise ValueError(f"{pattern!r} has a place for a number: give max_count or max_bytes")


def _npy(value: Any) -> bytes:
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.asarray(value), allow_pickle=False)
    return file.getvalue()
