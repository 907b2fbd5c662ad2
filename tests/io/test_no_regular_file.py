"""Readers that take a path refuse a pipe at once: a thread that waits for who writes into it is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spdl_async.io import (
    TokenFile,
    decode_video,
    iter_zip,
    read_audio,
    read_image,
    read_jsonl,
    read_parquet,
)


@pytest.mark.parametrize(
    "read",
    [
        read_jsonl,
        read_parquet,
        iter_zip,
        read_image,
        read_audio,
        decode_video,
        partial(TokenFile, length=4, dtype=np.uint16),
    ],
)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, read: Callable[..., Any]) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="Not a regular file") as raised:
        next(iter(read(path)))
    assert os.fspath(raised.value.filename) == str(path)
