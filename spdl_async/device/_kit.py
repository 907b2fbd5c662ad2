"""What the builder's verbs ask for: copies to a device, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from spdl_async.device._copier import Copier
from spdl_async.device._host_copier import HostCopier
from spdl_async.device._in_flight import Carrier
from spdl_async.device._only import Only, chosen
from spdl_async.device._resolve import resolve

if TYPE_CHECKING:
    from spdl_async.device._backend import DeviceBackend


@dataclass(frozen=True, kw_only=True)
class DeviceKit:
    """Makes the copiers of ``to_device``."""

    device: Callable[[], DeviceBackend]
    target: str
    only: Only | None
    depth: int
    staging_bytes: int | None
    hands: ClassVar[Carrier] = Carrier()
    some_stay: ClassVar[bool] = True

    def here(self) -> DeviceBackend:
        """Return the device that is meant in the calling thread."""
        return self.device()

    def open(self, here: Any, *, in_own_thread: bool) -> Copier:
        """Return what copies in one run."""
        return Copier(
            here,
            only=self.only,
            depth=self.depth,
            staging_bytes=self.staging_bytes,
            in_own_thread=in_own_thread,
        )


@dataclass(frozen=True, kw_only=True)
class HostKit:
    """Makes the copiers of ``to_host``."""

    only: Only | None
    pin: bool
    target: str = "host"
    hands: ClassVar[Carrier] = Carrier()

    @property
    def some_stay(self) -> bool:
        """Whether fields may be left on the device."""
        return self.only is not None

    def here(self) -> None:
        """There is nothing to choose: results come from where they are."""

    def open(self, here: None, *, in_own_thread: bool) -> HostCopier:  # noqa: ARG002 -- the form of both
        """Return what copies in one run."""
        return HostCopier(only=self.only, pin=self.pin, in_own_thread=in_own_thread)


def device_kit(device: Any, *, only: Any, depth: int, staging_bytes: int | None) -> DeviceKit:
    """Check where to copy, and return what makes the copiers.

    Raises:
        BuildError: there is no such device here, or ``only`` chooses nothing that could be.
    """
    return DeviceKit(
        device=resolve(device),
        target=getattr(device, "name", None) or str(device),
        only=chosen(only),
        depth=depth,
        staging_bytes=staging_bytes,
    )


def host_kit(*, only: Any, pin: bool) -> HostKit:
    """Return what makes the copiers back to the host.

    Raises:
        BuildError: ``only`` chooses nothing that could be.
    """
    return HostKit(only=chosen(only), pin=pin)
