"""Entries as files in a folder, which any number of processes read and write at once.

Nothing is locked, so nothing that a killed process leaves can hold up another one. A file is written
under a name of its own process and renamed when it is whole: a name shows a whole entry or none.
Whoever finds a damaged one deletes it. What was used when is the file's modification time.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from spdl_async._cache.entry import DamagedError, Output, loaded, pieces
from spdl_async._cache.store import Read, Written

SUFFIX: Final = ".cached"
UNFINISHED: Final = ".unfinished-"
STALE_SECONDS: Final = 3600.0
SCAN_SECONDS: Final = 30.0
TOUCH_SECONDS: Final = 10.0
LEAVE: Final = 0.95  # of max_bytes, when entries have to go: so that not every write has to look
_numbers = itertools.count()


class FolderStore:
    """Keeps entries in a folder."""

    def __init__(self, folder: str, max_bytes: int | None, version: str) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.version = version
        self.bytes = 0
        self._sizes: OrderedDict[str, int] = OrderedDict()  # the least recently used first
        self._last: dict[str, int] = {}  # when this process has used an entry, in ns
        self._scanned: float | None = None
        self._lock = threading.Lock()

    def open(self) -> int:
        """Make the folder, remove what dead processes have left, and measure what is there."""
        with self._lock:
            if self._scanned is not None:
                return 0
            os.makedirs(self.folder, exist_ok=True)
            self._remove_stale()
            self._scan()
            return self._evict()

    def path(self, name: str) -> str:
        """Return the path of an entry."""
        return os.path.join(self.folder, name + SUFFIX)

    # Reading

    def read(self, name: str) -> Read:
        """Read an entry, and check it; one that is damaged is deleted."""
        path = self.path(name)
        try:
            with open(path, "rb", buffering=0) as file:
                state = os.fstat(file.fileno())
                data = bytearray(state.st_size)
                view, got = memoryview(data), 0
                while got < len(data) and (more := file.readinto(view[got:])):
                    got += more
        except FileNotFoundError:
            return Read()
        view.release()
        try:
            if got < len(data):
                raise DamagedError(f"it ended after {got} of {len(data)} bytes")
            outputs = loaded(data, name)
        except DamagedError:
            with contextlib.suppress(OSError):  # deleted meanwhile, or the folder is read-only
                os.unlink(path)
            return Read(damaged=True)
        if time.time() - state.st_mtime > TOUCH_SECONDS:
            with contextlib.suppress(OSError):  # deleted meanwhile, or the folder is read-only
                os.utime(path)
        self._last[name] = time.time_ns()
        return Read(outputs=outputs)

    # Writing

    def write(self, name: str, outputs: Sequence[Output]) -> Written:
        """Write an entry, and delete others where there are too many bytes.

        Raises:
            OSError: it cannot be written.
        """
        parts = pieces(name, self.version, outputs)
        size = sum(map(len, parts))
        if self.max_bytes is not None and size > self.max_bytes:
            return Written(stored=False)
        self._write(self.path(name), parts)
        with self._lock:
            self.bytes += size - self._sizes.pop(name, 0)
            self._sizes[name] = size
            self._last[name] = time.time_ns()
            return Written(stored=True, evicted=self._evict())

    def _write(self, path: str, parts: Sequence[bytes]) -> None:
        unfinished = os.path.join(
            self.folder, f"{UNFINISHED}{_host()}-{os.getpid()}-{next(_numbers)}"
        )
        try:
            if not os.path.isdir(self.folder):  # removed while the pass goes on
                os.makedirs(self.folder, exist_ok=True)
            with open(unfinished, "xb") as file:
                for part in parts:
                    file.write(part)
            os.replace(unfinished, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise

    # The budget

    def _evict(self) -> int:
        """Delete the least recently used entries where there are too many bytes."""
        if self.max_bytes is None:
            return 0
        overdue = self._scanned is None or time.monotonic() - self._scanned > SCAN_SECONDS
        if self.bytes > self.max_bytes or overdue:
            self._scan()
        evicted = 0
        if self.bytes > self.max_bytes:
            while self._sizes and self.bytes > LEAVE * self.max_bytes:
                name, size = self._sizes.popitem(last=False)
                self.bytes -= size
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.path(name))
                    evicted += 1
        return evicted

    def _scan(self) -> None:
        """Take note of the entries that are there: other processes write and delete too."""
        # Files are touched at most every few seconds; what this process has used it knows better.
        last = self._last
        found = sorted(
            (max(state.st_mtime_ns, last.get(name, 0)), name, state.st_size)
            for entry, state in self._files()
            if entry.name.endswith(SUFFIX) and (name := entry.name.removesuffix(SUFFIX))
        )
        self._sizes = OrderedDict((name, size) for _, name, size in found)
        self._last = {name: last[name] for name in self._sizes if name in last}
        self.bytes = sum(self._sizes.values())
        self._scanned = time.monotonic()

    def _remove_stale(self) -> None:
        """Delete unfinished files whose process has ended, or that are old."""
        mine = f"{UNFINISHED}{_host()}-"
        for entry, state in self._files():
            if not entry.name.startswith(UNFINISHED):
                continue
            old = time.time() - state.st_mtime > STALE_SECONDS
            if old or (entry.name.startswith(mine) and not _lives(entry.name[len(mine) :])):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)

    def _files(self) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    yield entry, entry.stat(follow_symlinks=False)


def _host() -> str:
    """Return what tells this machine's processes from those of others that share the folder."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]


def _lives(rest: str) -> bool:
    """Tell whether the process of an unfinished file, ``PID-NUMBER``, is there."""
    try:
        os.kill(int(rest.partition("-")[0]), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OSError):  # another user's process lives
        return True
    return True
