"""Samples out of tar archives: members that lie together and have one key (WebDataset's convention).

The convention: `train/0001.jpg` and `train/0001.json`, one after the other, are one sample with the key
`train/0001` and the fields `jpg` and `json` (webdataset/webdataset, "The WebDataset Format").
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from spdl_async.errors import ArchiveError
from spdl_async.io._archive_input import check_source, name_of
from spdl_async.io._archive_members import SkippedMember, Skips, TarMember
from spdl_async.io._tar import MOST_BYTES, read_members

if TYPE_CHECKING:
    from spdl_async.io._tar import TarSource

logger = logging.getLogger("spdl_async")

Sample = dict[str, Any]
Rename = Mapping[str, str] | Callable[[str], tuple[str, str] | None]

KEY: Final = "__key__"
SHARD: Final = "__shard__"
OFFSET: Final = "__offset__"
_OURS: Final = 3  # keys that a sample begins with


def split_name(name: str) -> tuple[str, str] | None:
    """Split a member's name into key and extension, at the first dot of its last component.

    A leading ``./`` is no part of the key; the folder is. Extensions are put into lower case.

    Args:
        name: the path of a member.

    Returns:
        Key and extension; ``None`` for what belongs to no sample: hidden files, whose names begin with
        a dot, files in a folder ``__MACOSX``, files without an extension.

    Example:
        >>> split_name("./train.v1/a.b.seg.PNG")
        ('train.v1/a', 'b.seg.png')
        >>> split_name("235 Track 2.0 (x).mp3")  # the rule; tar_samples(rename=…) can have another
        ('235 Track 2', '0 (x).mp3')
        >>> split_name("__MACOSX/._x.jpg"), split_name("noext")
        (None, None)
    """
    while name.startswith("./"):
        name = name[2:]
    slash = name.rfind("/") + 1
    dot = name.find(".", slash)
    if dot <= slash or dot + 1 == len(name):
        return None
    if "__MACOSX" in name and "__MACOSX" in name[:slash].split("/"):
        return None
    return name[:dot], name[dot + 1 :].lower()


def tar_samples(
    shard: TarSource,
    *,
    rename: Rename | None = None,
    extensions: Sequence[str] | None = None,
    missing: Literal["error", "skip"] = "error",
    duplicates: Literal["error", "first", "last"] = "error",
    damaged: Literal["error", "skip"] = "error",
    name: str | None = None,
    on_skip: Callable[[SkippedMember], object] | None = None,
    max_member_bytes: int | None = MOST_BYTES,
) -> Iterator[Sample]:
    """Iterate over the samples of one tar archive, a shard, by WebDataset's convention.

    Members that lie together and have the same key (:func:`split_name`) make a sample. Made for
    ``.pipe(fetch, concurrency=8).expand(tar_samples, concurrency=4)``: with ``on_error="skip"`` a
    damaged shard is one failure of the run, behind the samples that it gave. The members' data are as
    :func:`iter_tar` has them, and all of its formats are read.

    Args:
        shard: a path, a bytes-like object or a binary stream. An object store's URL is fetched before.
        rename: names for fields, as in ``{"jpeg": "jpg"}`` (what is not in it keeps its own); or a
            function in place of :func:`split_name`, of a member's name: it returns key and field, neither
            of them empty, or ``None``.
        extensions: what each sample must have; other fields are left in it.
        missing: what becomes of samples that lack one of ``extensions``: an error, or they are left
            out, which one log record counts.
        duplicates: what becomes of a second field of the same name in a sample: an error with both
            members and their offsets, or the first or the last one stays. A key that comes back later in
            the shard is a duplicate too: ``"first"`` leaves the later members out; with ``"last"`` it is
            an error all the same, because the earlier sample has been handed on.
        damaged: what damage of the archive does: an error behind the samples that were whole, or the
            rest of the shard is left out with a warning in the log that says where.
        name: what errors, log records and samples call the shard; default: its path, or the stream's
            ``name``.
        on_skip: called with each :class:`SkippedMember`: what is no file, and what has no key.
        max_member_bytes: as for :func:`iter_tar`.

    Yields:
        Dicts of the members' data by extension, and ``__key__``, ``__shard__`` (its name) and
        ``__offset__`` (byte of the sample's first header).

    Raises:
        ArchiveError: see the policies above; it has the shard, the member and the offset.
        OSError: the file cannot be opened or read.
        TypeError: ``shard`` is something else, or ``rename`` neither mapping nor function.
        ValueError: a policy that is none of its words, or ``missing`` without ``extensions``; or, at the
            member that it was given, a ``rename`` that returned neither key and field nor ``None``.

    Example:
        >>> import io
        >>> from spdl_async.io import TarWriter
        >>> file = io.BytesIO()
        >>> with TarWriter(file) as shard:
        ...     shard.write({"__key__": "0001", "txt": "a cat", "cls": 3})
        >>> for sample in tar_samples(file.getvalue(), name="cats.tar"):
        ...     print(sample["__key__"], bytes(sample["txt"]), sample["__shard__"])
        0001 b'a cat' cats.tar
    """
    check_source(shard, "tar_samples")
    _check_word("missing", missing, ("error", "skip"))
    _check_word("duplicates", duplicates, ("error", "first", "last"))
    _check_word("damaged", damaged, ("error", "skip"))
    if missing == "skip" and not extensions:
        raise ValueError('missing="skip" needs extensions=: what each sample must have')
    if isinstance(extensions, str):
        raise ValueError(f"extensions is a sequence of names: ({extensions!r},)")
    archive = name_of(shard) if name is None else name
    # One log record for each shard: what is no file is counted with what has no key.
    skips = Skips(archive, on_skip)
    members = read_members(shard, archive, skips, max_member_bytes)
    grouping = _Grouping(skips, _splitter(rename, archive), duplicates)
    return grouping.samples(members, frozenset(extensions or ()), missing, damaged == "skip")


def _check_word(option: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ValueError(f"{option} is one of {', '.join(words)}, not {value!r}")


def _splitter(rename: Rename | None, archive: str) -> Callable[[str], tuple[str, str] | None]:
    if rename is None:
        return split_name
    if callable(rename):
        return _checked(rename, archive)
    if not isinstance(rename, Mapping):
        raise TypeError(
            f"rename is a mapping of fields' names, or a function of a member's name, not {rename!r:.80}"
        )
    fields = dict(rename)
    for old, new in fields.items():
        if not (isinstance(new, str) and new):
            raise ValueError(
                f"rename: the new name of {old!r} must be a str, not empty, not {new!r:.80}"
            )

    def renamed(name: str) -> tuple[str, str] | None:
        split = split_name(name)
        return None if split is None else (split[0], fields.get(split[1], split[1]))

    return renamed


def _checked(
    rename: Callable[[str], tuple[str, str] | None], archive: str
) -> Callable[[str], tuple[str, str] | None]:
    def checked(name: str) -> tuple[str, str] | None:
        split = rename(name)
        if split is None:
            return None
        if isinstance(split, (tuple, list)) and len(split) == 2:
            key, field = split
            if isinstance(key, str) and isinstance(field, str) and key and field:
                return key, field
        raise ValueError(
            f"{archive}: rename of {name!r} returned {split!r:.200}: it must return (key, field), two "
            f"strings that are not empty, or None for a member that belongs to no sample"
        )

    return checked


class _Grouping:
    """Puts the members of one shard together into samples."""

    def __init__(
        self,
        skips: Skips,
        split: Callable[[str], tuple[str, str] | None],
        duplicates: str,
    ) -> None:
        self.archive = skips.archive
        self.skips = skips
        self.split = split
        self.duplicates = duplicates
        self.seen: dict[str, int] = {}  # offset of each key's first member
        self.incomplete = 0

    def samples(
        self,
        members: Iterator[TarMember],
        required: frozenset[str],
        missing: str,
        tolerant: bool,
    ) -> Iterator[Sample]:
        """Yield the samples; what is whole before damage comes before the error."""
        whole: Sample = {}
        try:
            for sample in self._groups(members):
                if required <= sample.keys():
                    whole = sample
                    yield sample
                elif missing == "skip":
                    self.incomplete += 1
                else:
                    raise self._lacks(sample, required)
        except _DamageError as damage:
            sample, error = damage.sample, damage.error
            # The sample at the damage is whole when the damaged member is not its own, or when it
            # has what is asked for, which is what the one before it had where nothing is.
            fields = (required or whole.keys()) or {""}
            if sample and required <= sample.keys():
                split = self.split(error.member) if error.member else None
                if (split and split[0] != sample[KEY]) or fields <= sample.keys():
                    yield sample
            if not tolerant:
                raise error from None
            # As text: a record that somebody keeps must not keep the file mapped.
            logger.warning("%s; the rest of this shard is left out", str(error))
        finally:
            if self.incomplete:
                logger.warning(
                    "%s: left out %d samples without all of %s",
                    self.archive,
                    self.incomplete,
                    ", ".join(sorted(required)),
                )

    def _groups(self, members: Iterator[TarMember]) -> Iterator[Sample]:
        split, seen, archive = self.split, self.seen, self.archive
        sample: Sample = {}
        taken: list[TarMember] = []  # of the sample's fields, in their order
        key: str | None = None
        dropped = False
        while True:
            try:
                member = next(members, None)
            except ArchiveError as error:
                raise _DamageError(error, {} if dropped else sample) from error
            if member is None:
                break
            parts = split(member.name)
            if parts is None:
                self.skips.add(member.name, member.offset, _reason(member.name))
                continue
            if parts[0] != key:
                taken.clear()  # who changes the sample may let go of its data
                if sample and not dropped:
                    yield sample
                key = parts[0]
                dropped = key in seen and self._comes_back(member, key)
                sample = {KEY: key, SHARD: archive, OFFSET: member.offset}
                seen.setdefault(key, member.offset)
            if dropped:
                self.skips.add(member.name, member.offset, "duplicate")
            elif parts[1] not in sample:
                sample[parts[1]] = member.data
                taken.append(member)
            elif self._replaces(member, sample, parts[1], taken):
                sample[parts[1]] = member.data
        taken.clear()
        if sample and not dropped:
            yield sample

    def _comes_back(self, member: TarMember, key: str) -> bool:
        """Tell that a sample of which the first part has been handed on is dropped."""
        if self.duplicates == "first":
            return True
        advice = (
            'its members must lie together; duplicates="first" leaves the later ones out'
            if self.duplicates == "error"
            else 'the earlier one has been handed on, so duplicates="last" cannot replace it'
        )
        raise self._error(
            f"has sample {key!r} twice, at byte {self.seen[key]:,} and", member, advice
        )

    def _replaces(
        self, member: TarMember, sample: Sample, field: str, taken: list[TarMember]
    ) -> bool:
        """Tell whether a field that the sample has is replaced."""
        if field in (KEY, SHARD, OFFSET):
            self.skips.add(member.name, member.offset, "reserved name")
            return False
        if self.duplicates == "error":
            first = taken[list(sample).index(field) - _OURS]
            raise self._error(
                f"has field {field!r} of sample {sample[KEY]!r} twice, at byte {first.offset:,} "
                f"({first.name!r}) and",
                member,
                'duplicates="first" or "last" keeps one of them',
            )
        self.skips.add(member.name, member.offset, "duplicate")
        return self.duplicates == "last"

    def _lacks(self, sample: Sample, required: frozenset[str]) -> ArchiveError:
        lacking = ", ".join(sorted(required - sample.keys()))
        has = ", ".join(sorted(sample.keys() - {KEY, SHARD, OFFSET}))
        return ArchiveError(
            f"{self.archive}: sample {sample[KEY]!r} at byte {sample[OFFSET]:,} has no {lacking}; it has "
            f'{has}; missing="skip" leaves such samples out',
            archive=self.archive,
            member=sample[KEY],
            offset=sample[OFFSET],
        )

    def _error(self, what: str, member: TarMember, advice: str) -> ArchiveError:
        return ArchiveError(
            f"{self.archive} {what} at byte {member.offset:,} ({member.name!r}): {advice}",
            archive=self.archive,
            member=member.name,
            offset=member.offset,
        )


class _DamageError(Exception):
    """Carries damage of the archive past the policies, with the sample that was being made."""

    def __init__(self, error: ArchiveError, sample: Sample) -> None:
        super().__init__(error)
        self.error = error
        self.sample = sample


def _reason(name: str) -> str:
    base = name[name.rfind("/") + 1 :]
    if base.startswith(".") or "__MACOSX" in name.split("/"):
        return "hidden file"
    return "file without an extension" if "." not in base else "file without a key"
