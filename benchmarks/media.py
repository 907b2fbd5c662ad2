"""Sounds and videos to arrays: `python -m benchmarks.media [--quick] [--threads N] [--rounds N] [--cpu]`.

The reference is what threads can do without any framework: N threads over one shared iterator, the
bare loop that one writes with PyAV or soundfile, a plain `queue.Queue`, and the main thread that
takes the arrays. Both sides read the same files, which are made in a temporary folder, with one
native thread for each of theirs.
"""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks._measure import Contestant, Race, Target, machine, missed, run_race, table
from spdl_async import PipelineBuilder
from spdl_async.io import decode_video, read_audio

if TYPE_CHECKING:
    from numpy.typing import NDArray

Load = Callable[[str], "NDArray[Any]"]
CLIP_FRAMES = 50
RATE = 16_000


@dataclass(frozen=True, kw_only=True)
class Work:
    """Files, how many threads may decode them, the shape that every result must have, and the clock."""

    paths: Sequence[str]
    threads: int
    shape: tuple[int, ...]
    clock: Callable[[], float] = time.perf_counter

    def rate(self, arrays: Iterable[NDArray[Any]]) -> float:
        """Give files a second, from the first request to the last array."""
        started, taken = self.clock(), 0
        for array in arrays:
            if array.shape != self.shape:
                raise AssertionError(f"{array.shape} came, not {self.shape}")
            taken += 1
        if taken != len(self.paths):
            raise AssertionError(f"{taken} arrays arrived of {len(self.paths)}")
        return taken / (self.clock() - started)


def bare(work: Work, load: Load) -> float:
    """Give the rate of threads without a framework."""
    return work.rate(_bare(work, load))


def _bare(work: Work, load: Load) -> Iterator[NDArray[Any]]:
    shared, lock = iter(work.paths), threading.Lock()
    done: queue.Queue[NDArray[Any] | None] = queue.Queue(4 * work.threads)

    def worker() -> None:
        try:
            while True:
                with lock:
                    path = next(shared, None)
                if path is None:
                    break
                done.put(load(path))
        finally:
            done.put(None)

    workers = [threading.Thread(target=worker) for _ in range(work.threads)]
    for thread in workers:
        thread.start()
    running = len(workers)
    while running:
        array = done.get()
        if array is None:
            running -= 1
        else:
            yield array
    for thread in workers:
        thread.join()


def ours(work: Work, load: Load) -> float:
    """Give the rate of spdl_async in ordinary code."""
    pipeline = PipelineBuilder().add_source(work.paths).pipe(load, concurrency=work.threads).build()
    with pipeline.run_sync() as run:
        return work.rate(run)


def with_pyav(path: str) -> NDArray[Any]:
    """Decode all frames as one does with PyAV alone."""
    import av

    with av.open(path, "r") as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        stream.thread_count = 1
        reformatter = av.video.reformatter.VideoReformatter()
        frames = [
            reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
            for frame in container.decode(stream)
        ]
    return np.stack(frames)


def three_with_pyav(path: str) -> NDArray[Any]:
    """Decode up to the last of three frames, which is what a loop without a plan does."""
    import av

    wanted, frames = {30, 40, 45}, list[Any]()
    with av.open(path, "r") as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        stream.thread_count = 1
        for number, frame in enumerate(container.decode(stream)):
            if number in wanted:
                frames.append(frame.to_ndarray(format="rgb24", threads=1))
            if len(frames) == len(wanted):
                break
    return np.stack(frames)


def with_soundfile(path: str) -> NDArray[Any]:
    """Decode as one does with soundfile alone."""
    import soundfile

    samples, _ = soundfile.read(path, dtype="float32", always_2d=True)
    return np.ascontiguousarray(samples.T)


def our_audio(path: str) -> NDArray[Any]:
    """Decode with `read_audio`."""
    return read_audio(path)[0]


def make_clips(folder: Path, count: int) -> list[str]:
    """Write H.264 clips of 320x240, two seconds each."""
    import av

    random = np.random.default_rng(0)
    paths = [str(folder / f"{number}.mp4") for number in range(count)]
    for path in paths:
        noise = random.integers(0, 256, (15, 20, 3), np.uint8).repeat(16, 0).repeat(16, 1)
        with av.open(path, "w") as container:
            stream = container.add_stream("libx264", rate=25, options={"preset": "veryfast"})
            stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
            stream.codec_context.gop_size = 15
            for number in range(CLIP_FRAMES):
                frame = av.VideoFrame.from_ndarray(np.roll(noise, 3 * number, 1), "rgb24")
                frame.pts, frame.time_base = number, Fraction(1, 25)
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    return paths


def make_sounds(folder: Path, count: int, kind: str, seconds: int) -> list[str]:
    """Write sounds of one channel."""
    import soundfile

    random = np.random.default_rng(0)
    paths = [str(folder / f"{number}.{kind}") for number in range(count)]
    for path in paths:
        samples = np.cumsum(random.normal(0, 0.01, seconds * RATE))
        soundfile.write(path, samples / max(1.0, abs(samples).max()), RATE)
    return paths


def races(options: argparse.Namespace, folder: Path) -> Iterator[Race]:
    """Put the contestants for each kind of files together."""
    quick = options.quick
    new = partial(
        Work,
        threads=options.threads,
        clock=time.process_time if options.cpu else time.perf_counter,
    )
    clips = make_clips(folder, 2 if quick else 24)
    whole = new(paths=clips, shape=(CLIP_FRAMES, 240, 320, 3))
    yield _race("video", "H.264 clips of 50 frames, 320x240", whole, with_pyav, decode_video)
    some = new(paths=clips * (1 if quick else 4), shape=(3, 240, 320, 3))
    indexed = partial(decode_video, indices=[30, 40, 45])
    yield _race("indices", "clips, three late frames of each", some, three_with_pyav, indexed)
    for kind, seconds, times in (("flac", 5, 8), ("mp3", 5, 2), ("wav", 5, 20)):
        paths = make_sounds(folder, 2 if quick else 40, kind, seconds)
        paths *= 1 if quick else times
        work = new(paths=paths, shape=(1, seconds * RATE))
        what = f"{kind.upper()} files of {seconds} s at {RATE:,} Hz"
        yield _race(kind, what, work, with_soundfile, our_audio)


def _race(key: str, what: str, work: Work, theirs: Load, mine: Load) -> Race:
    library = "soundfile" if theirs is with_soundfile else "PyAV"
    baseline = f"{library}, bare threads, queue.Queue"
    targets = (Target(bound=0.95, reference=baseline),)
    return Race(
        key=key,
        title=f"{len(work.paths)} {what}, {work.threads} threads",
        unit="files/s" if work.clock is time.perf_counter else "files per second of processor time",
        baseline=baseline,
        contestants=[
            Contestant(name=baseline, run=partial(bare, work, theirs)),
            Contestant(name="spdl_async, for", run=partial(ours, work, mine), targets=targets),
            Contestant(name="our decoder, bare threads", run=partial(bare, work, mine)),
        ],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run all races; the exit code is 0 whatever they show."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.media", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--threads", type=int, default=2, help="threads that decode")
    parser.add_argument("--rounds", type=int, help="rounds of each race (default 5)")
    parser.add_argument(
        "--cpu", action="store_true", help="count processor time, where the machine is busy"
    )
    options = parser.parse_args(argv)
    rounds = options.rounds or (1 if options.quick else 5)
    print(machine(("av", "soundfile", "soxr", "numpy")), flush=True)
    if options.quick:
        print("--quick: shows that everything runs; its sizes are too small for any verdict")
    started, bad = time.perf_counter(), list[str]()
    with tempfile.TemporaryDirectory(prefix="spdl-async-bench-") as folder:
        for race in races(options, Path(folder)):
            outcome = run_race(race, rounds=rounds, warm_up=not options.quick)
            print("\n" + table(outcome), flush=True)
            bad += missed(outcome)
    print(f"\n{time.perf_counter() - started:.0f} s; missed: {', '.join(bad) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
