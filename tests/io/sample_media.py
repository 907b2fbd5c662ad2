"""Sounds and videos for the tests of decoding: made here, none is stored."""

from __future__ import annotations

import functools
import importlib
import io
import os
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEP = 5
"""Frame n of a video is grey of level ``STEP * n``, with a red corner at its top left."""


def video(
    frames: int = 48,
    *,
    height: int = 48,
    width: int = 64,
    codec: str = "libx264",
    container: str = "mp4",
    pixels: str = "yuv420p",
    group: int = 12,
    b_frames: int | None = 2,
    rotation: int = 0,
    mirrored: bool = False,
    milliseconds: tuple[int, ...] | None = None,
    options: tuple[tuple[str, str], ...] = (),
) -> bytes:
    """A video of 25 frames a second, or with the frames at the given times."""
    file = io.BytesIO()
    av: Any = importlib.import_module("av")
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=25, options=dict(options))
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        stream.codec_context.gop_size = group
        if b_frames is not None:
            stream.codec_context.max_b_frames = b_frames
        if codec.startswith("mpeg"):
            stream.bit_rate = 2_000_000
        if milliseconds is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        if rotation or mirrored:
            stream.set_display_rotation(rotation, mirrored)
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(number, height, width), "rgb24")
            frame.pts = number if milliseconds is None else milliseconds[number]
            frame.time_base = Fraction(1, 25 if milliseconds is None else 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()


cached_video = functools.cache(video)


def picture(number: int, height: int = 48, width: int = 64) -> NDArray[np.uint8]:
    pixels = np.full((height, width, 3), STEP * number, np.uint8)
    pixels[: height // 2, : width // 2] = (250, 20, 20)
    return pixels


def numbers(frames: NDArray[np.uint8]) -> list[int]:
    """Which frames these are, from the grey of their darkest corner's inside."""
    side = slice(-max(1, frames.shape[1] // 6), None), slice(-max(1, frames.shape[2] // 6), None)
    corners = frames[:, side[0], side[1]].mean(axis=(1, 2, 3))
    return [round(float(value) / STEP) for value in corners]


@functools.cache
def tone(frames: int = 4_001, channels: int = 2) -> NDArray[np.float32]:
    """Sines of different pitch in each channel; shape (frames, channels)."""
    at = np.arange(frames)[:, None] * (0.03 + 0.02 * np.arange(channels))
    samples: NDArray[np.float32] = (0.4 * np.sin(at)).astype(np.float32)
    samples.flags.writeable = False
    return samples


def sound(
    format: str,  # noqa: A002 -- soundfile's word
    subtype: str | None = None,
    *,
    rate: int = 48_000,
    samples: NDArray[np.float32] | None = None,
) -> bytes:
    file = io.BytesIO()
    soundfile: Any = importlib.import_module("soundfile")
    data = tone() if samples is None else samples
    soundfile.write(file, data, rate, format=format, subtype=subtype)
    return file.getvalue()


def chunk(name: bytes, body: bytes, *, size: int | None = None, pad: bool = True) -> bytes:
    """A chunk of a RIFF file; ``size`` is what it claims."""
    claimed = len(body) if size is None else size
    return name + claimed.to_bytes(4, "little") + body + b"\x00" * (len(body) % 2 and pad)


def wav(*chunks: bytes, riff: bytes = b"RIFF", size: int | None = None) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return riff + (len(body) if size is None else size).to_bytes(4, "little") + body


def format_chunk(
    tag: int = 1, channels: int = 1, rate: int = 8_000, bits: int = 16, *, block: int | None = None
) -> bytes:
    block = channels * ((bits + 7) // 8) if block is None else block
    numbers = ((tag, 2), (channels, 2), (rate, 4), (rate * block, 4), (block, 2), (bits, 2))
    return chunk(b"fmt ", b"".join(value.to_bytes(size, "little") for value, size in numbers))


def threads_beside(work: Callable[[], object], callers: int = 8) -> int:
    """How many OS threads there are, at most, while several threads work, beside these."""
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        pytest.skip("needs /proc")
    together, done = threading.Barrier(callers), threading.Event()
    failures = list[BaseException]()

    def call() -> None:
        together.wait()
        try:
            work()
        except BaseException as error:
            failures.append(error)

    before = len(list(tasks.iterdir()))
    most = 0

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, len(os.listdir(tasks)))

    threads = [threading.Thread(target=call) for _ in range(callers)]
    watcher = threading.Thread(target=watch)
    for thread in (watcher, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    watcher.join()
    assert not failures
    return max(0, most - before - callers - 1)
