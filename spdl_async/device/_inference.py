"""``inference``: an op made of a model."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from spdl_async.errors import BuildError

if TYPE_CHECKING:
    import torch

    Autocast = torch.dtype | tuple[str, torch.dtype]

M = TypeVar("M")
T = TypeVar("T")
U = TypeVar("U")

CallBy = Literal["single", "args", "kwargs"]
Mode = Literal["inference", "no_grad"]

# Torch is imported by what is called with a model of it: spdl_async.device itself is light.


@overload
def inference(
    model: torch.nn.Module,
    /,
    *,
    autocast: Autocast | None = ...,
    call: CallBy = ...,
    mode: Mode = ...,
) -> Callable[[Any], Any]: ...


@overload
def inference(
    model: Callable[[T], U],
    /,
    *,
    autocast: Autocast | None = ...,
    call: Literal["single"] = ...,
    mode: Mode = ...,
) -> Callable[[T], U]: ...


@overload
def inference(
    model: Callable[..., U],
    /,
    *,
    autocast: Autocast | None = ...,
    call: Literal["args", "kwargs"],
    mode: Mode = ...,
) -> Callable[[Any], U]: ...


@overload
def inference(
    model: M,
    /,
    *,
    autocast: Autocast | None = ...,
    call: Callable[[M, T], U],
    mode: Mode = ...,
) -> Callable[[T], U]: ...


def inference(
    model: Any,
    /,
    *,
    autocast: Autocast | None = None,
    call: CallBy | Callable[[Any, Any], Any] = "single",
    mode: Mode = "inference",
) -> Callable[[Any], Any]:
    """Make an op of a model: in eval mode, without gradients, with autocast if wanted.

    Use it below ``to_device``, in ``.pipe(inference(model))``. Gradient mode and autocast belong to a
    thread, and ops run in threads of the pipeline, so a ``with torch.inference_mode():`` around the loop
    over the pipeline does nothing for its ops. This op enters both in the thread that runs it, for the
    time of each call; other ops in that thread see nothing of them.

    The model is put into eval mode before the first call, and again before a call that finds it in
    training mode; calls in other threads wait for that. It is not put back into training mode
    afterwards, and must not be trained while the pipeline runs. It is not moved: do that by
    ``model.to(device)``. Its weights are only read, so several threads may use one model at a time, with
    ``concurrency=2`` or more. On a CPU torch has threads of its own for each call: ``concurrency=1``
    leaves the cores to them.

    Args:
        model: a ``torch.nn.Module``, or a method of one (``model.encode``), which is put into eval mode as
            well; or any other function or callable object, where you see to that yourself. Not async,
            and no generator: their bodies would run outside of the modes.
        autocast: ``torch.bfloat16`` or ``torch.float16``: matrix products and convolutions are computed in
            it. It applies to the type of device that the model's parameters are on, or, where there is no
            module or it has no parameters, the first tensor of the batch; ``("cuda", torch.bfloat16)``
            gives it. Weights are converted in each call: where that is not wanted use
            ``model.to(torch.bfloat16)`` and no autocast. None: everything in its own dtype.
        call: how a batch is given to the model. ``"single"``: as the only argument, whatever it is.
            ``"args"``: a tuple or list as positional arguments. ``"kwargs"``: a mapping as keyword
            arguments. Or a function of (model, batch) that returns the result, for all else, as
            ``lambda model, batch: (batch.key, model(batch.image))``.
        mode: ``"inference"``: under ``torch.inference_mode()``; autograd cannot save its results for a
            backward pass, nor can they be written to in place outside of that mode, unless they are cloned.
            ``"no_grad"``: under ``torch.no_grad()``, for results that another model is trained on, as
            the features of a frozen encoder; a little slower.

    Returns:
        A sync op of one batch. Its stage is named after the module's class, or the function.

    Raises:
        BuildError: the model is nothing that can be called, or an argument is not one of the above.
        TypeError: (the op) the batch is no tuple or mapping where one is needed, or the model is async or a
            generator, or autocast is wanted where no device can be seen; a failure of the item.

    Example:
        >>> import torch
        >>> from spdl_async import PipelineBuilder
        >>> from spdl_async.device import inference
        >>> model = torch.nn.Linear(4, 2)
        >>> batches = PipelineBuilder().add_source([torch.ones(3, 4), torch.zeros(1, 4)])
        >>> for scores in batches.pipe(inference(model)).build():
        ...     print(scores.shape, scores.requires_grad)
        torch.Size([3, 2]) False
        torch.Size([1, 2]) False
    """
    import torch

    where = "inference(…)"
    if isinstance(model, type) or not callable(model):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise BuildError(
            f"{where}: pass a torch.nn.Module or a function, not {what}"
            + ("; make an instance of it" if isinstance(model, type) else "")
            + ("; load a state dict into a model first" if isinstance(model, Mapping) else "")
        )
    if not callable(call) and call not in tuple(_CALLS):
        raise BuildError(
            f"{where}: call={call!r} is not one of 'single', 'args', 'kwargs', nor a function of "
            f"(model, batch)"
        )
    if mode not in ("inference", "no_grad"):
        raise BuildError(f"{where}: mode={mode!r} is neither 'inference' nor 'no_grad'")
    device_type, dtype = _checked_autocast(autocast, where)
    return _Inference(
        model,
        call if callable(call) else _CALLS[call],
        torch.inference_mode if mode == "inference" else torch.no_grad,
        dtype,
        device_type,
    )


def _checked_autocast(autocast: Any, where: str) -> tuple[str | None, torch.dtype | None]:
    import torch

    device_type, dtype = None, autocast
    if isinstance(autocast, tuple) and len(autocast) == 2 and isinstance(autocast[0], str):
        device_type, dtype = autocast
    if autocast is not None and dtype not in (torch.bfloat16, torch.float16):
        raise BuildError(
            f"{where}: autocast={autocast!r} is not torch.bfloat16 or torch.float16, nor a pair such as "
            f'("cuda", torch.bfloat16)'
        )
    return device_type, dtype


def _call_single(model: Callable[..., Any], batch: Any) -> Any:
    return model(batch)


def _call_args(model: Callable[..., Any], batch: Any) -> Any:
    if not isinstance(batch, tuple | list):
        raise TypeError(
            f"inference(…, call='args') takes a tuple or list as the model's arguments, not "
            f"{type(batch).__name__}; "
            + ("use call='kwargs'" if isinstance(batch, Mapping) else "use call='single'")
        )
    return model(*batch)


def _call_kwargs(model: Callable[..., Any], batch: Any) -> Any:
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"inference(…, call='kwargs') takes a mapping as the model's arguments, not "
            f"{type(batch).__name__}; use call='args' for a tuple, 'single' for a tensor, or a function of "
            f"(model, batch)"
        )
    return model(**batch)


_CALLS = {"single": _call_single, "args": _call_args, "kwargs": _call_kwargs}


class _Inference:
    """The op; one for all threads."""

    def __init__(
        self,
        model: Any,
        call: Callable[[Any, Any], Any],
        mode: Callable[[], AbstractContextManager[Any]],
        dtype: torch.dtype | None,
        device_type: str | None,
    ) -> None:
        self._model = model
        self._module = _module_of(model)
        self.__name__ = _name_of(model)
        self._call = call
        self._mode = mode
        self._dtype = dtype
        self._device_type = device_type
        self._settling = threading.Lock()
        self._settled = self._module is None

    def __call__(self, batch: Any, /) -> Any:
        module = self._module
        # In this order: while a module changes its mode its own flag is the first to tell the new one.
        if module is not None and (module.training or not self._settled):
            self._settle(module)
        with self._mode():
            if self._dtype is None:
                result = self._call(self._model, batch)
            else:
                result = self._autocast(self._dtype, batch)
        if isinstance(result, Awaitable | Generator | AsyncGenerator):
            self._refuse_late(result)
        return result

    def _settle(self, module: torch.nn.Module) -> None:
        """Put the model into eval mode; whoever finds `_settled` unset waits until that is done."""
        with self._settling:
            if module.training or not self._settled:
                self._settled = False
                module.eval()
                self._settled = True

    def _autocast(self, dtype: torch.dtype, batch: Any) -> Any:
        import torch

        with torch.autocast(self._device_type or self._type_for(batch), dtype=dtype):
            return self._call(self._model, batch)

    def _type_for(self, batch: Any) -> str:
        # Asked each time: a model may be moved between two passes.
        if self._module is not None:
            for weight in self._module.parameters():
                return weight.device.type
        found = _first_device_type(batch, 0)
        if found is None:
            raise TypeError(
                f"inference({self.__name__}, autocast={self._dtype}): neither a module with parameters nor "
                f'a tensor in the batch tells the device; write it as autocast=("cuda", {self._dtype})'
            )
        return found

    def _refuse_late(self, result: Any) -> None:
        close = getattr(result, "close", None)
        if close is not None:
            close()  # of a coroutine that would warn that it was never awaited
        raise TypeError(
            f"inference({self.__name__}) got {_article(type(result).__name__)}, whose body would run without "
            f"inference mode: pass a plain function that computes and returns the result"
        )


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _unwrapped(model: Any) -> Any:
    """Return what partials, and methods of modules, come down to."""
    for _ in range(16):
        inner = getattr(model, "func", None) if type(model).__name__ == "partial" else None
        if inner is None:
            break
        model = inner
    return model


def _module_of(model: Any) -> torch.nn.Module | None:
    import torch

    model = _unwrapped(model)
    for each in (model, getattr(model, "__self__", None)):
        if isinstance(each, torch.nn.Module):
            return each
    return None


def _name_of(model: Any) -> str:
    model = _unwrapped(model)
    module = _module_of(model)
    if module is model:
        return type(model).__name__
    name = getattr(model, "__name__", None)
    if not isinstance(name, str) or not name:
        name = type(model).__name__
    if module is not None:
        return f"{type(module).__name__}.{name}"
    return "lambda" if name == "<lambda>" else name


def _first_device_type(batch: Any, depth: int) -> str | None:
    """Return the type of device of the first tensor in a batch; None where there is none near its top."""
    import torch

    if isinstance(batch, torch.Tensor):
        return batch.device.type
    if depth == 8:
        return None
    if isinstance(batch, Mapping):
        children = list(batch.values())
    elif isinstance(batch, tuple | list):
        children = list(batch)
    elif dataclasses.is_dataclass(batch):
        children = [getattr(batch, field.name, None) for field in dataclasses.fields(batch)]
    else:
        return None
    for child in children:
        found = _first_device_type(child, depth + 1)
        if found is not None:
            return found
    return None
