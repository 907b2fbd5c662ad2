"""Without the extra `text`, everything works but zstd and Parquet, which say what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spdl_async.io import read_jsonl, read_parquet


def test_importing_the_readers_imports_no_extra() -> None:
    code = (
        "import sys, spdl_async.io\n"
        "print([name for name in ('pyarrow', 'zstandard') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    install = r'pip install "spdl-async\[text\]"'
    with pytest.raises(ImportError, match=f"needs pyarrow, .*{install}"):
        next(read_parquet(b""))
    with pytest.raises(ImportError, match=f"needs zstandard, .*{install}"):
        next(read_jsonl(b"\x28\xb5\x2f\xfd"))
    assert list(read_jsonl(b"1")) == [1]
