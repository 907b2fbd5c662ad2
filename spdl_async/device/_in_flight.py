"""How a batch on a device changes hands: whoever takes it makes its own stream wait for it.

A copy, or a kernel, is queued long before it is done. So what a stage hands on is not the batch but an
`InFlight`, with the event behind which the batch is complete. It is claimed by the consumer's ``next``,
and by the thread of each op below, just before use: the claimer's current stream waits for the event, on
the device, and every tensor is recorded on that stream, so that its memory is not given out again while
kernels queued there may still read it (``torch.Tensor.record_stream``). The host waits for nothing.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from spdl_async.device._tensors import tensors_in

if TYPE_CHECKING:
    import torch

    from spdl_async.device._backend import DeviceBackend


class _Current(threading.local):
    """The device that a thread of ours was last told of."""

    backend: DeviceBackend | None = None


_current = _Current()


def enter(backend: DeviceBackend) -> None:
    """Make a device the current one of this thread, if it is one of ours; others choose their own."""
    if _current.backend is not backend and threading.current_thread().name.startswith(
        "spdl_async-"
    ):
        backend.enter_thread()
        _current.backend = backend


class InFlight:
    """A batch on its way.

    Attributes:
        value: the batch, complete only behind the event.
        backend: the device.
        event: completes when the batch does.
        tensors: what of it lies in the device's memory.
        on_claim: told whether the event had completed when the batch was first claimed.
    """

    __slots__ = ("backend", "event", "on_claim", "tensors", "value")

    def __init__(
        self,
        value: Any,
        backend: DeviceBackend,
        event: Any,
        tensors: Sequence[torch.Tensor],
        on_claim: Callable[[bool], None] | None = None,
    ) -> None:
        self.value = value
        self.backend = backend
        self.event = event
        self.tensors = tensors
        self.on_claim = on_claim

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def claim(self) -> Any:
        """Return the batch, safe to use on the calling thread's current stream."""
        backend = self.backend
        enter(backend)
        told, self.on_claim = self.on_claim, None
        if told is not None:
            told(backend.is_done(self.event))
        stream = backend.current_stream()
        backend.wait(stream, self.event)
        for tensor in self.tensors:
            backend.keep_for(tensor, stream)
        return self.value

    def __repr__(self) -> str:
        return f"<InFlight {type(self.value).__name__} on {self.backend.name}>"


def claim(value: Any) -> Any:
    """Claim a value, or those in the lists and tuples that ``aggregate`` and ``Zip`` make of several."""
    if type(value) is InFlight:
        while type(value) is InFlight:  # one around the other, of a batch on two devices
            value = value.claim()
        return value  # what an op, or a copy, has made: in it nothing is in flight
    kind = type(value)
    if not (kind is tuple or isinstance(value, list)):
        return value
    if any(type(inner) in (InFlight, list, tuple) for inner in value):
        claimed = [claim(inner) for inner in value]
        if all(one is other for one, other in zip(claimed, value, strict=True)):
            return value  # of the user's, with nothing of ours in it
        if kind is list or kind is tuple:
            return kind(claimed)
        value = copy.copy(value)  # a list that knows more, of an aggregator of ours
        value[:] = claimed
    return value


def peek(value: Any) -> Any:
    """Return what `claim` would, for one who asks for no numbers in it: nothing waits for anything."""
    while type(value) is InFlight:
        value = value.value
    if type(value) in (tuple, list):
        return type(value)(map(peek, value))
    return value


def backends_in(value: Any) -> list[DeviceBackend]:
    """Return the devices of what is in flight in a value, each once."""
    found: list[DeviceBackend] = []
    while type(value) is InFlight:
        found.append(value.backend)
        value = value.value
    if type(value) is tuple or isinstance(value, list):
        for inner in value:
            found += [one for one in backends_in(inner) if one not in found]
    return found


class Carrier:
    """Wraps the ops below a copy."""

    def claim(self, value: Any, /) -> Any:
        """Return the batch for which a value stands."""
        return claim(value)

    def peek(self, value: Any, /) -> Any:
        """Return the batch for which a value stands, which may not be there yet."""
        return peek(value)

    def opened(self, value: Any, /) -> Any:
        """Return the elements of a list or tuple in flight, each in flight itself."""
        layers: list[InFlight] = []  # more than one where it is on several devices
        batch = value
        while type(batch) is InFlight:
            layers.append(batch)
            batch = batch.value
        if not layers or not isinstance(batch, (list, tuple)):
            return batch  # no list: whoever wanted one says what it is
        return [_with_events_of(layers, inner) for inner in batch]

    def claiming(self, kind: str, call: Callable[..., Any], /) -> Callable[..., Any]:
        """Return the predicate or router that claims what it is called with."""
        if kind == "async":

            async def later(value: Any) -> Any:
                return await call(claim(value))

            return later
        return lambda value: call(claim(value))

    def carry(self, kind: str, call: Callable[..., Any], /) -> Callable[..., Any]:
        """Return the op that claims its argument, and whose result is in flight again."""
        if kind == "async":

            async def later(value: Any) -> Any:
                backends = backends_in(value)
                return sent(await call(claim(value)), backends)

            return later

        def now(value: Any) -> Any:
            backends = backends_in(value)
            result = call(claim(value))
            if inspect.isawaitable(result):
                return _awaited(result, value, backends)
            return sent(result, backends)

        return now

    def carry_many(self, kind: str, call: Callable[..., Any], /) -> Callable[..., Any]:
        """Do the same for a 1→n op: a generator function, or one that returns an iterable."""
        if kind == "generator":

            def generator(value: Any) -> Iterator[Any]:
                backends = backends_in(value)
                yield from _each(call(claim(value)), backends)

            return generator
        if kind == "async generator":

            async def async_generator(value: Any) -> AsyncIterator[Any]:
                backends = backends_in(value)
                async for result in _each_async(call(claim(value)), None, backends):
                    yield result

            return async_generator
        if kind == "async":

            async def later(value: Any) -> Any:
                backends = backends_in(value)
                return _many(await call(claim(value)), value, backends)

            return later

        def now(value: Any) -> Any:
            backends = backends_in(value)
            return _many(call(claim(value)), value, backends)

        return now

    def carry_aggregator(self, make: Callable[[], Any], /) -> Callable[[], Any]:
        """Return what makes an aggregator that claims what it accumulates."""
        return lambda: Carrying(make())


def _with_events_of(layers: Sequence[InFlight], inner: Any) -> Any:
    """Return an element of what was in flight, with the same events; the first one tells of the claim."""
    result = inner
    for layer in reversed(layers):
        enter(layer.backend)
        tensors = tensors_in(inner, layer.backend)
        if tensors:
            told, layer.on_claim = layer.on_claim, None
            result = InFlight(result, layer.backend, layer.event, tensors, told)
    return result


class Carrying:
    """An aggregator below a copy."""

    def __init__(self, aggregator: Any) -> None:
        self._aggregator = aggregator
        self._backends: list[DeviceBackend] = []

    def accumulate(self, item: Any, /) -> Iterable[Any]:
        """Claim an item and pass it on."""
        self._backends += [one for one in backends_in(item) if one not in self._backends]
        return self._sent(self._aggregator.accumulate(claim(item)))

    def flush(self) -> Iterable[Any]:
        """Flush it."""
        return self._sent(self._aggregator.flush())

    def _sent(self, outputs: Iterable[Any] | None) -> Iterable[Any]:
        for output in outputs or ():
            if isinstance(output, list) and type(output) is not list:
                # One of ours, which knows the numbers of its items; it stays what it is.
                output[:] = [sent(inner, self._backends) for inner in output]
                yield output
            else:
                yield sent(output, self._backends)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._aggregator, name)


def sent(value: Any, backends: Sequence[DeviceBackend]) -> Any:
    """Return what stands for a result that was queued on this thread's current streams."""
    inner = value
    while type(inner) is InFlight:
        inner = inner.value
    for backend in backends:
        enter(backend)  # what was claimed in one thread may be done in another
        tensors = tensors_in(inner, backend) if backend.asynchronous else ()
        if tensors:
            event = backend.record(backend.current_stream())
            value = InFlight(value, backend, event, tensors)
    return value


# What an op returns may be done in another thread, on the loop: so that one claims the batch too.


async def _awaited(result: Any, value: Any, backends: Sequence[DeviceBackend]) -> Any:
    claim(value)
    return sent(await result, backends)


def _many(results: Any, value: Any, backends: Sequence[DeviceBackend]) -> Any:
    if isinstance(results, (list, tuple)):
        return [sent(result, backends) for result in results]
    if inspect.isawaitable(results):
        return _many_later(results, value, backends)
    if hasattr(results, "__aiter__"):
        return _each_async(results, value, backends)
    if hasattr(results, "__iter__"):
        return _each(results, backends)
    return results  # the engine says what is wrong with it


async def _many_later(results: Any, value: Any, backends: Sequence[DeviceBackend]) -> Any:
    claim(value)
    return _many(await results, value, backends)


def _each(results: Iterable[Any], backends: Sequence[DeviceBackend]) -> Iterator[Any]:
    try:
        left = iter(results)
        while True:
            for backend in backends:  # the next value may be made in another thread
                enter(backend)
            try:
                result = next(left)
            except StopIteration:
                return
            yield sent(result, backends)
            del result
    finally:
        close = getattr(results, "close", None)
        if close is not None:
            close()


async def _each_async(
    results: AsyncIterator[Any], value: Any, backends: Sequence[DeviceBackend]
) -> AsyncIterator[Any]:
    claim(value)
    try:
        async for result in results:
            yield sent(result, backends)
    finally:
        close = getattr(results, "aclose", None)
        if close is not None:
            await close()
