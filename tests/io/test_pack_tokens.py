"""pack_tokens: every token once, in sequences whose boundaries say where it came from."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, assert_type

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spdl_async import BuildError, PipelineBuilder
from spdl_async.io import PackedTokens, pack_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray


def packed(documents: list[Any], length: int, **options: Any) -> list[PackedTokens]:
    builder = PipelineBuilder().add_source(documents)
    return list(builder.aggregate(pack_tokens(length, **options)).build())


def unpacked(sequences: list[PackedTokens]) -> dict[int, list[int]]:
    """Put the documents together again."""
    found: dict[int, list[int]] = defaultdict(list)
    for sequence in sequences:
        bounds = sequence.cu_seqlens.tolist()
        for part, document in enumerate(sequence.documents.tolist()):
            found[document] += sequence.tokens[bounds[part] : bounds[part + 1]].tolist()
    found.pop(-1, None)
    return dict(found)


DOCUMENTS = st.lists(st.lists(st.integers(0, 60_000), max_size=40), max_size=30)


@given(
    documents=DOCUMENTS,
    length=st.integers(1, 17),
    fit=st.sampled_from(["split", "best"]),
    window=st.integers(1, 5),
    separator=st.none() | st.just(65_000),
    as_array=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_every_token_comes_out_exactly_once(
    documents: list[list[int]],
    length: int,
    fit: Any,
    window: int,
    separator: int | None,
    as_array: bool,
) -> None:
    packer = pack_tokens(
        length, fit=fit, window=window, separator=separator, pad=7, dtype=np.uint16
    )
    out: list[PackedTokens] = []
    for document in documents:
        out += packer.accumulate(np.array(document, np.int32) if as_array else document)
    out += packer.flush()
    assert packer.flush() == []
    end = [] if separator is None else [separator]
    assert unpacked(out) == {n: d + end for n, d in enumerate(documents) if d}
    total = sum(len(document) + len(end) for document in documents if document)
    for sequence in out:
        check(sequence, length)
    if fit == "split":
        assert len(out) == -(-total // length)
        assert all(sequence.mask.all() for sequence in out[:-1])
    else:
        whole = {n for n, d in enumerate(documents) if d and len(d) + len(end) <= length}
        parts = [d for sequence in out for d in sequence.documents.tolist()]
        assert all(parts.count(n) == 1 for n in whole)  # a short document is never cut
    said = packer.statistics()
    assert said["tokens"] == total
    assert said["sequences"] == len(out)
    assert said["padding"] == pytest.approx(1 - total / (len(out) * length) if out else 0)
    assert said["documents"] == len(documents)
    assert said["split"] == len({n for n in unpacked(out) if times(out, n) > 1})


def times(sequences: list[PackedTokens], document: int) -> int:
    return sum(s.documents.tolist().count(document) for s in sequences)


def check(sequence: PackedTokens, length: int) -> None:
    """Look at all that is said about a sequence."""
    bounds = sequence.cu_seqlens
    assert sequence.tokens.shape == (length,)
    assert sequence.tokens.dtype == np.uint16
    assert bounds.dtype == np.int32
    assert (bounds[0], bounds[-1]) == (0, length)
    assert (np.diff(bounds) > 0).all()
    assert sequence.documents.shape == (len(bounds) - 1,)
    sizes = np.diff(bounds).tolist()
    padded = bool(sequence.documents[-1] == -1)
    assert (sequence.documents[:-1] >= 0).all()
    ids = [n for n, size in enumerate(sizes) for _ in range(size)]
    positions = [k for size in sizes for k in range(size)]
    pads = sizes[-1] if padded else 0
    assert sequence.segment_ids.tolist() == ids[: length - pads] + [-1] * pads
    assert sequence.position_ids.tolist() == positions
    assert sequence.mask.tolist() == [True] * (length - pads) + [False] * pads
    assert (sequence.tokens[length - pads :] == 7).all()


def test_best_fit_takes_the_fullest_that_has_room() -> None:
    documents = [[1] * 6, [2] * 5, [3] * 4, [4] * 5, [5] * 9, [6]]
    found = [s.documents.tolist() for s in packed(documents, 10, fit="best", window=3)]
    # 3 goes with 0, not with 1, which would leave a token of room; 4 into 1; and 5 into 4.
    assert found == [[0, 2], [1, 3], [4, 5]]
    narrow = [s.documents.tolist() for s in packed(documents, 10, fit="best", window=1)]
    assert len(narrow) > len(found)


def test_best_fit_pads_little() -> None:
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(5, 1, 3000).astype(int) + 1, 1024)
    documents = [np.zeros(n, np.uint16) for n in lengths]
    shares = []
    for window in (1, 8, 64):
        packer = pack_tokens(1024, fit="best", window=window)
        for document in documents:
            packer.accumulate(document)
        packer.flush()
        shares.append(packer.statistics()["padding"])
    assert shares[0] > shares[1] > shares[2]  # type: ignore[operator]  # numbers
    assert shares[2] < 0.03  # type: ignore[operator]


def test_drop_last_drops_what_is_not_full() -> None:
    builder = PipelineBuilder().add_source([[1, 2, 3], [4, 5]])
    found = list(builder.aggregate(pack_tokens(4), drop_last=True).build())
    assert [s.tokens.tolist() for s in found] == [[1, 2, 3, 4]]


@pytest.mark.parametrize("fit", ["split", "best"])
def test_a_flush_before_the_end_goes_on_with_the_next_document(fit: Any) -> None:
    packer = pack_tokens(4, fit=fit)  # as aggregate(within=) does where the source pauses
    assert packer.accumulate([1, 2]) == []
    (first,) = packer.flush()
    assert packer.flush() == []
    assert packer.accumulate([3]) == []
    (second,) = packer.flush()
    assert unpacked([first, second]) == {0: [1, 2], 1: [3]}
    assert packer.statistics()["padding"] == 1 - 3 / 8


def test_passes_are_fresh_and_the_statistics_are_shown() -> None:
    pipeline = (
        PipelineBuilder().add_source([[1, 2, 3]]).aggregate(pack_tokens(2), name="pack").build()
    )
    for _ in range(2):
        with pipeline.run_sync() as run:
            assert [s.tokens.tolist() for s in run] == [[1, 2], [3, 0]]
        (stage,) = [s for s in run.statistics().stages if s.name == "pack"]
        assert stage.notes == {
            "sequences": 2,
            "documents": 1,
            "tokens": 3,
            "split": 1,
            "padding": 0.25,
        }
        assert "padding" in str(run.statistics())


def test_what_comes_out_does_not_change_with_the_document() -> None:
    document = np.array([1, 2, 3], np.int64)
    packer = pack_tokens(4)
    packer.accumulate(document)
    document[:] = 9
    (found,) = packer.accumulate([4])
    assert found.tokens.tolist() == [1, 2, 3, 4]
    assert found.tokens.flags.writeable
    big = pack_tokens(3, fit="best").accumulate(document)
    assert not np.shares_memory(big[0].tokens, document)


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ([1.5], TypeError),
        ([[1, 2]], TypeError),
        ("text", TypeError),
        (b"bytes", TypeError),
        ([True], TypeError),
        (5, TypeError),
        ([70_000], ValueError),
        ([-1], ValueError),
        ([2**70], TypeError),
    ],
)
def test_a_bad_document_is_a_failure_of_its_own(document: Any, error: type[Exception]) -> None:
    builder = PipelineBuilder().add_source([[1], document, [2]])
    pipeline = builder.aggregate(
        pack_tokens(2, dtype=np.uint16), on_error="skip", max_failures=1
    ).build()
    with pipeline.run_sync() as run:
        assert [s.tokens.tolist() for s in run] == [[1, 2]]
    assert [failure.index for failure in run.failures] == [1]
    with pytest.raises(error, match="pack_tokens: "):
        pack_tokens(2, dtype=np.uint16).accumulate(document)


@pytest.mark.parametrize(
    "options",
    [
        {"length": 0},
        {"length": 2.0},
        {"length": 1 << 31},
        {"fit": "worst"},
        {"window": 0},
        {"dtype": float},
        {"dtype": "nonsense"},
        {"pad": -1, "dtype": np.uint8},
        {"pad": None},
        {"separator": 300, "dtype": np.uint8},
        {"separator": "x"},
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BuildError, match="pack_tokens: "):
        pack_tokens(**{"length": 4, **options})


def test_tensors_are_documents_too() -> None:
    torch = pytest.importorskip("torch")
    (found,) = packed([torch.tensor([1, 2]), torch.tensor([3], dtype=torch.int32)], 3)
    assert found.tokens.tolist() == [1, 2, 3]


def test_the_chain_is_typed() -> None:
    def tokenize(text: str) -> NDArray[np.uint16]:
        return np.frombuffer(text.encode(), np.uint8).astype(np.uint16)

    def to_list(text: str) -> list[int]:
        return list(text.encode())

    texts = PipelineBuilder().add_source(["to be"])
    arrays = assert_type(
        texts.pipe(tokenize).aggregate(pack_tokens(4)), PipelineBuilder[PackedTokens]
    )
    lists = assert_type(
        texts.pipe(to_list).aggregate(pack_tokens(4)), PipelineBuilder[PackedTokens]
    )
    for builder in (arrays, lists):
        assert "".join(map(chr, next(iter(builder.build())).tokens)) == "to b"
