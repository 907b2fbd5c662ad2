"""What ``spdl-async doctor`` finds, from faked files and environments, and its report."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spdl_async import _doctor, _limits
from spdl_async._doctor import Finding, format_report

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


class TestCgroupCpu:
    V2 = "0::/jobs/mine\n"
    V1 = "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\n"

    @pytest.mark.parametrize(
        ("files", "limit"),
        [
            ({"jobs/mine/cpu.max": "150000 100000\n"}, 1.5),
            ({"jobs/mine/cpu.max": "max 100000\n"}, None),
            ({"jobs/mine/cpu.max": "max 100000\n", "jobs/cpu.max": "400000 100000\n"}, 4.0),
            ({"jobs/mine/cpu.max": "800000 100000\n", "jobs/cpu.max": "400000 100000\n"}, 4.0),
            ({"cpu.max": "200000 100000\n"}, 2.0),
            ({"unified/jobs/mine/cpu.max": "200000 100000\n"}, 2.0),
            ({"jobs/mine/cpu.max": "what is this\n"}, None),
            ({"jobs/mine/cpu.max": ""}, None),
            ({}, None),
        ],
    )
    def test_version_2(self, tmp_path: Path, files: dict[str, str], limit: float | None) -> None:
        assert _limits.cgroup_cpu_limit(write(tmp_path, files), self.V2) == limit

    @pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
    @pytest.mark.parametrize("group", ["job/", ""])
    @pytest.mark.parametrize(
        ("quota", "limit"), [("250000\n", 2.5), ("-1\n", None), ("", None), ("0", None)]
    )
    def test_version_1(
        self, tmp_path: Path, mount: str, group: str, quota: str, limit: float | None
    ) -> None:
        folder = f"{mount}/{group}"
        files = {f"{folder}cpu.cfs_quota_us": quota, f"{folder}cpu.cfs_period_us": "100000\n"}

        assert _limits.cgroup_cpu_limit(write(tmp_path, files), self.V1) == limit

    def test_a_path_that_leaves_the_mount_reads_its_root_only(self, tmp_path: Path) -> None:
        files = {"mount/cpu.max": "300000 100000", "other/cpu.max": "100000 100000"}
        root = write(tmp_path, files) / "mount"

        assert _limits.cgroup_cpu_limit(root, "0::/../other\n") == 3.0

    @pytest.mark.parametrize("membership", ["", "nonsense\n", "1:2\n"])
    def test_unreadable_membership_is_no_limit(self, tmp_path: Path, membership: str) -> None:
        assert _limits.cgroup_cpu_limit(tmp_path, membership) is None


class TestCgroupMemory:
    @pytest.mark.parametrize(
        ("files", "limit"),
        [
            ({"memory.max": f"{4 * GIB}\n"}, 4 * GIB),
            ({"memory.max": "max\n"}, None),
            ({"memory/memory.limit_in_bytes": f"{2 * GIB}\n"}, 2 * GIB),
            ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
            ({"memory.max": f"{4 * GIB}", "memory/memory.limit_in_bytes": f"{GIB}"}, GIB),
            ({"memory.max": "\n"}, None),
            ({}, None),
        ],
    )
    def test_smallest_limit_counts(
        self, tmp_path: Path, files: dict[str, str], limit: int | None
    ) -> None:
        root = write(tmp_path, files)

        assert _limits.cgroup_memory_limit(root, "0::/\n5:memory:/\n") == limit


@pytest.mark.parametrize(
    ("affinity", "limit", "usable"), [(8, None, 8), (8, 2.5, 3), (8, 0.2, 1), (2, 16.0, 2)]
)
def test_usable_cores_round_a_limit_up(
    monkeypatch: pytest.MonkeyPatch, affinity: int, limit: float | None, usable: int
) -> None:
    monkeypatch.setattr(_limits, "affinity_cores", lambda: affinity)
    monkeypatch.setattr(_limits, "cgroup_cpu_limit", lambda: limit)

    assert _limits.usable_cores() == usable


class TestFindings:
    @pytest.mark.parametrize(
        ("free_threaded", "enabled", "status", "text"),
        [
            (False, True, "ok", "on: stages scale"),
            (True, False, "ok", "off"),
            (True, True, "warn", "on, though"),
        ],
    )
    def test_gil(self, free_threaded: bool, enabled: bool, status: str, text: str) -> None:
        finding = _doctor.gil_finding(free_threaded=free_threaded, enabled=enabled)

        assert finding.status == status
        assert finding.text.startswith(text)

    def test_debug_modes(self) -> None:
        assert _doctor.debug_finding({"PYTHONASYNCIODEBUG": "1"}).status == "warn"

    @pytest.mark.parametrize(
        ("version", "windows", "status"),
        [("0.23.0", False, "ok"), (None, False, "warn"), (None, True, "ok")],
    )
    def test_uvloop(self, version: str | None, windows: bool, status: str) -> None:
        assert _doctor.uvloop_finding(version, windows=windows).status == status

    @pytest.mark.parametrize(("version", "status"), [("2.4", "ok"), (None, "fail")])
    def test_numpy(self, version: str | None, status: str) -> None:
        assert _doctor.numpy_finding(version).status == status

    @pytest.mark.parametrize(("threads", "status"), [(2, "ok"), (4, "ok"), (64, "warn")])
    def test_torch_threads(self, threads: int, status: str) -> None:
        finding = _doctor.torch_threads_finding(threads, 4)

        assert finding.status == status
        assert status == "ok" or "OMP_NUM_THREADS=4" in str(finding.advice)

    @pytest.mark.parametrize(
        ("environ", "cpu_only", "status", "text"),
        [
            ({}, False, "ok", "not set"),
            ({}, True, "warn", "not set"),
            ({"OMP_WAIT_POLICY": "passive"}, True, "ok", "OMP_WAIT_POLICY=passive"),
            ({"KMP_BLOCKTIME": "0"}, True, "ok", "KMP_BLOCKTIME=0"),
            ({"OMP_NUM_THREADS": "1"}, True, "ok", "OMP_NUM_THREADS=1"),
            ({"OMP_NUM_THREADS": "4"}, False, "ok", "OMP_NUM_THREADS=4"),
            ({"OMP_NUM_THREADS": "4,2"}, False, "ok", "OMP_NUM_THREADS=4,2"),
            ({"MKL_NUM_THREADS": "16"}, False, "warn", "MKL_NUM_THREADS=16"),
            ({"OMP_WAIT_POLICY": "ACTIVE"}, False, "warn", "OMP_WAIT_POLICY=ACTIVE"),
        ],
    )
    def test_openmp(self, environ: dict[str, str], cpu_only: bool, status: str, text: str) -> None:
        finding = _doctor.openmp_finding(environ, cores=4, cpu_only=cpu_only)

        assert (finding.status, finding.text) == (status, text)

    @pytest.mark.parametrize(
        ("machine", "affinity", "limit", "status", "text"),
        [
            (8, 8, None, "ok", "8 usable of 8 (affinity 8, no cgroup limit)"),
            (8, 8, 1.5, "warn", "2 usable of 8 (affinity 8, cgroup limit 1.5)"),
            (8, 4, None, "warn", "4 usable of 8 (affinity 4, no cgroup limit)"),
            (1, 1, None, "warn", "1 usable of 1 (affinity 1, no cgroup limit)"),
        ],
    )
    def test_cores(
        self, machine: int, affinity: int, limit: float | None, status: str, text: str
    ) -> None:
        finding = _doctor.cores_finding(machine, affinity, limit)

        assert (finding.status, finding.text) == (status, text)

    @pytest.mark.parametrize(
        ("machine", "limit", "text"),
        [
            (16 * GIB, None, "16.0 GiB, no cgroup limit"),
            (16 * GIB, 4 * GIB, "4.0 GiB (cgroup) of 16.0 GiB"),
            (None, None, "unknown, no cgroup limit"),
        ],
    )
    def test_memory(self, machine: int | None, limit: int | None, text: str) -> None:
        assert _doctor.memory_finding(machine, limit).text == text

    @pytest.mark.parametrize(
        ("limit", "status"), [(None, "ok"), (1024, "ok"), (256, "warn"), (0, "warn")]
    )
    def test_open_files(self, limit: int | None, status: str) -> None:
        assert _doctor.open_files_finding(limit).status == status

    def test_decoders_that_are_missing(self) -> None:
        findings = list(_doctor.decoder_findings(lambda *names: None))

        assert [finding.status for finding in findings] == ["warn", "warn", "ok"]
        assert findings[2].text == "none of torchvision, OpenCV, torchcodec, PyAV"

    def test_decoders_that_are_there(self) -> None:
        versions = {"simplejpeg": "1.9", "cv2": "5.0", "av": "17.0"}
        findings = list(_doctor.decoder_findings(lambda *names: versions.get(names[0])))

        assert findings[0].text == "1.9"
        assert findings[2].text == "OpenCV 5.0, PyAV 17.0"


class TestCuda:
    @staticmethod
    def fake_torch(*, built: str | None, names: tuple[str, ...] = ()) -> Any:
        return SimpleNamespace(
            version=SimpleNamespace(cuda=built),
            cuda=SimpleNamespace(
                is_available=lambda: bool(names),
                device_count=lambda: len(names),
                get_device_name=lambda index: names[index],
            ),
        )

    @pytest.mark.parametrize(
        ("built", "names", "driver", "status", "text"),
        [
            (None, (), None, "ok", "none: this torch is built for the CPU (no NVIDIA driver)"),
            (None, (), "580.1", "warn", "none: this torch is built for the CPU (driver 580.1)"),
            ("13.0", (), None, "warn", "none: torch is built for CUDA 13.0, no NVIDIA driver"),
            ("13.0", (), "470.1", "warn", "none: torch is built for CUDA 13.0, driver 470.1"),
            ("13.0", ("A", "A", "B"), "580.1", "ok", "2 x A, 1 x B (CUDA 13.0, driver 580.1)"),
        ],
    )
    def test_finding(
        self,
        built: str | None,
        names: tuple[str, ...],
        driver: str | None,
        status: str,
        text: str,
    ) -> None:
        finding = _doctor.cuda_finding(self.fake_torch(built=built, names=names), driver)

        assert (finding.status, finding.text) == (status, text)

    @pytest.mark.parametrize(
        ("text", "version"),
        [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC 12\n",
                "550.54.15",
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release\n",
                "580.65.06",
            ),
            ("GCC version: 12.2.0", None),
            (None, None),
        ],
    )
    def test_driver_version(self, text: str | None, version: str | None) -> None:
        assert _doctor.nvidia_driver(text) == version


class TestInstalledVersion:
    def test_of_an_installed_package(self) -> None:
        assert _doctor.installed_version("pytest") == pytest.__version__

    def test_of_a_package_under_another_name(self) -> None:
        version = _doctor.installed_version("_pytest", "no-such-name", "pytest")

        assert version == pytest.__version__

    def test_of_a_module_without_a_distribution(self) -> None:
        assert _doctor.installed_version("json") == "of unknown version"

    def test_of_nothing(self) -> None:
        assert _doctor.installed_version("no_such_module_anywhere") is None


class TestReport:
    def test_columns_line_up_and_advice_follows_its_line(self) -> None:
        findings = [
            Finding(topic="a", text="fine"),
            Finding(topic="long", text="slow", advice="do this"),
            Finding(topic="b", text="gone", advice="do that", fatal=True),
        ]

        assert format_report(findings).splitlines() == [
            "ok    a     fine",
            "warn  long  slow",
            "            change: do this",
            "fail  b     gone",
            "            change: do that",
            "",
            "2 things to change.",
        ]

    @pytest.mark.parametrize(
        ("findings", "end"),
        [
            ([Finding(topic="a", text="b")], "Nothing to change."),
            ([Finding(topic="a", text="b", advice="c")], "One thing to change."),
        ],
    )
    def test_last_line_counts(self, findings: list[Finding], end: str) -> None:
        assert format_report(findings).endswith(end)

    @pytest.mark.parametrize(
        ("finding", "code"),
        [
            (Finding(topic="uvloop", text="not installed", advice="install it"), 0),
            (Finding(topic="numpy", text="not installed", advice="install it", fatal=True), 1),
        ],
    )
    def test_exit_code(self, monkeypatch: pytest.MonkeyPatch, finding: Finding, code: int) -> None:
        monkeypatch.setattr(_doctor, "examine", lambda: iter([finding]))

        assert _doctor.run_doctor(io.StringIO()) == code

    def test_torch_that_is_missing_is_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.break_import(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch"))
        (finding,) = _doctor.torch_findings(2)

        assert (finding.status, finding.text) == ("warn", "not installed")

    def test_torch_that_is_broken_is_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.break_import(monkeypatch, OSError("libtorch.so: cannot open\nmore"))
        (finding,) = _doctor.torch_findings(2)

        assert finding.status == "warn"
        assert finding.text == "cannot be imported: libtorch.so: cannot open"

    @staticmethod
    def break_import(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        import builtins

        real: Callable[..., Any] = builtins.__import__

        def fake(name: str, *args: Any, **kwargs: Any) -> Any:
            if name == "torch":
                raise error
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", fake)

    @pytest.mark.torch
    def test_whole_report_of_this_machine(self) -> None:
        pytest.importorskip("torch")
        out = io.StringIO()

        assert _doctor.run_doctor(out) == 0
        topics = [
            line[6:].split("  ")[0] for line in out.getvalue().splitlines() if line[:2].strip()
        ]
        for topic in ("Python", "GIL", "uvloop", "torch", "CUDA", "simplejpeg", "CPU cores"):
            assert topic in topics
