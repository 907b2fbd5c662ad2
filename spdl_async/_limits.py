"""What this process may use: cores, memory, open files.

``os.cpu_count()`` is the machine's number. A container or a batch system gives a process less,
by an affinity mask or by a control group, and a pool sized for the machine then only adds
switching. The readers take paths and texts, so that tests feed them files of their own. Formats:
cgroups(7), and ``Documentation/admin-guide/cgroup-v1`` and ``cgroup-v2.rst`` of the Linux kernel.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_MEMBERSHIP = Path("/proc/self/cgroup")

_UNLIMITED_BYTES = 1 << 60
"""Version 1 writes "no limit" as the largest multiple of a page, close to 2**63."""


def affinity_cores() -> int:
    """Count the cores that the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_cores() -> int:
    """Count the cores that this process can keep busy: affinity and control group, at least 1."""
    return cores_within(cgroup_cpu_limit())


def cores_within(limit: float | None) -> int:
    """Count the cores of the affinity mask that a control group's limit allows, at least 1."""
    cores = max(1, affinity_cores())
    return cores if limit is None else max(1, min(cores, math.ceil(limit)))


def cgroup_cpu_limit(root: Path = CGROUP_ROOT, membership: str | None = None) -> float | None:
    """Return the CPU time per second that the control groups allow, in cores; None if unlimited.

    Args:
        root: where the control groups are mounted.
        membership: the text of ``/proc/self/cgroup``; read if not given.
    """
    limits = [_cpu_max(folder / "cpu.max") for folder in _unified_folders(root, membership)] + [
        _cpu_quota(folder) for folder in _legacy_folders(root, membership, "cpu")
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def cgroup_memory_limit(root: Path = CGROUP_ROOT, membership: str | None = None) -> int | None:
    """Return the bytes of memory that the control groups allow; None if unlimited."""
    limits = [_bytes(folder / "memory.max") for folder in _unified_folders(root, membership)] + [
        _bytes(folder / "memory.limit_in_bytes")
        for folder in _legacy_folders(root, membership, "memory")
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def physical_memory() -> int | None:
    """Return the machine's bytes of memory; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def open_file_limit() -> int | None:
    """Return how many files this process may have open; None where nothing limits it."""
    try:
        import resource
    except ImportError:
        return None
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _entries(membership: str | None) -> Iterator[tuple[str, str]]:
    """Yield (controllers, path) of each line ``id:controllers:path``."""
    text = _read(CGROUP_MEMBERSHIP) if membership is None else membership
    for line in (text or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            yield parts[1], parts[2]


def _unified_folders(root: Path, membership: str | None) -> Iterator[Path]:
    """Yield the version 2 group of this process and all above it; each can set a limit."""
    for controllers, path in _entries(membership):
        if not controllers:
            yield from _upwards(root, path)
            yield from _upwards(root / "unified", path)


def _legacy_folders(root: Path, membership: str | None, controller: str) -> Iterator[Path]:
    """Yield the version 1 group of this process for a controller, and all above it."""
    for controllers, path in _entries(membership):
        if controller in controllers.split(","):
            for mount in {controllers, controller}:
                yield from _upwards(root / mount, path)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    # In a container the path may be the host's, of which only the mount's root is visible.
    relative = Path(path.lstrip("/"))
    for folder in (relative, *relative.parents):
        if ".." not in folder.parts:
            yield mount / folder


def _cpu_max(file: Path) -> float | None:
    """Read version 2's ``quota period`` in microseconds, where the quota may be ``max``."""
    fields = (_read(file) or "").split()
    if len(fields) != 2 or fields[0] == "max":
        return None
    return _ratio(fields[0], fields[1])


def _cpu_quota(folder: Path) -> float | None:
    """Read version 1's quota and period, two files; a quota of -1 is none."""
    quota = _read(folder / "cpu.cfs_quota_us")
    period = _read(folder / "cpu.cfs_period_us")
    return None if quota is None or period is None else _ratio(quota, period)


def _ratio(quota: str, period: str) -> float | None:
    try:
        allowed, of = int(quota), int(period)
    except ValueError:
        return None
    return allowed / of if allowed > 0 and of > 0 else None


def _bytes(file: Path) -> int | None:
    try:
        limit = int(_read(file) or "max")
    except ValueError:
        return None
    return limit if 0 < limit < _UNLIMITED_BYTES else None


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
