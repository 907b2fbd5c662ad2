"""Objects of the user's own that hold tensors: on the device, handed over, and back on the host."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from fakes import calls, notes

from spdl_async import BuildError, DeviceError, PipelineBuilder
from spdl_async.testing import FakeDevice

pytestmark = pytest.mark.torch


class Boxes:
    """As detection libraries have them."""

    def __init__(self, corners: Any) -> None:
        self.corners = corners

    def to(self, *args: Any, **options: Any) -> Boxes:
        return Boxes(self.corners.to(*args, **options))


class Instances:
    """Holds other objects, and looks at what it moves."""

    def __init__(self, boxes: Boxes) -> None:
        self.fields = {"boxes": boxes}
        self.seen: list[float] = []

    def to(self, *args: Any, **options: Any) -> Instances:
        moved = Instances(self.fields["boxes"].to(*args, **options))
        if args[0] == "cpu":
            moved.seen = moved.fields["boxes"].corners.tolist()
        return moved


class Bare:
    """Has no to()."""

    def __init__(self, boxes: Any) -> None:
        self.boxes = boxes


class Model(torch.nn.Module):
    """A weight that no batch has to tell of."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)


def source(made: Iterable[Any]) -> PipelineBuilder[Any]:
    return PipelineBuilder().add_source(list(made))


def numbers(count: int = 4) -> list[Any]:
    return [torch.full((4,), float(k)) for k in range(count)]


def test_tensors_of_objects_in_objects_are_handed_over() -> None:
    fake = FakeDevice()
    got: list[list[float]] = []
    for batch in source(Instances(Boxes(t)) for t in numbers(20)).to_device(fake, depth=1).build():
        fake.launch(lambda t: got.append(t.tolist()), batch.fields["boxes"].corners)
        del batch  # its kernel has not run yet
    fake.synchronize()
    assert got == [[float(k)] * 4 for k in range(20)]
    assert len([call for call in calls(fake, "keep_for") if call.thread == "MainThread"]) == 20


def test_so_are_those_that_an_op_makes() -> None:
    fake = FakeDevice()

    def op(batch: Any) -> Any:
        out = fake.empty(batch)
        fake.launch(lambda i, o: o.copy_(i + 1), batch, out)
        return [Bare(Bare(Boxes(out)))]

    got: list[list[float]] = []
    for batch in source(numbers()).to_device(fake).pipe(op).build():
        fake.launch(lambda t: got.append(t.tolist()), batch[0].boxes.boxes.corners)
    fake.synchronize()
    assert got == [[k + 1.0] * 4 for k in range(4)]
    claimed = [call for call in calls(fake, "keep_for") if call.thread == "MainThread"]
    assert len(claimed) == 4


def test_a_model_is_no_part_of_a_result() -> None:
    fake = FakeDevice()
    model = Model(fake.send(torch.ones(3)))
    for _ in source(numbers(1)).to_device(fake).pipe(lambda _: Bare(model)).build():
        pass
    assert not [call for call in calls(fake, "keep_for") if call.thread == "MainThread"]


def test_objects_come_back_to_the_host_complete() -> None:
    fake = FakeDevice()
    made = source({"found": Instances(Boxes(t)), "key": k} for k, t in enumerate(numbers()))
    for k, batch in enumerate(made.to_device(fake).to_host().build()):
        corners = batch["found"].fields["boxes"].corners
        assert not fake.is_here(corners)
        assert fake.is_pinned(corners)
        assert corners.tolist() == batch["found"].seen == [float(k)] * 4
        assert batch["key"] == k


def test_an_object_of_the_host_is_the_same_one() -> None:
    fake = FakeDevice()
    boxes = Boxes(torch.ones(2))
    made = source([{"image": torch.ones(3), "boxes": boxes}]).to_device(fake, only=("image",))
    (batch,) = made.to_host().build()
    assert batch["boxes"] is boxes


def test_an_object_that_cannot_come_back_is_an_error() -> None:
    fake = FakeDevice()
    pipeline = source(numbers()).to_device(fake).pipe(Bare).to_host().build()
    with pytest.raises(DeviceError, match=r"still on fake:0, in objects without a to\(\)"):
        list(pipeline)


def test_what_cannot_be_pinned_is_copied_unpinned(caplog: pytest.LogCaptureFixture) -> None:
    class Pins(Boxes):
        def pin_memory(self) -> Boxes:
            raise RuntimeError("CUDA error: out of memory")

    fake = FakeDevice()
    pipeline = source(Pins(t) for t in numbers()).to_device(fake).build()
    with pipeline.run_sync() as run:
        assert [fake.read(batch.corners)[0].item() for batch in run] == [0, 1, 2, 3]
        assert notes(run.statistics())["pageable_batches"] == 4
    (said,) = caplog.messages
    assert "no page-locked memory for a Pins" in said


def test_size_of_gets_batches() -> None:
    seen: set[type] = set()

    def size_of(value: Any) -> int:
        seen.add(type(value))
        return 8

    fake = FakeDevice()
    made = source({"image": t} for t in numbers()).to_device(fake)
    pipeline = made.aggregate(2).pipe(tuple).pipe(lambda pair: (pair, 1)).to_host()
    assert len(list(pipeline.build(max_bytes=10_000, size_of=size_of))) == 2
    assert seen == {dict, tuple}


@pytest.mark.parametrize("batch", [torch.ones(2), {"image": torch.ones(2)}], ids=["tensor", "dict"])
def test_messages_name_the_batch(batch: Any) -> None:
    with pytest.raises(TypeError, match=rf"an item is a {type(batch).__name__}, not a list"):
        list(source([batch]).to_device(FakeDevice()).disaggregate().build())


def test_a_name_that_is_taken() -> None:
    with pytest.raises(BuildError, match=r"^to_device: there is a stage 'gpu' already"):
        source([]).to_device("cpu", name="gpu").to_device("cpu", name="gpu").build()


def test_a_builder_can_be_pickled() -> None:
    builder = PipelineBuilder().add_source([torch.ones(2)]).to_device("cpu").to_host()
    again = pickle.loads(pickle.dumps(builder))
    assert [batch.tolist() for batch in again.build()] == [[1, 1]]
    list(builder.build())


def test_only_takes_the_keys_of_a_dict() -> None:
    fake = FakeDevice()
    batch = {"image": torch.ones(2), "mask": torch.ones(2)}
    (got,) = source([batch]).to_device(fake, only={"image": 1}.keys()).build()
    assert fake.is_here(got["image"])
    assert got["mask"] is batch["mask"]


def test_a_list_that_holds_itself_passes() -> None:
    cycle: list[Any] = []
    cycle += [cycle, torch.ones(2)]
    fake = FakeDevice()
    (got,) = (
        source([0]).pipe(lambda _: torch.ones(2)).to_device(fake).pipe(lambda t: [t, cycle]).build()
    )
    assert got[1] is cycle
