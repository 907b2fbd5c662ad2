"""Cut videos into short clips and put these into batches: one video becomes many clips.

    python examples/video_clips.py FOLDER [--frames 16] [--fps 8] [--size 112]
    python examples/video_clips.py --smoke

``--smoke`` makes a few short videos in a temporary folder and takes a few seconds.

What it shows:

- ``stream_video`` as a stage of 1→n: each video gives as many chunks of frames as it has, no more
  than one of them in memory for each thread, in the order of the videos.
- A filter for the short rest at a video's end, batches over the borders between videos.
- An async consumer that leaves early: the videos that were being decoded are closed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spdl_async import Pipeline, PipelineBuilder
from spdl_async.collate import collate
from spdl_async.io import stream_video, video_info

if TYPE_CHECKING:
    from torch import Tensor

EXTENSIONS = frozenset({".avi", ".mkv", ".mov", ".mp4", ".ts", ".webm"})


def find_videos(folder: Path) -> list[Path]:
    """List the videos below a folder, by their names."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS)


def build(
    paths: list[Path], *, frames: int, fps: float, size: int, batch_size: int, threads: int
) -> Pipeline[Tensor]:
    """Describe the loading: batches of shape (batch, frames, size, size, 3), uint8."""
    to_clips = partial(stream_video, chunk=frames, fps=fps, size=size)
    return (
        PipelineBuilder()
        .add_source(paths)
        .pipe(to_clips, name="to_clips", concurrency=threads, on_error="skip")
        .filter(lambda clip: len(clip) == frames, name="whole clips")
        .aggregate(batch_size)
        .pipe(collate)
        .build(name="clips")
    )


async def look(pipeline: Pipeline[Tensor], *, most: int) -> None:
    """Take batches, up to a number of them, and say what they are."""
    async with pipeline.run() as run:
        taken = 0
        async for batch in run:
            taken += 1
            print(f"batch {taken}: {tuple(batch.shape)}, mean level {batch.float().mean():.1f}")
            if taken == most:
                break
        for failure in run.failures:
            print(f"skipped: {failure.message}")
        print(run.statistics())


def make_smoke_videos(folder: Path) -> None:
    """Make short videos of a moving pattern, of several lengths; and one that is cut short."""
    import av

    random = np.random.default_rng(0)
    for number in range(6):
        pattern = random.integers(0, 256, (6, 8, 3), np.uint8).repeat(16, 0).repeat(16, 1)
        with av.open(str(folder / f"{number}.mkv"), "w") as container:
            stream = container.add_stream("mpeg4", rate=16)
            stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
            for at in range(24 + 8 * number):
                frame = av.VideoFrame.from_ndarray(np.roll(pattern, 2 * at, 1), "rgb24")
                frame.pts, frame.time_base = at, Fraction(1, 16)
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    whole = (folder / "5.mkv").read_bytes()
    (folder / "6-cut.mkv").write_bytes(whole[: len(whole) // 2])


def main() -> None:
    """Read the options and look at the batches."""
    parser = argparse.ArgumentParser(description="Cut videos into clips and batch them.")
    parser.add_argument("folder", type=Path, nargs="?", help="videos, also in sub-folders")
    parser.add_argument("--frames", type=int, default=8, help="frames of a clip")
    parser.add_argument("--fps", type=float, default=8.0, help="frames a second of a clip")
    parser.add_argument("--size", type=int, default=112, help="height and width in pixels")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--batches", type=int, default=0, help="stop after so many; 0: never")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--smoke", action="store_true", help="use a few made-up videos")
    options = parser.parse_args()
    if options.folder is None and not options.smoke:
        parser.error("give a FOLDER, or --smoke")
    with tempfile.TemporaryDirectory() as made:
        if options.smoke:
            make_smoke_videos(Path(made))
        paths = find_videos(Path(made) if options.smoke else options.folder)
        if not paths:
            parser.error(f"there is no video below {options.folder}")
        first = video_info(paths[0])
        print(f"{len(paths)} videos; the first: {first.frames} frames, {first.duration:.2f} s")
        pipeline = build(
            paths,
            frames=options.frames,
            fps=options.fps,
            size=options.size,
            batch_size=options.batch_size,
            threads=options.threads,
        )
        asyncio.run(look(pipeline, most=options.batches))
        if options.smoke:
            print("once more, and left after one batch:")
            asyncio.run(look(pipeline, most=1))


if __name__ == "__main__":
    main()
