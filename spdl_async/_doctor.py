"""What matters for speed here, and what to change: the answer of ``spdl-async doctor``.

A finding is a line: what was looked at, what is there, and, where something better is possible,
the change that brings it. Nothing is changed by looking. Packages are found without importing
them, except torch, which alone knows about its threads and its devices.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal, TextIO

from spdl_async import _limits

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
FEW_OPEN_FILES = 1024
"""Below this, a few hundred concurrent reads beside a web service's connections hit the limit."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report.

    Attributes:
        topic: what was looked at.
        text: what is there.
        advice: what to change; None if all is well.
        fatal: whether the library cannot work like this.
    """

    topic: str
    text: str
    advice: str | None = None
    fatal: bool = False

    @property
    def status(self) -> Literal["ok", "warn", "fail"]:
        """``fail`` if the library cannot work, ``warn`` if it could be faster, else ``ok``."""
        if self.fatal:
            return "fail"
        return "ok" if self.advice is None else "warn"


def run_doctor(out: TextIO | None = None) -> int:
    """Print the report; return 1 if the library cannot work here, else 0."""
    stream = sys.stdout if out is None else out
    findings = list(examine())
    print(format_report(findings), file=stream, flush=True)
    return 1 if any(finding.fatal for finding in findings) else 0


def format_report(findings: Iterable[Finding]) -> str:
    """Lay the findings out as a table, each warning followed by what to change."""
    listed = list(findings)
    width = max((len(finding.topic) for finding in listed), default=0)
    lines: list[str] = []
    for finding in listed:
        lines.append(f"{finding.status:<4}  {finding.topic:<{width}}  {finding.text}")
        if finding.advice is not None:
            lines.append(f"{'':<4}  {'':<{width}}  change: {finding.advice}")
    warnings = sum(finding.advice is not None for finding in listed)
    changes = {0: "Nothing to change.", 1: "One thing to change."}
    return "\n".join([*lines, "", changes.get(warnings, f"{warnings} things to change.")])


def examine() -> Iterator[Finding]:
    """Look at everything; yields the findings in the order in which they are printed."""
    cores = _limits.usable_cores()
    yield python_finding()
    yield gil_finding()
    yield debug_finding(os.environ)
    yield uvloop_finding(installed_version("uvloop"), windows=sys.platform == "win32")
    yield numpy_finding(installed_version("numpy"))
    yield from torch_findings(cores)
    yield from decoder_findings(installed_version)
    yield cores_finding(os.cpu_count() or 1, _limits.affinity_cores(), _limits.cgroup_cpu_limit())
    yield memory_finding(_limits.physical_memory(), _limits.cgroup_memory_limit())
    yield open_files_finding(_limits.open_file_limit())


def python_finding() -> Finding:
    """Tell which Python runs this."""
    text = f"{platform.python_version()} ({platform.python_implementation()})"
    if sys.implementation.name != "cpython":
        advice = "use CPython: decoders and torch are built for it"
        return Finding(topic="Python", text=text, advice=advice)
    return Finding(topic="Python", text=text)


def gil_finding(*, free_threaded: bool | None = None, enabled: bool | None = None) -> Finding:
    """Tell whether Python code can run in several threads at once."""
    if free_threaded is None:
        free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    if enabled is None:
        enabled = bool(getattr(sys, "_is_gil_enabled", lambda: True)())
    if not enabled:
        return Finding(topic="GIL", text="off (free-threaded build): pure Python stages scale too")
    if free_threaded:
        return Finding(
            topic="GIL",
            text="on, though this is a free-threaded build",
            advice="PYTHON_GIL=0 keeps it off; an extension module that is not ready turned it on",
        )
    text = "on: stages scale with threads as far as they release it (file reads, decoders, numpy)"
    return Finding(topic="GIL", text=text)


def debug_finding(environ: Mapping[str, str]) -> Finding:
    """Tell whether Python or asyncio runs in a mode meant for finding errors."""
    slow = {
        "PYTHONASYNCIODEBUG": bool(environ.get("PYTHONASYNCIODEBUG")),
        "PYTHONDEVMODE (or -X dev)": bool(sys.flags.dev_mode),
        "a debug build of Python": hasattr(sys, "gettotalrefcount"),
    }
    active = [name for name, on in slow.items() if on]
    if not active:
        return Finding(topic="debug modes", text="off")
    advice = "run without it when speed counts: asyncio checks every callback"
    return Finding(topic="debug modes", text=", ".join(active), advice=advice)


def uvloop_finding(version: str | None, *, windows: bool) -> Finding:
    """Tell whether pipelines on a loop of their own get the faster one."""
    if version is not None:
        return Finding(topic="uvloop", text=version)
    if windows:
        return Finding(topic="uvloop", text="not made for Windows; asyncio's own loop is used")
    advice = "pip install uvloop: pipelines on a loop of their own then use it by themselves"
    return Finding(topic="uvloop", text="not installed", advice=advice)


def numpy_finding(version: str | None) -> Finding:
    """Tell whether numpy is there, without which there are no pictures and no batches."""
    if version is not None:
        return Finding(topic="numpy", text=version)
    advice = "pip install numpy"
    return Finding(topic="numpy", text="not installed", advice=advice, fatal=True)


def torch_findings(cores: int) -> Iterator[Finding]:
    """Import torch; tell its version, its threads and its devices."""
    try:
        import torch
    except (ImportError, OSError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        text = "not installed" if missing else f"cannot be imported: {_first_line(error)}"
        advice = "pip install torch: without it there is no collate, no device copy and no demo"
        yield Finding(topic="torch", text=text, advice=advice)
        return
    yield Finding(topic="torch", text=str(torch.__version__))
    yield torch_threads_finding(torch.get_num_threads(), cores)
    yield openmp_finding(os.environ, cores, cpu_only=not torch.cuda.is_available())
    yield cuda_finding(torch, nvidia_driver(_read(NVIDIA_DRIVER)))


def torch_threads_finding(threads: int, cores: int) -> Finding:
    """Tell whether torch's own thread team fits the cores."""
    text = f"{threads} for one operation"
    if threads > cores:
        advice = f"OMP_NUM_THREADS={cores}: more threads than the {cores} usable cores slow it down"
        return Finding(topic="torch threads", text=text, advice=advice)
    return Finding(topic="torch threads", text=text)


def cuda_finding(torch: ModuleType, driver: str | None) -> Finding:
    """Tell which CUDA devices torch sees, and why it sees none."""
    built = torch.version.cuda
    driver_text = "no NVIDIA driver" if driver is None else f"driver {driver}"
    if built is None:
        text = f"none: this torch is built for the CPU ({driver_text})"
        advice = None if driver is None else "install torch's CUDA build: there is a driver here"
        return Finding(topic="CUDA", text=text, advice=advice)
    if not torch.cuda.is_available():
        text = f"none: torch is built for CUDA {built}, {driver_text}"
        advice = (
            "load the NVIDIA driver, or give the container its devices"
            if driver is None
            else f"a driver that is new enough for CUDA {built}; look at CUDA_VISIBLE_DEVICES too"
        )
        return Finding(topic="CUDA", text=text, advice=advice)
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    counted = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return Finding(topic="CUDA", text=f"{', '.join(counted)} (CUDA {built}, {driver_text})")


def nvidia_driver(text: str | None) -> str | None:
    """Find the version in the text of ``/proc/driver/nvidia/version``."""
    found = re.search(r"(?:Kernel Module|for \w+)\s+(\d+(?:\.\d+)+)", text or "")
    return found.group(1) if found else None


def openmp_finding(environ: Mapping[str, str], cores: int, *, cpu_only: bool) -> Finding:
    """Tell what the environment says to OpenMP and MKL, whose threads compete with the stages.

    OpenMP threads that wait for their next share of work spin for some milliseconds, unless they
    are told to be passive. While a network trains on the CPU that takes the cores from the
    stages that decode: on 2 cores, ``spdl-async demo`` ran about twice as fast when passive.
    """
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
    given = {name: environ[name] for name in names if environ.get(name)}
    text = ", ".join(f"{name}={value}" for name, value in given.items()) or "not set"
    too_many = [
        name for name in names[:2] if given.get(name, "").isdigit() and int(given[name]) > cores
    ]
    may_spin = cpu_only and given.get("OMP_NUM_THREADS") != "1" and "KMP_BLOCKTIME" not in given
    policy = given.get("OMP_WAIT_POLICY", "active" if may_spin else "").lower()
    advice = None
    if too_many:
        advice = f"{too_many[0]}={cores}: that is how many cores there are to use"
    elif policy == "active":
        advice = (
            "OMP_WAIT_POLICY=passive, where a network trains on the CPU: OpenMP threads that wait "
            "then leave the cores to the stages"
        )
    return Finding(topic="OpenMP, MKL", text=text, advice=advice)


def decoder_findings(version_of: Callable[..., str | None]) -> Iterator[Finding]:
    """Tell which decoders are installed; the library itself uses the first two."""
    simplejpeg = version_of("simplejpeg")
    missing = "not installed"
    fast = 'pip install "spdl-async[image]": JPEG decodes two to four times as fast as by Pillow'
    yield Finding(
        topic="simplejpeg", text=simplejpeg or missing, advice=None if simplejpeg else fast
    )
    yield pillow_finding(version_of("PIL", "pillow"))
    optional = {
        "torchvision": ("torchvision",),
        "OpenCV": ("cv2", "opencv-python", "opencv-python-headless", "opencv-contrib-python"),
        "torchcodec": ("torchcodec",),
        "PyAV": ("av",),
    }
    found = {name: version_of(*packages) for name, packages in optional.items()}
    listed = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    none = f"none of {', '.join(found)}"
    yield Finding(topic="other decoders", text=listed or none)


def pillow_finding(version: str | None) -> Finding:
    """Tell whether Pillow is there and decodes JPEG with libjpeg-turbo."""
    if version is None:
        advice = 'pip install "spdl-async[image]": it decodes everything that is not plain JPEG'
        return Finding(topic="Pillow", text="not installed", advice=advice)
    from PIL import features

    if features.check_feature("libjpeg_turbo"):
        turbo = features.version_feature("libjpeg_turbo")
        return Finding(topic="Pillow", text=f"{version} with libjpeg-turbo {turbo}")
    advice = "pip install --force-reinstall pillow: its wheels bring libjpeg-turbo"
    return Finding(topic="Pillow", text=f"{version} without libjpeg-turbo", advice=advice)


def cores_finding(machine: int, affinity: int, limit: float | None) -> Finding:
    """Tell how many cores can be kept busy, and what takes the others away."""
    usable = affinity if limit is None else max(1, min(affinity, math.ceil(limit)))
    quota = "no cgroup limit" if limit is None else f"cgroup limit {limit:g}"
    text = f"{usable} usable of {machine} (affinity {affinity}, {quota})"
    advice = None
    if usable < machine:
        advice = f"size concurrency= by {usable}, not by os.cpu_count(), or let the job have more"
    elif usable == 1:
        advice = "give it a second core: decoding and training take turns on one"
    return Finding(topic="CPU cores", text=text, advice=advice)


def memory_finding(machine: int | None, limit: int | None) -> Finding:
    """Tell how much memory there is to fill with batches in flight."""
    total = "unknown" if machine is None else _gib(machine)
    text = f"{total}, no cgroup limit" if limit is None else f"{_gib(limit)} (cgroup) of {total}"
    return Finding(topic="memory", text=text)


def open_files_finding(limit: int | None) -> Finding:
    """Tell whether many concurrent reads and connections fit the limit of open files."""
    text = "unlimited" if limit is None else f"{limit:,}"
    advice = None
    if limit is not None and limit < FEW_OPEN_FILES:
        advice = "ulimit -n 65536: concurrent reads and connections each take one"
    return Finding(topic="open files", text=text, advice=advice)


def installed_version(module: str, *distributions: str) -> str | None:
    """Return the version of an installed package, without importing it; None if there is none.

    Args:
        module: the name that is imported.
        distributions: the names under which it may be installed, where they differ.
    """
    if importlib.util.find_spec(module) is None:
        return None
    for name in distributions or (module,):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of unknown version"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _read(file: Path) -> str | None:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return None
