"""The fake device shows each mistake that a real one may hide, every time."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from spdl_async.testing import FakeCall, FakeDevice, FakeOutOfMemory

pytestmark = pytest.mark.torch

POISON = 0xA5


def pinned(fake: FakeDevice, value: int, size: int = 16) -> Any:
    return fake.pinned(size).fill_(value)


def in_thread(call: Callable[[], Any], name: str = "spdl_async-copy") -> Any:
    """Return what a call returns, or raises, in another thread."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


class Handover:
    """A copy on a side stream and its use on the current one, with every step, or without one."""

    def __init__(self, fake: FakeDevice) -> None:
        self.fake = fake
        self.copies = fake.new_stream()
        self.seen: list[int] = []

    def copy(self, value: int) -> tuple[Any, Any, Any]:
        host = pinned(self.fake, value)
        with self.fake.on_stream(self.copies):
            batch = self.fake.empty(host)
            self.fake.copy(batch, host)
        return host, batch, self.fake.record(self.copies)

    def use(self, batch: Any) -> None:
        self.fake.launch(lambda x: self.seen.append(int(x[0])), batch)


@pytest.fixture
def handover() -> Handover:
    return Handover(FakeDevice())


# Each mistake


def test_with_every_step_the_data_are_right(handover: Handover) -> None:
    fake = handover.fake
    slot = fake.pinned(16)
    for value in range(5):
        slot.fill_(value)
        with fake.on_stream(handover.copies):
            batch = fake.empty(slot)
            fake.copy(batch, slot)
            event = fake.record(handover.copies)
        fake.wait(fake.current_stream(), event)
        fake.keep_for(batch, fake.current_stream())
        handover.use(batch)
        del batch
        assert not fake.is_done(event)
        fake.synchronize(event)
        assert fake.is_done(event)
    fake.synchronize()
    assert handover.seen == [0, 1, 2, 3, 4]


def test_a_missing_wait_shows_what_was_there_before(handover: Handover) -> None:
    _host, batch, _event = handover.copy(1)
    handover.use(batch)
    assert handover.fake.read(batch)[0] == POISON
    assert handover.seen == [POISON]


def test_a_wait_brings_the_copy_before_the_use(handover: Handover) -> None:
    _host, batch, event = handover.copy(1)
    handover.fake.wait(handover.fake.current_stream(), event)
    handover.use(batch)
    assert handover.seen == []
    assert handover.fake.read(batch)[0] == 1
    assert handover.seen == [1]


@pytest.mark.parametrize("kept", [True, False])
def test_memory_that_is_not_kept_for_its_user_is_written_again(
    handover: Handover, kept: bool
) -> None:
    fake = handover.fake
    hosts = []
    for value in (1, 2):
        host, batch, event = handover.copy(value)
        hosts.append(host)
        fake.wait(fake.current_stream(), event)
        if kept:
            fake.keep_for(batch, fake.current_stream())
        handover.use(batch)
        del batch
    fake.synchronize(fake.record(handover.copies))
    fake.synchronize()
    assert handover.seen == ([1, 2] if kept else [2, 2])


def test_kept_memory_is_given_out_again_when_its_user_is_done(handover: Handover) -> None:
    fake = handover.fake
    _host, batch, _event = handover.copy(1)
    fake.keep_for(batch, fake.current_stream())
    handover.use(batch)
    address = batch.data_ptr()
    del batch
    with fake.on_stream(handover.copies):
        other = fake.empty_bytes(16)
        assert other.data_ptr() != address
        fake.synchronize()
        assert fake.empty_bytes(16).data_ptr() == address


def test_keeping_memory_ends_with_its_use() -> None:
    fake = FakeDevice()
    side = fake.new_stream()
    batch = fake.empty_bytes(16)
    address = batch.data_ptr()
    fake.keep_for(batch, side)
    del batch
    batch = fake.empty_bytes(16)  # nothing is queued on the other stream
    assert batch.data_ptr() == address
    with fake.on_stream(side):
        fake.launch(lambda: None)
    del batch
    assert fake.empty_bytes(16).data_ptr() == address


def test_memory_is_given_out_again_on_its_own_stream_only(handover: Handover) -> None:
    fake = handover.fake
    first = fake.empty_bytes(16)
    address = first.data_ptr()
    view = first[4:].numpy()
    del first
    assert fake.empty_bytes(16).data_ptr() != address  # a view is left
    del view
    with fake.on_stream(handover.copies):
        other = fake.empty_bytes(16)
    assert other.data_ptr() != address
    assert fake.empty_bytes(16).data_ptr() == address


def test_a_slot_that_is_used_too_early_shows_the_next_batch(handover: Handover) -> None:
    host, batch, event = handover.copy(1)
    host.fill_(2)
    handover.fake.synchronize(event)
    assert handover.fake.read(batch)[0] == 2


def test_pinned_memory_that_is_freed_before_the_copy_is_lost(handover: Handover) -> None:
    host, batch, event = handover.copy(1)
    del host
    handover.fake.synchronize(event)
    assert handover.fake.read(batch)[0] == POISON


def test_a_copy_back_is_there_after_its_event_only(handover: Handover) -> None:
    fake = handover.fake
    _host, batch, event = handover.copy(7)
    back = fake.pinned(16)
    fake.copy(back, batch)
    assert back[0] == POISON
    fake.wait(fake.current_stream(), event)
    fake.copy(back, batch)
    fake.synchronize(fake.record(fake.current_stream()))
    assert back[0] == 7


def test_a_thread_of_a_run_must_enter_the_device_first(handover: Handover) -> None:
    fake = handover.fake
    with pytest.raises(
        RuntimeError, match=r"fake:0\.new_stream .*'spdl_async-copy'.* enter_thread"
    ):
        in_thread(fake.new_stream)
    assert fake.calls[-1] == FakeCall(
        thread="spdl_async-copy", method="misuse", detail="new_stream"
    )

    def right() -> Any:
        fake.enter_thread()
        return fake.new_stream()

    assert in_thread(right).number == 2
    assert in_thread(fake.new_stream, "consumer").number == 3


def test_a_missing_wait_shows_nothing_where_all_runs_at_once() -> None:
    handover = Handover(FakeDevice(lazy=False))
    host, batch, event = handover.copy(1)
    assert handover.fake.is_done(event)
    host.fill_(2)
    handover.use(batch)
    assert handover.seen == [1]


# Memory


def test_torch_is_not_imported_before_a_fake_is_used() -> None:
    code = (
        "import sys, spdl_async.testing as t\n"
        "t.FakeDevice()\n"
        "assert not {'torch', 'numpy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)


def test_new_memory_is_poisoned_and_belongs_to_the_device() -> None:
    fake, other = FakeDevice(), FakeDevice("fake:1")
    memory = fake.empty_bytes(20)
    assert memory.shape == (20,)
    assert memory.dtype is torch.uint8
    assert bool((memory == POISON).all())
    for tensor in (memory, memory[3:], torch.from_numpy(memory.numpy()[5:]), fake.empty_bytes(0)):
        assert fake.is_here(tensor)
        assert not other.is_here(tensor)
        assert not fake.is_pinned(tensor)
    for tensor in (torch.zeros(3), torch.empty(0), fake.pinned(4), torch.eye(2).to_sparse()):
        assert not fake.is_here(tensor)


def test_bytes_on_the_device_are_those_that_tensors_refer_to() -> None:
    fake = FakeDevice(memory=100)
    first, second = fake.empty_bytes(48), fake.empty_bytes(33)
    assert fake.bytes_on_device == 96
    with pytest.raises(
        FakeOutOfMemory, match=r"fake:0 is out of memory: 8 bytes asked for, 96 of 100"
    ):
        fake.empty(torch.zeros(2))
    view = second[1:]
    del first, second
    assert fake.bytes_on_device == 48
    del view
    assert fake.bytes_on_device == 0
    assert fake.peak_bytes_on_device == 96
    fake.memory = None
    assert fake.empty_bytes(1000).shape == (1000,)
    assert FakeOutOfMemory in fake.out_of_memory


def test_pinned_memory_is_what_was_allocated_or_registered() -> None:
    fake = FakeDevice()
    slot = fake.pinned(20)
    assert fake.is_pinned(slot[3:])
    assert bool((slot == POISON).all())
    assert fake.pinned_allocations == 1
    foreign = torch.arange(10)
    assert not fake.is_pinned(foreign)
    fake.pin(foreign[2:])
    assert fake.is_pinned(foreign)
    assert fake.is_pinned(torch.from_numpy(foreign.numpy()[3:]))
    target = fake.empty(foreign[3:6])
    fake.copy(target, foreign[3:6])
    assert fake.read(target).tolist() == [3, 4, 5]
    assert fake.pinned_allocations == 1


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=torch.channels_last),
        torch.arange(12.0)[::2],
        torch.ones(1).expand(4),
        torch.tensor(5),
        torch.empty(0, 3),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
        torch.arange(3.0, requires_grad=True),
    ],
    ids=str,
)
def test_any_strided_tensor_goes_there_and_back(tensor: Any) -> None:
    fake = FakeDevice()
    there = fake.send(tensor.detach())
    assert fake.send(there) is there
    assert fake.is_here(there)
    assert not fake.empty(tensor).requires_grad
    assert there.dtype is tensor.dtype
    assert there.stride() == torch.empty_like(tensor).stride()
    fake.launch(lambda x: x.add_(1) if x.dtype is not torch.bool else x, there)
    expected = tensor if tensor.dtype is torch.bool else tensor + 1
    assert torch.equal(fake.read(there), expected)


@pytest.mark.filterwarnings("ignore:.*quantize.*deprecated:UserWarning")
def test_other_tensors_are_refused() -> None:
    fake = FakeDevice()
    quantised = torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)
    for tensor in (torch.eye(2).to_sparse(), quantised):
        with pytest.raises(TypeError, match="a FakeDevice has no"):
            fake.empty(tensor)


# Copies


@pytest.mark.parametrize("pick", [lambda x: x.conj(), lambda x: x.conj().imag, lambda x: x[1:].t()])
def test_views_of_pinned_memory_are_copied_as_they_read(pick: Callable[[Any], Any]) -> None:
    fake = FakeDevice()
    host = fake.pinned(32).view(torch.complex64).reshape(2, 2)
    host.copy_(torch.tensor([[1 + 2j, 3 - 1j], [2j, 5]]))
    source = pick(host)
    target = fake.empty(source)
    fake.copy(target, source)
    assert torch.equal(fake.read(target), source)


def test_a_copy_from_pageable_memory_is_done_at_once_and_said() -> None:
    fake = FakeDevice()
    source = torch.ones(4)
    target = fake.empty(source)
    fake.copy(target, source)
    assert fake.calls[-1].detail == "pageable copy"
    assert fake.calls[-1].size == 16
    assert fake.host_synchronizations == 1
    assert target.tolist() == [1, 1, 1, 1]


def test_a_pinned_copy_between_layouts_is_a_pageable_one() -> None:
    fake = FakeDevice()
    source = fake.pinned(6).reshape(2, 3)
    fake.copy(fake.empty_bytes(6).reshape(3, 2).t(), source)
    assert fake.calls[-1].detail == "pageable copy"
    fake.copy(fake.empty_bytes(3), fake.pinned(6)[::2])
    assert fake.calls[-1].detail == "pageable copy"
    fake.copy(fake.empty(source.t()), source.t())
    assert fake.calls[-1].detail == "host to device"
    here = fake.empty(source)
    fake.copy(here.t(), fake.empty(source.t().contiguous()))
    assert fake.calls[-1].detail == "device to device"
    fake.copy(source, here)
    assert fake.calls[-1].detail == "device to host"


def test_copies_that_make_no_sense_are_refused() -> None:
    fake = FakeDevice()
    with pytest.raises(ValueError, match="neither tensor of a copy is on fake:0"):
        fake.copy(torch.ones(1), torch.ones(1))
    with pytest.raises(ValueError, match=r"torch.float32 \(2,\) to torch.uint8 \(8,\): they must"):
        fake.copy(fake.empty_bytes(8), torch.ones(2))
    with pytest.raises(ValueError, match="neither there nor in pinned memory"):
        fake.launch(print, torch.ones(1))
    with pytest.raises(ValueError, match="not on fake:0"):
        fake.keep_for(torch.ones(1), fake.current_stream())
    stranger = FakeDevice("fake:1").new_stream()
    for call in (fake.on_stream, fake.record, lambda s: fake.keep_for(fake.empty_bytes(1), s)):
        with pytest.raises(ValueError, match=r"of fake:1.* is not a stream of fake:0"):
            call(stranger)


class Bag:
    """Something that brings its own ``to``."""

    def __init__(self, **tensors: Any) -> None:
        self.tensors = tensors

    def to(self, device: Any, non_blocking: bool = False) -> Bag:
        moved = {
            name: tensor.to(device=device, non_blocking=non_blocking)
            for name, tensor in self.tensors.items()
        }
        return Bag(**moved)


def test_what_moves_itself_moves_to_the_fake() -> None:
    fake = FakeDevice()
    bag = fake.move(Bag(x=torch.ones(2), y=torch.zeros(1)))
    assert all(fake.is_here(tensor) for tensor in bag.tensors.values())
    assert fake.read(bag.tensors["x"]).tolist() == [1, 1]
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    assert fake.is_here(fake.move(packed).data)
    assert fake.is_here(fake.move(torch.ones(2)))


# Streams


def test_only_what_an_event_needs_runs() -> None:
    fake = FakeDevice()
    ran: list[str] = []
    one, other = fake.new_stream(), fake.new_stream()

    def launch(stream: Any, name: str) -> None:
        with fake.on_stream(stream):
            fake.launch(lambda: ran.append(name))

    launch(one, "a")
    launch(other, "b")
    first = fake.record(other)
    launch(other, "c")
    fake.wait(one, first)
    launch(one, "d")
    second = fake.record(one)
    launch(one, "e")
    assert ran == []
    fake.synchronize(second)
    assert ran == ["a", "b", "d"]
    assert fake.is_done(first)
    assert fake.is_done(second)
    fake.synchronize(one)
    assert ran == ["a", "b", "d", "e"]
    fake.synchronize()
    assert ran == ["a", "b", "d", "e", "c"]


def test_a_device_gets_on_without_a_thread_that_waits() -> None:
    fake = FakeDevice()
    ran: list[int] = []
    stream = fake.current_stream()
    events = []
    for n in range(4):
        fake.launch(lambda n=n: ran.append(n))
        events.append(fake.record(stream))
    noted = len(fake.calls)
    fake.advance(events[1])
    assert ran == [0, 1]
    assert [event.done for event in events] == [True, True, False, False]
    fake.advance(events[0])
    assert ran == [0, 1]
    fake.advance(stream)
    assert ran == [0, 1, 2, 3]
    fake.launch(lambda: ran.append(4))
    fake.advance()
    assert ran == [0, 1, 2, 3, 4]
    assert len(fake.calls) == noted + 1
    assert fake.host_synchronizations == 0


def test_what_was_queued_in_inference_mode_runs_outside_of_it() -> None:
    fake = FakeDevice()
    host = pinned(fake, 1)
    with torch.inference_mode():
        batch = fake.empty(host)
        fake.copy(batch, host)
        fake.launch(lambda x: x.add_(1), batch)
    assert fake.read(batch)[0] == 2


def test_a_stream_waits_for_an_event_of_another_device() -> None:
    fake, other = FakeDevice(), FakeDevice("fake:1")
    seen: list[str] = []
    other.launch(lambda: seen.append("other"))
    fake.wait(fake.current_stream(), other.record(other.current_stream()))
    fake.launch(lambda: seen.append("fake"))
    fake.synchronize()
    assert seen == ["other", "fake"]


def test_each_thread_has_its_own_current_stream() -> None:
    fake = FakeDevice()
    default, side = fake.current_stream(), fake.new_stream()
    with fake.on_stream(side):
        assert fake.current_stream() is side
        assert in_thread(fake.current_stream, "consumer") is default
        with fake.on_stream(default):
            assert fake.current_stream() is default
        assert fake.current_stream() is side
    assert fake.current_stream() is default


def test_what_fails_on_a_stream_fails_for_who_waits() -> None:
    fake = FakeDevice()
    fake.launch(lambda: 1 / 0)
    event = fake.record(fake.current_stream())
    with pytest.raises(ZeroDivisionError):
        fake.synchronize(event)
    fake.synchronize(event)


def test_many_threads_wait_at_once() -> None:
    fake = FakeDevice()
    total: list[int] = []

    def work() -> None:
        stream = fake.new_stream()
        for n in range(50):
            with fake.on_stream(stream):
                fake.launch(lambda n=n: total.append(n))
            fake.wait(fake.current_stream(), fake.record(stream))
            fake.synchronize(fake.record(fake.current_stream()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(total) == sorted([*range(50)] * 4)
    assert fake.host_synchronizations == 200


# What a test asks for


def test_calls_are_noted_in_order() -> None:
    fake = FakeDevice()
    stream = fake.new_stream()
    host = fake.pinned(16)
    with fake.on_stream(stream):
        batch = fake.empty(host)
        fake.copy(batch, host)
    event = fake.record(stream)
    fake.wait(fake.current_stream(), event)
    fake.keep_for(batch, fake.current_stream())
    fake.synchronize(event)
    told = [(c.method, c.detail, c.stream, c.event, c.size) for c in fake.calls]
    assert told == [
        ("new_stream", "", 1, None, None),
        ("pinned", "", None, None, 16),
        ("on_stream", "", 1, None, None),
        ("empty", "", 1, None, 16),
        ("copy", "host to device", 1, None, 16),
        ("record", "", 1, 1, None),
        ("current_stream", "", 0, None, None),
        ("wait", "", 0, 1, None),
        ("current_stream", "", 0, None, None),
        ("keep_for", "", 0, None, 16),
        ("synchronize", "", 1, 1, None),
    ]
    assert {c.thread for c in fake.calls} == {threading.current_thread().name}


def test_calls_fail_when_they_are_told_to() -> None:
    fake = FakeDevice()
    fake.fail("pinned", FakeOutOfMemory, after=1, times=2)
    outcomes = []
    for _ in range(5):
        try:
            fake.pinned(1)
            outcomes.append("ok")
        except FakeOutOfMemory:
            outcomes.append("failed")
    assert outcomes == ["ok", "failed", "failed", "ok", "ok"]
    error = OSError("gone")
    fake.fail("record", error, times=None)
    for _ in range(3):
        with pytest.raises(OSError, match="gone"):
            fake.record(fake.current_stream())
    with pytest.raises(ValueError, match="'cpy' is no method of a FakeDevice: enter_thread, "):
        fake.fail("cpy", error)


def test_a_thread_stops_within_a_call_until_it_is_released() -> None:
    fake = FakeDevice()
    done = threading.Event()
    with fake.hold("synchronize") as hold:

        def wait() -> None:
            fake.synchronize()
            done.set()

        thread = threading.Thread(target=wait)
        thread.start()
        hold.wait_reached()
        assert fake.calls[-1].method == "synchronize"
        assert not done.is_set()
        fake.new_stream()  # others go on
    thread.join()
    assert done.is_set()
    fake.synchronize()
    with pytest.raises(TimeoutError, match="no thread called copy within 0 seconds"):
        fake.hold("copy").wait_reached(0)
