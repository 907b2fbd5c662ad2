"""The exceptions and warnings of the library.

::

    SpdlAsyncError (Exception)
    ├── BuildError (ValueError)          a description that cannot work; raised by verbs and build()
    ├── RunStateError (RuntimeError)     a run used before it is entered, twice, or after its end
    ├── BudgetError (ValueError)         what one stage gathers can never fit into max_bytes
    ├── TooManyFailures (RuntimeError)   a skip policy's budget is spent; carries the records
    ├── ShutdownTimeout (TimeoutError)   user code still ran when the time to stop was over
    ├── StageTimeout (TimeoutError)      a call took longer than its stage's timeout allows
    ├── CollateError (ValueError)        samples that cannot be stacked into one batch
    ├── DeviceError (RuntimeError)       a batch that cannot go to a device, or a device that is not there
    ├── ArchiveError (ValueError)        a damaged or hostile archive; has archive, member and offset
    ├── FetchError (OSError)             an object that a server or a store did not give
    └── DecodeError (ValueError)         data that is no readable picture, sound, video, text or array

    UnusedBuilderWarning (UserWarning)   the result of a builder verb was thrown away

An exception that user code raises inside a stage is none of these: the consumer gets the very
object that was raised, with its own traceback, and a note that names the stage and the item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spdl_async.statistics import FailureRecord


class SpdlAsyncError(Exception):
    """Base of every exception that the library itself makes."""


class BuildError(SpdlAsyncError, ValueError):
    """A pipeline description that cannot work; the message names the stage and the fix."""


class BudgetError(SpdlAsyncError, ValueError):
    """One stage gathers more bytes than ``build(max_bytes=)`` allows; the message has both numbers."""


class RunStateError(SpdlAsyncError, RuntimeError):
    """A run was used in a state that does not allow it: not entered, entered twice, or closed."""


class TooManyFailures(SpdlAsyncError, RuntimeError):  # noqa: N818 -- the word users look for
    """A skip policy has met more failures than it allows.

    Attributes:
        records: what failed, in the order in which it was counted (at most the first 1,000).
    """

    def __init__(self, message: str, records: Sequence[FailureRecord] = ()) -> None:
        super().__init__(message)
        self.records = tuple(records)


class ShutdownTimeout(SpdlAsyncError, TimeoutError):  # noqa: N818 -- mirrors TimeoutError
    """User code still ran when ``shutdown_timeout`` was over; names the stage, shows the stack."""


class StageTimeout(SpdlAsyncError, TimeoutError):  # noqa: N818 -- mirrors TimeoutError
    """A call took longer than the ``timeout`` of its stage.

    Attributes:
        stage: the stage's name.
        index: index of the source item, from 0.
        seconds: the time that the call had.
    """

    def __init__(
        self, message: str, *, stage: str = "", index: int = -1, seconds: float = 0.0
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.index = index
        self.seconds = seconds


class CollateError(SpdlAsyncError, ValueError):
    """Samples that cannot be stacked: names both samples, the field, shapes and dtypes.

    Attributes:
        samples: positions in the batch of those that do not fit, from 0; empty where none is concerned.
    """

    def __init__(self, message: str, *, samples: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.samples = samples


class DeviceError(SpdlAsyncError, RuntimeError):
    """A batch that cannot go to a device, or a device that cannot be used; says why, and what to do.

    Attributes:
        field: the part of the batch that is concerned, such as ``batch['image'][0]``; empty where none is.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class DecodeError(SpdlAsyncError, ValueError):
    """Data that cannot be decoded; the message says what is wrong with it.

    Attributes:
        path: the file, or None where only its bytes were given.
        line: the line of a text, from 1; None where there are no lines.
        offset: the byte where the damage was seen, from 0 (of a compressed text: in what it
            decompresses to); None where that is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        line: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.line = line
        self.offset = offset


class FetchError(SpdlAsyncError, OSError):
    """An object that could not be fetched; the message says why, and after how many attempts.

    Attributes:
        url: the object, without passwords, signatures and tokens.
        status: the HTTP status of the last answer; None where there was none that decided it.
        attempts: how many requests were made; 1 for object stores, whose client does not tell.
    """

    def __init__(
        self, message: str, *, url: str = "", status: int | None = None, attempts: int = 1
    ) -> None:
        super().__init__(message)
        self.url = url
        self.status = status
        self.attempts = attempts


class ArchiveError(SpdlAsyncError, ValueError):
    """An archive that cannot be read on: damaged, cut short, hostile, or not what was asked for.

    Attributes:
        archive: path or name of the archive.
        member: name of the member or key of the sample that is concerned; empty where none is known.
        offset: byte in the (decompressed) archive at which the trouble is; -1 where it is not known.
    """

    def __init__(
        self, message: str, *, archive: str = "", member: str = "", offset: int = -1
    ) -> None:
        super().__init__(message)
        self.archive = archive
        self.member = member
        self.offset = offset


class UnusedBuilderWarning(UserWarning):
    """The result of a builder verb was never used, so the verb had no effect."""


def note_once(error: BaseException, note: str) -> None:
    """Add a note to an exception, unless it has that one or takes none."""
    try:
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    except Exception:  # noqa: BLE001 -- a frozen dataclass as exception refuses; it is raised as it is
        return
