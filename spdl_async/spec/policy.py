"""What happens when user code fails."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from spdl_async.errors import BuildError

OnError = Literal["raise", "skip"]


@dataclass(frozen=True, kw_only=True)
class FailurePolicy:
    """How a stage, or a whole build, treats failures of user code.

    Attributes:
        action: ``"raise"`` ends the run with the failure, ``"skip"`` drops the item and counts it.
        max_failures: with ``"skip"``, how many failures are allowed: a number, or a ``Fraction`` of
            the calls (looked at from the 100th call on, and once more at the end). ``None``: any.
    """

    action: OnError = "raise"
    max_failures: int | Fraction | None = None


def parse_policy(
    on_error: OnError | None, max_failures: int | Fraction | None, where: str
) -> FailurePolicy | None:
    """Return the policy that the two options of ``where`` describe, ``None`` where neither is given.

    Raises:
        BuildError: an unknown word, a negative or over-large budget, or a budget beside ``"raise"``.
    """
    if on_error is None and max_failures is None:
        return None
    if on_error not in (None, "raise", "skip"):
        raise BuildError(f'{where}: on_error must be "raise" or "skip", not {on_error!r}')
    if max_failures is None:
        return FailurePolicy(action=on_error or "raise")
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
    return FailurePolicy(action="skip", max_failures=max_failures)
