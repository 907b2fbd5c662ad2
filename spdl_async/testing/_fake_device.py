"""A device for tests that is as late, and as careless with memory, as a real one may be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from spdl_async.testing._fake_memory import Block, FakeMemory, alias
from spdl_async.testing._fake_script import FakeCall, FakeHold, Script
from spdl_async.testing._fake_streams import CurrentStream, FakeEvent, FakeStream, Streams

if TYPE_CHECKING:
    import torch

METHODS = (
    *("enter_thread", "new_stream", "current_stream", "on_stream", "record", "wait", "is_done"),
    "seconds_between",
    *("synchronize", "pinned", "is_pinned", "is_here", "empty", "empty_bytes", "copy", "keep_for"),
    *("move", "launch", "read"),
)


class FakeOutOfMemory(RuntimeError):  # noqa: N818 -- as torch.OutOfMemoryError
    """A `FakeDevice` has no memory left."""


class FakeDevice:
    """A device on the memory of the CPU, for ``to_device(FakeDevice())`` in tests without a GPU.

    Its streams do nothing before somebody waits for an event (:meth:`synchronize`) or reads a result
    (:meth:`read`), and then no more than is needed for it. What a test launches there reads memory as kernels
    do: as it is by then. Memory that is freed is given out again at once, and keeps its old contents. So code
    that forgets to wait for a copy, writes to a staging buffer too early, or frees what another stream still
    reads gets wrong data each time, where a GPU gives wrong data once in a while. New memory is full of 0xA5.

    Two of them take each other's tensors for those of the host, so copies from one to the other are not
    ordered as those between two GPUs are.

    Tensors of the device are CPU tensors; what the test computes with them directly happens at once, and
    is not ordered by streams: use :meth:`launch` and :meth:`read`.

    Args:
        name: for people.
        lazy: whether work waits until it is needed; False runs it in the call that queues it.
        memory: how many bytes the device has; None for no limit.

    Attributes:
        memory: may be changed at any time.
        calls: every call, in order: a list of `FakeCall`.
        asynchronous: True.
        out_of_memory: what `empty` and `empty_bytes` raise.

    >>> import torch
    >>> from spdl_async.testing import FakeDevice
    >>> fake = FakeDevice()
    >>> host = fake.pinned(4)
    >>> _ = host.fill_(1)
    >>> batch = fake.empty_bytes(4)
    >>> fake.copy(batch, host)
    >>> _ = host.fill_(2)  # too early: the copy has not run
    >>> fake.read(batch).tolist()
    [2, 2, 2, 2]
    >>> fake.calls[2].detail, fake.calls[2].size
    ('host to device', 4)
    """

    asynchronous = True
    out_of_memory: tuple[type[BaseException], ...] = (FakeOutOfMemory,)

    def __init__(
        self, name: str = "fake:0", *, lazy: bool = True, memory: int | None = None
    ) -> None:
        self.name = name
        self.memory = memory
        self._script = Script()
        self._streams = Streams(name, lazy)
        self._blocks = FakeMemory()
        self._here = CurrentStream()
        self._host_synchronizations = 0

    def __repr__(self) -> str:
        return (
            f"<FakeDevice {self.name}: {len(self._streams.all)} streams, {len(self.calls)} calls>"
        )

    # What happened

    @property
    def calls(self) -> list[FakeCall]:
        """Every call so far, in order; the list grows."""
        return self._script.calls

    @property
    def host_synchronizations(self) -> int:
        """How many times a thread waited for the device: `synchronize`, `read`, and pageable copies."""
        return self._host_synchronizations

    @property
    def pinned_allocations(self) -> int:
        """How many times `pinned` has given memory out."""
        return self._blocks.pinned_allocations

    @property
    def bytes_on_device(self) -> int:
        """How many bytes tensors and views now refer to; each allocation counts in multiples of 16."""
        return self._blocks.live()

    @property
    def peak_bytes_on_device(self) -> int:
        """The most that `bytes_on_device` has been."""
        return self._blocks.peak

    # What a test asks for

    def fail(
        self,
        method: str,
        error: BaseException | Callable[[], BaseException],
        *,
        after: int = 0,
        times: int | None = 1,
    ) -> None:
        """Let calls of a method raise.

        Args:
            method: for example ``"copy"``.
            error: the exception, or a class or function that makes one for each call.
            after: how many calls from now on still succeed.
            times: how many fail then; None for all.
        """
        self._script.fail(_known(method), error, after, times)

    def hold(self, method: str) -> FakeHold:
        """Stop each thread that calls a method, before it has an effect, until :meth:`FakeHold.release`."""
        return self._script.hold(_known(method))

    def pin(self, tensor: torch.Tensor) -> None:
        """Treat the host memory of a tensor as page-locked, as cudaHostRegister does, and keep it."""
        if tensor.numel() and self._blocks.block_of(tensor) is None:
            self._blocks.register(tensor)

    def launch(self, function: Callable[..., object], *tensors: torch.Tensor) -> None:
        """Queue ``function(*tensors)`` on the current stream, as a kernel is.

        It gets tensors of its own over the same memory, which it does not keep: what the test frees may be
        given out to others before the function runs. It must not block. An exception comes out of the call
        that runs it.

        Raises:
            ValueError: a tensor lies neither on the device nor in pinned memory.
        """
        stream = self._stream()
        self._note("launch", stream=stream.number)
        aliases = [self._alias(tensor) for tensor in tensors]
        self._streams.queue(stream, lambda: function(*aliases))

    def advance(self, to: FakeEvent | FakeStream | None = None) -> None:
        """Let the device get on with its work, as time does: no thread waits, and no call is noted.

        Args:
            to: an event, or a stream; None for all.
        """
        if to is None:
            self._streams.run_all()
        elif isinstance(to, FakeStream):
            self._streams.run(to, to.queued)
        else:
            self._streams.run(to.stream, to.position)

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host, as ``tensor.cpu()`` does: when the current stream has done its work."""
        stream = self._stream()
        self._note("read", stream=stream.number)
        self._wait_on_host(stream, stream.queued)
        return tensor.clone()

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the device, as ``tensor.to(device, non_blocking=True)`` does."""
        if self.is_here(tensor):
            return tensor
        target = self.empty(tensor)
        self.copy(target, tensor)
        return target

    # What copies need: see DeviceBackend

    def enter_thread(self) -> None:
        """Make this the current device of the calling thread; threads of a run must do so first."""
        self._here.entered = True
        self._note("enter_thread")

    def new_stream(self) -> FakeStream:
        """Make a stream."""
        self._refuse_strangers("new_stream")
        stream = self._streams.new()
        self._note("new_stream", stream=stream.number)
        return stream

    def current_stream(self) -> FakeStream:
        """Return the calling thread's stream: the default one, but for threads within `on_stream`."""
        stream = self._stream()
        self._note("current_stream", stream=stream.number)
        return stream

    def on_stream(self, stream: FakeStream) -> AbstractContextManager[None]:
        """Make a stream the calling thread's within a ``with`` block."""
        self._note("on_stream", stream=stream.number)
        self._own(stream)
        return self._on_stream(stream)

    @contextmanager
    def _on_stream(self, stream: FakeStream) -> Iterator[None]:
        before, self._here.stream = self._here.stream, stream
        try:
            yield
        finally:
            self._here.stream = before

    def record(self, stream: FakeStream) -> FakeEvent:
        """Return an event behind what is queued on a stream."""
        self._own(stream)
        number = self._streams.next_event()
        self._note("record", stream=stream.number, event=number)
        return self._streams.record(stream, number)

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        """Let later work of a stream wait for an event, also of another `FakeDevice`."""
        self._note("wait", stream=stream.number, event=event.number)
        self._own(stream)
        self._streams.queue(stream, event)

    def is_done(self, event: FakeEvent) -> bool:
        """Tell whether an event has completed; none does before somebody waits for it or a later one."""
        self._note("is_done", event=event.number)
        return event.done

    def synchronize(self, event: FakeEvent | FakeStream | None = None) -> None:
        """Run what an event, or a stream, needs; without an argument all that is queued on the device."""
        if event is None:
            self._note("synchronize", "all")
        elif isinstance(event, FakeStream):
            self._note("synchronize", stream=event.number)
        else:
            self._note("synchronize", stream=event.stream.number, event=event.number)
        with Streams.lock:
            self._host_synchronizations += 1
            self.advance(event)

    def seconds_between(self, start: FakeEvent, end: FakeEvent) -> float:
        """Return a thousandth of a second for each event between the two: there is no time here."""
        self._note("seconds_between", event=start.number)
        return (end.number - start.number) / 1000

    def pinned(self, size: int) -> torch.Tensor:
        """Return host memory that counts as page-locked: shape (size,), dtype uint8, each byte 0xA5.

        When its last view dies it is overwritten at once: a copy that still has to run gets wrong data.
        """
        self._note("pinned", size=size)
        return self._blocks.pinned(size)[:size]

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor lies in memory from `pinned`, or given to `pin`; no other counts."""
        self._note("is_pinned")
        block = self._blocks.block_of(tensor)
        return block is not None and block.kind != "device"

    def is_here(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor lies in memory from `empty`, `empty_bytes`, `send` or `move`."""
        self._note("is_here")
        block = self._blocks.block_of(tensor)
        return block is not None and block.kind == "device"

    def empty(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory for a tensor like this; strides as ``torch.empty_like`` chooses them.

        Raises:
            FakeOutOfMemory: the device has no room for it.
            TypeError: the tensor is sparse or quantised.
        """
        import torch

        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise TypeError(f"a FakeDevice has no {tensor.layout} tensors of {tensor.dtype}")
        like = torch.empty_like(tensor, device="meta", requires_grad=False)
        memory = self._allocate("empty", like.numel() * like.element_size())
        return memory.view(tensor.dtype).as_strided(like.shape, like.stride())

    def empty_bytes(self, size: int) -> torch.Tensor:
        """Return bytes of the device: shape (size,), dtype uint8; 0xA5, or what the memory was last used for.

        Raises:
            FakeOutOfMemory: the device has no room for them.
        """
        return self._allocate("empty_bytes", size)[:size]

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy on the current stream; one that involves pageable memory is done before it returns.

        As with CUDA, host memory is read and written by the device itself only where both tensors are dense
        and have the same strides; other copies count as pageable.

        Raises:
            ValueError: neither is on the device, or they differ in shape or dtype.
        """
        blocks = [self._blocks.block_of(tensor) for tensor in (target, source)]
        where = [
            "host" if block is None or block.kind != "device" else "device" for block in blocks
        ]
        size = source.numel() * source.element_size()
        by_device = None not in blocks and (where == ["device"] * 2 or _same_layout(target, source))
        detail = f"{where[1]} to {where[0]}" if by_device or not size else "pageable copy"
        stream = self._stream()
        self._note("copy", detail, stream=stream.number, size=size)
        if "device" not in where:
            raise ValueError(f"neither tensor of a copy is on {self.name}")
        if target.shape != source.shape or target.dtype != source.dtype:
            raise ValueError(
                f"a copy of {source.dtype} {tuple(source.shape)} to {target.dtype} {tuple(target.shape)}: "
                "they must be the same"
            )
        to, of = (
            tensor if block is None else alias(tensor, block)
            for tensor, block in zip((target, source), blocks, strict=True)
        )
        self._streams.queue(stream, lambda: to.copy_(of.detach()))
        if detail == "pageable copy":
            self._wait_on_host(stream, stream.queued)

    def keep_for(self, tensor: torch.Tensor, stream: FakeStream) -> None:
        """Keep the memory, when it is freed, until what a stream has queued by then has run.

        Raises:
            ValueError: the tensor is not on the device.
        """
        block = self._blocks.block_of(tensor)
        size = None if block is None else len(block.memory)
        self._note("keep_for", stream=stream.number, size=size)
        self._own(stream)
        if block is None or block.kind != "device":
            raise ValueError(f"keep_for of a tensor that is not on {self.name}")
        if stream is not block.stream and stream not in block.kept:
            block.kept.append(stream)

    def move(self, thing: Any) -> Any:
        """Return ``thing.to(device, non_blocking=True)``, within which tensors move by `send`."""
        self._note("move", type(thing).__name__)
        import torch
        from torch.overrides import TorchFunctionMode

        # torch knows no device of ours, so one that nothing else uses stands for it.
        stand_in = torch.device("privateuseone", 0)
        send = self.send

        class Moving(TorchFunctionMode):
            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                if func is torch.Tensor.to and stand_in in (*args[1:], *(kwargs or {}).values()):
                    return send(args[0])
                return func(*args, **(kwargs or {}))

        with Moving():
            return thing.to(stand_in, non_blocking=True)

    # Within

    def _note(self, method: str, detail: str = "", **numbers: int | None) -> None:
        self._refuse_strangers(method)
        self._script.note(method, detail, **numbers)

    def _refuse_strangers(self, method: str) -> None:
        name = threading.current_thread().name
        if not self._here.entered and name.startswith("spdl_async-"):
            self._script.note("misuse", method)
            raise RuntimeError(
                f"{self.name}.{method} was called in thread {name!r}, which has not called "
                "enter_thread: on a GPU this would use, and put a context on, whatever device is the default"
            )

    def _stream(self) -> FakeStream:
        stream: FakeStream | None = self._here.stream
        return self._streams.all[0] if stream is None else stream

    def _own(self, stream: FakeStream) -> None:
        if stream not in self._streams.all:
            raise ValueError(f"{stream!r} is not a stream of {self.name}")

    def _wait_on_host(self, stream: FakeStream, position: int) -> None:
        with Streams.lock:
            self._host_synchronizations += 1
            self._streams.run(stream, position)

    def _allocate(self, method: str, size: int) -> torch.Tensor:
        stream = self._stream()
        self._note(method, stream=stream.number, size=size)
        memory = self._blocks.on_device(size, stream, self.memory)
        if memory is None:
            raise FakeOutOfMemory(
                f"{self.name} is out of memory: {size} bytes asked for, "
                f"{self.bytes_on_device} of {self.memory} in use"
            )
        return memory

    def _alias(self, tensor: torch.Tensor) -> torch.Tensor:
        block: Block | None = self._blocks.block_of(tensor)
        if block is None:
            raise ValueError(
                f"work on {self.name} got a tensor that is neither there nor in pinned memory"
            )
        return alias(tensor, block)


def _known(method: str) -> str:
    if method not in METHODS:
        raise ValueError(f"{method!r} is no method of a FakeDevice: {', '.join(METHODS)}")
    return method


def _same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    from spdl_async.device._dense import is_dense

    def steps(tensor: torch.Tensor) -> list[int]:
        return [step for step, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1]

    return is_dense(one) and is_dense(other) and steps(one) == steps(other)
