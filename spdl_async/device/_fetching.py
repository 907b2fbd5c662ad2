"""Tensors that come back to the host because an object that holds them moves itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from spdl_async.device._backend import DeviceBackend

_MOVES = (torch.Tensor.to, torch.Tensor.cpu)
_CPU = ("cpu", torch.device("cpu"))


class Fetching(TorchFunctionMode):
    """Within it ``tensor.to("cpu")`` and ``tensor.cpu()`` copy as told; other calls do what they always do.

    Args:
        backend: the device from which tensors come.
        fetch: returns a tensor on the host, complete.
    """

    def __init__(
        self, backend: DeviceBackend, fetch: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        self._backend = backend
        self._fetch = fetch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Copy, or call the function."""
        kwargs = kwargs or {}
        if func in _MOVES and self._only_to_the_host(*args, **kwargs):
            return self._fetch(args[0])
        return func(*args, **kwargs)

    def _only_to_the_host(self, tensor: torch.Tensor, *to: Any, **options: Any) -> bool:
        options.pop("non_blocking", None)
        return (
            type(tensor) is torch.Tensor
            and tensor.layout is torch.strided
            and not (tensor.is_quantized or tensor.is_nested)
            and all(
                isinstance(each, str | torch.device) and each in _CPU
                for each in (*to, *options.values())
            )
            and self._backend.is_here(tensor)
        )
