"""What happens when user code fails, or takes too long."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Any, Literal

from spdl_async.errors import BuildError

MAX_ATTEMPTS = 1_000


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One failure of user code, as an ``on_error`` function gets it.

    It carries the exception itself, and that the frames in which it was raised: keep the record no
    longer than you need it. ``run.failures`` has records that keep nothing alive.

    Attributes:
        stage: the stage's name.
        index: index of the source item, from 0.
        path: ordinals below each 1→n stage.
        source: the source item where it is small (numbers, short str and bytes, paths, tuples of
            these), else a short text of its type; ``None`` for a failure of the source.
        exception: what was raised; to end the run with it, raise it.
        attempts: how often the op was called on the item.

    >>> from spdl_async import Failure, PipelineBuilder
    >>> def report(failure: Failure) -> None:
    ...     print(f"{failure.stage} on {failure.source!r}: {failure.exception}")
    >>> list(PipelineBuilder().add_source(["1", "x"]).pipe(int, on_error=report).build())
    int on 'x': invalid literal for int() with base 10: 'x'
    [1]
    """

    stage: str
    index: int
    path: tuple[int, ...]
    source: Any
    exception: Exception
    attempts: int


OnError = Literal["raise", "skip"] | Callable[[Failure], object]


@dataclass(frozen=True)
class Retry:
    """Call an op again on an item that it has failed on, after a while.

    The wait before call k + 1 is ``backoff × factor ** (k - 1)`` seconds, at most ``max_backoff``, less
    a random part of at most ``jitter`` of it. It holds no thread and none of the stage's concurrency;
    with input order the item keeps its place. The random part depends on the seed of ``build()``,
    the epoch, the stage and the item, so it is the same in each run with that seed. Only the last
    failure of an item counts for ``on_error`` and ``max_failures``.

    Attributes:
        attempts: calls in all, the first one included; at least 2, at most 1,000.
        backoff: seconds before the second call.
        factor: by how much each wait is longer than the one before; at least 1.
        max_backoff: the longest wait in seconds.
        jitter: the share of a wait that is random, 0 to 1, so that many calls that failed together
            do not come again together.
        on: the types of exceptions after which the call is made again.

    Raises:
        BuildError: a value that is out of range.

    >>> from spdl_async import PipelineBuilder, Retry
    >>> answers = iter([OSError("busy"), OSError("busy"), "page"])
    >>> def fetch(url):
    ...     answer = next(answers)
    ...     if isinstance(answer, OSError):
    ...         raise answer
    ...     return answer
    >>> patient = Retry(5, backoff=0.001, on=(OSError,))
    >>> list(PipelineBuilder().add_source(["url"]).pipe(fetch, retry=patient).build())
    ['page']
    """

    attempts: int
    _: KW_ONLY
    backoff: float = 0.1
    factor: float = 2.0
    max_backoff: float = 30.0
    jitter: float = 0.5
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int):
            raise BuildError(f"Retry: attempts must be an int, not {self.attempts!r}")
        if not 2 <= self.attempts <= MAX_ATTEMPTS:
            raise BuildError(
                f"Retry: attempts counts all calls, the first one included: at least 2 and at most "
                f"{MAX_ATTEMPTS}, not {self.attempts}"
            )
        check_seconds(self.backoff, "Retry: backoff", at_least=0.0)
        check_seconds(self.max_backoff, "Retry: max_backoff", at_least=self.backoff)
        if not is_number(self.factor) or not self.factor >= 1 or math.isinf(self.factor):
            raise BuildError(f"Retry: factor must be a number of at least 1, not {self.factor!r}")
        if not is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise BuildError(f"Retry: jitter must be a number from 0 to 1, not {self.jitter!r}")
        kinds = self.on
        if not isinstance(kinds, tuple) or not kinds:
            raise BuildError(f"Retry: on must be a tuple of exception types, not {kinds!r}")
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise BuildError(
                    f"Retry: on must name subclasses of Exception, not {kind!r}; what is none of these, "
                    f"such as KeyboardInterrupt, always ends the run"
                )

    def wait_after(self, calls: int, chance: float) -> float:
        """Return the seconds between call number ``calls`` and the next; ``chance`` is in [0, 1)."""
        try:
            wait = min(self.max_backoff, self.backoff * self.factor ** (calls - 1))
        except OverflowError:
            wait = self.max_backoff
        return wait * (1.0 - self.jitter * chance)


@dataclass(frozen=True, kw_only=True)
class FailurePolicy:
    """How a stage, or a whole build, treats failures of user code.

    Attributes:
        action: ``"raise"`` ends the run with the failure, ``"skip"`` drops the item and counts it.
        max_failures: with ``"skip"``, how many failures are allowed: a number, or a ``Fraction`` of
            the calls (looked at from the 100th call on, and once more at the end). ``None``: any.
        handler: with ``"skip"``, a function of the user's that is asked first, and may raise.
    """

    action: Literal["raise", "skip"] = "raise"
    max_failures: int | Fraction | None = None
    handler: Callable[[Failure], object] | None = None


def parse_policy(
    on_error: OnError | None, max_failures: int | Fraction | None, where: str
) -> FailurePolicy | None:
    """Return the policy that the two options of ``where`` describe, ``None`` where neither is given.

    Raises:
        BuildError: an unknown word, a negative or over-large budget, or a budget beside ``"raise"``.
    """
    if on_error is None and max_failures is None:
        return None
    handler = None
    if on_error is not None and not isinstance(on_error, str):
        if not callable(on_error) or isinstance(on_error, type):
            raise BuildError(
                f'{where}: on_error must be "raise", "skip" or a function that takes the failure, not '
                f"{on_error!r}"
            )
        handler = on_error
    elif on_error not in (None, "raise", "skip"):
        raise BuildError(
            f'{where}: on_error must be "raise", "skip" or a function, not {on_error!r}'
        )
    if max_failures is None:
        return FailurePolicy(action="raise" if on_error == "raise" else "skip", handler=handler)
    if on_error == "raise":
        raise BuildError(
            f'{where}: max_failures={max_failures!r} has no meaning with on_error="raise", which '
            f'ends the run at the first failure; write on_error="skip" or leave on_error out'
        )
    if isinstance(max_failures, bool) or not isinstance(max_failures, (int, Fraction)):
        raise BuildError(
            f"{where}: max_failures must be an int (failures) or a fractions.Fraction (share of the "
            f"calls), not {max_failures!r}; for five percent write Fraction(5, 100)"
        )
    if max_failures < 0 or (isinstance(max_failures, Fraction) and max_failures > 1):
        raise BuildError(
            f"{where}: max_failures={max_failures!r} is out of range; an int is at least 0, a "
            f"Fraction between 0 and 1"
        )
    return FailurePolicy(action="skip", max_failures=max_failures, handler=handler)


def is_number(value: object) -> bool:
    """Tell whether ``value`` is an int or a float, and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_int(value: object, what: str, *, least: int = 1, most: int | None = None) -> None:
    """Raise ``BuildError`` unless ``value`` is an int of at least ``least`` (and at most ``most``)."""
    good = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not good or (most is not None and value > most):  # type: ignore[operator]  # an int by now
        limit = "" if most is None else f" and at most {most}"
        raise BuildError(f"{what} must be an int of at least {least}{limit}, not {value!r}")


def check_seconds(value: Any, what: str, *, at_least: float | None = None) -> None:
    """Raise ``BuildError`` unless ``value`` is a finite time in seconds, above 0 or ``at_least``."""
    good = is_number(value) and math.isfinite(value)
    if good and (value > 0 if at_least is None else value >= at_least):
        return
    least = "above 0" if at_least is None else f"at least {at_least:g}"
    raise BuildError(f"{what} is a finite number of seconds, {least}, not {value!r}")
