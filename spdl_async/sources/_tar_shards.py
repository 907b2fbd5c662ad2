"""``TarShards``: the samples of many tar archives, as a source."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from spdl_async import DROP, Drop
from spdl_async.sources._patterns import expand_shards, is_url

if TYPE_CHECKING:
    from typing import TypedDict

    from spdl_async.io import SampleDecoder, SkippedMember
    from spdl_async.io._samples import Rename

    class SampleOptions(TypedDict, total=False):
        """Options of ``tar_samples``."""

        rename: Rename | None
        extensions: Sequence[str] | None
        missing: Literal["error", "skip"]
        duplicates: Literal["error", "first", "last"]
        damaged: Literal["error", "skip"]
        on_skip: Callable[[SkippedMember], object] | None
        max_member_bytes: int | None


Sample = dict[str, Any]


class TarShards:
    """The samples of many tar archives, one archive after the other: give it to ``add_source``.

    Each pass reads the shards in an order of its own when ``shuffle`` says so: it depends on the seed and the
    number of the epoch, which the pipeline tells by ``set_epoch``, and on nothing else. Only shards are
    shuffled here; a ``.shuffle(1000)`` behind it mixes samples of neighbouring shards.

    One thread reads, which is enough for local files, whose contents are mapped and not read. Where
    opening a shard takes time, as from an object store, ``.add_source(urls).pipe(fetch, concurrency=8)
    .expand(tar_samples, concurrency=4)`` has several at work; and where decoding does, leave
    ``decoders`` out and put ``.pipe(SampleDecoder(), concurrency=8)`` below.

    A damaged shard is an ``ArchiveError`` behind the samples that were whole. ``damaged="skip"`` goes on
    with the next shard and says so in the log; so does ``add_source(…, on_error="skip")``, which has it
    in ``run.failures``. Any number of passes may go on at once. The number of samples is not known, so
    there is no ``len()``.

    Args:
        urls: paths and patterns, as for :func:`expand_shards`, which looks once, when this is made.
        shuffle: shuffle the shards.
        seed: makes the orders what they are.
        decoders: functions by extension, as for ``SampleDecoder``; default: data stay as they are.
        open: makes of a shard's name what ``tar_samples`` reads, and is called when it is the shard's
            turn; a stream is closed afterwards. Default: the name is a path. Needed for URLs but ``file://``.
        options: those of ``tar_samples``: ``rename``, ``extensions``, ``missing``, ``duplicates``,
            ``damaged``, ``on_skip``, ``max_member_bytes``.

    Attributes:
        shards: the names of the shards, before shuffling.

    Raises:
        FileNotFoundError: a wildcard matches nothing.
        ValueError: there are no shards, a URL without ``open``, or an option that is wrong.
        TypeError: what is no name, no function, no option.

    Example:
        >>> import pathlib, tempfile
        >>> from spdl_async import PipelineBuilder
        >>> from spdl_async.io import TarWriter, default_decoders
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> with TarWriter(folder / "train-{:03d}.tar", max_count=2) as writer:
        ...     for n in range(4):
        ...         writer.write({"__key__": f"{n:04d}", "cls": n})
        >>> shards = TarShards(folder / "train-{000..001}.tar", decoders=default_decoders())
        >>> [sample["cls"] for sample in PipelineBuilder().add_source(shards).build()]
        [0, 1, 2, 3]
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        shuffle: bool = False,
        seed: int = 0,
        decoders: Mapping[str, Callable[[Any], Any]] | None = None,
        open: Callable[[str], Any] | None = None,  # noqa: A002 -- what it does
        **options: Unpack[SampleOptions],
    ) -> None:
        from spdl_async.io import SampleDecoder, tar_samples  # what pushes items needs none of it

        self.shards = tuple(expand_shards(urls))
        if not self.shards:
            raise ValueError("TarShards got no shards")
        if open is None:
            open = _path_of  # noqa: A001 -- as above
            for shard in self.shards:
                open(shard)
        elif not callable(open):
            raise TypeError(f"open is a function of a shard's name, not {open!r}")
        self._read: Callable[..., Iterator[Sample]] = partial(tar_samples, **options)
        self._read(b"")  # hears of wrong options now
        self._open = open
        self._shuffle = shuffle
        self._seed = seed
        self._decode = None if decoders is None else SampleDecoder(decoders)
        # The pipeline tells the epoch in the thread that reads next, where other passes may go on.
        self._told = threading.local()
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the passes that begin from now on, in this thread before others."""
        self._told.epoch = epoch
        self._epoch = epoch

    def order(self, epoch: int) -> list[str]:
        """Return the shards in the order in which an epoch reads them."""
        shards = list(self.shards)
        if self._shuffle:
            random.Random(f"{self._seed} {epoch}").shuffle(shards)
        return shards

    def __iter__(self) -> Iterator[Sample]:
        epoch = getattr(self._told, "epoch", self._epoch)
        samples = _Pass(iter(self.order(epoch)), self._open, self._decode, self._read)
        return cast(
            "Iterator[Sample]", samples
        )  # DROP is for the pipeline, which asks on after errors

    def __repr__(self) -> str:
        first = self.shards[0]
        return f"<TarShards: {len(self.shards)} from {first!r}{', shuffled' * self._shuffle}>"


class _Pass(Generator[Sample | Drop, None, None]):
    """One pass. Unlike a generator it goes on behind an error: with the next sample or shard.

    A pipeline takes a source that ends right behind an error for one that cannot go on. So an error in
    the last shard is followed by DROP, which the pipeline drops, and then by the end.
    """

    def __init__(
        self,
        shards: Iterator[str],
        open_shard: Callable[[str], Any],
        decode: SampleDecoder | None,
        read: Callable[..., Iterator[Sample]],
    ) -> None:
        self._shards = shards
        self._open = open_shard
        self._decode = decode
        self._read = read
        self._samples: Iterator[Sample] | None = None
        self._stream: Any = None
        self._failed = False

    def send(self, _: None) -> Sample | Drop:
        """Return the next sample."""
        try:
            return self._next()
        except StopIteration:
            if not self._failed:
                raise
            self._failed = False
            return DROP
        except BaseException:
            self._failed = True
            raise

    def _next(self) -> Sample:
        while True:
            samples = self._samples
            if samples is None:
                samples = self._samples = self._next_shard()
            try:
                sample = next(samples, None)
            except BaseException:
                self._leave()
                raise
            if sample is not None:
                self._failed = False
                return sample if self._decode is None else self._decode(sample)
            self._leave()

    def throw(
        self,
        kind: Any,
        value: Any = None,
        traceback: TracebackType | None = None,
    ) -> Sample | Drop:
        """End the pass with an exception."""
        self.close()
        return super().throw(kind, value, traceback)

    def close(self) -> None:
        """End the pass, and close the shard that is open."""
        self._shards = iter(())
        self._leave()

    def _next_shard(self) -> Iterator[Sample]:
        shard = next(self._shards)  # its end is ours
        opened = self._open(shard)
        if hasattr(opened, "read"):
            self._stream = opened
        try:
            return self._read(opened, name=shard)
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        samples, self._samples = self._samples, None
        stream, self._stream = self._stream, None
        if isinstance(samples, Generator):
            samples.close()
        if hasattr(stream, "close"):
            stream.close()


def _path_of(shard: str) -> str:
    if shard.startswith("file://"):
        from urllib.parse import unquote, urlsplit

        return unquote(urlsplit(shard).path)
    if is_url(shard):
        raise ValueError(
            f"{shard!r} is no local file: give open=, a function of the name that returns bytes or a stream; "
            f"or fetch in the pipeline, .add_source(urls).pipe(fetch).expand(tar_samples)"
        )
    return shard
