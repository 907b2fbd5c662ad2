"""Entries in this process's memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from spdl_async._cache.codec import Decoder
from spdl_async._cache.entry import Loaded, Output
from spdl_async._cache.store import Read, Written

ENTRY_BYTES: Final = 200  # about what an entry takes in memory besides its outputs


class MemoryStore:
    """Keeps entries in this process; what was used least recently goes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._entries: OrderedDict[str, tuple[int, tuple[Output, ...]]] = OrderedDict()
        self._lock = threading.Lock()

    def open(self) -> int:
        """Do nothing: there is nothing yet."""
        return 0

    def read(self, name: str) -> Read:
        """Return fresh copies of an entry's values."""
        with self._lock:
            found = self._entries.get(name)
            if found is None:
                return Read()
            self._entries.move_to_end(name)
        outputs: list[Loaded] = []
        for path, blob in found[1]:
            outputs.append((path, Decoder(blob.buffers).value(blob.tree)))
        return Read(outputs=outputs)

    def write(self, name: str, outputs: Sequence[Output]) -> Written:
        """Store an entry, and let go of others."""
        size = ENTRY_BYTES + sum(blob.size for _, blob in outputs)
        if size > self.max_bytes:
            return Written(stored=False)
        evicted = 0
        with self._lock:
            before: tuple[int, Any] = self._entries.pop(name, (0, ()))
            self._entries[name] = (size, tuple(outputs))
            self.bytes += size - before[0]
            while self.bytes > self.max_bytes:
                _, (gone, _) = self._entries.popitem(last=False)
                self.bytes -= gone
                evicted += 1
        return Written(stored=True, evicted=evicted)
