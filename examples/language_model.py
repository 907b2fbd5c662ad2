"""Train a tiny language model on documents that are packed into sequences of one length.

    python examples/language_model.py CORPUS [CORPUS …] [--length 256] [--batch-size 16] [--steps 500]
    python examples/language_model.py --smoke

A corpus is a file of JSON lines, plain, .gz or .zst, each with a "text". ``--smoke`` makes two small
ones in a temporary folder; that takes a few seconds.

What it shows:

- ``.expand(read_jsonl)``: files become documents as their lines are read, two files at a time.
- A tokenizer as an ordinary function; here a token is a byte, so that nothing has to be fetched.
- ``.aggregate(pack_tokens(…))``: documents of all lengths become sequences of one, with next to no padding,
  and each sequence says where its documents begin.
- Attention that stays within a document: ``segment_ids`` say who may see whom, ``position_ids`` begin anew
  with each document.
- An async loop around a blocking training step, which runs in a thread of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import logging
import random
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from spdl_async import Pipeline, PipelineBuilder
from spdl_async.collate import collate
from spdl_async.io import PackedTokens, pack_tokens, read_jsonl

if TYPE_CHECKING:
    from numpy.typing import NDArray

END = 256  # behind each document, after the 256 bytes
VOCABULARY = 257
NO_TARGET = -100  # what cross_entropy leaves out


class Sample(NamedTuple):
    """A sequence and what is known of its tokens, each of shape (length,); of a batch, as tensors."""

    tokens: Any
    targets: Any
    positions: Any
    segments: Any


def tokenize(record: dict[str, Any]) -> NDArray[np.uint8]:
    """Turn a document into tokens, a byte each."""
    return np.frombuffer(record["text"].encode("utf-8"), np.uint8)


def with_targets(packed: PackedTokens) -> Sample:
    """Pair each token with the next one of its own document."""
    segments = packed.segment_ids
    targets = np.roll(packed.tokens, -1)
    targets[:-1][segments[:-1] != segments[1:]] = NO_TARGET
    targets[-1] = NO_TARGET
    targets[~packed.mask] = NO_TARGET
    return Sample(packed.tokens, targets, packed.position_ids.astype(np.int64), segments)


def build(
    corpora: Sequence[Path], *, length: int, batch_size: int, seed: int = 0
) -> Pipeline[Sample]:
    """Describe the loading; nothing starts before the pipeline is run."""
    return (
        PipelineBuilder()
        .add_source(corpora, name="corpora")
        .expand(partial(read_jsonl, damaged="skip"), concurrency=2, name="read")
        .shuffle(1000)  # documents, not sequences: neighbours in a sequence are then strangers
        .pipe(tokenize)
        .aggregate(pack_tokens(length, separator=END), drop_last=True, name="pack")
        .pipe(with_targets)
        .aggregate(batch_size, drop_last=True)
        .pipe(collate)
        .build(name="language model", seed=seed)
    )


class Model(nn.Module):
    """One block of a transformer: enough to learn which bytes follow which."""

    def __init__(self, length: int, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(length, width)
        self.attention = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.deep = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.guess = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        """Return scores of shape (batch, length, vocabulary)."""
        batch, length = tokens.shape
        x = self.tokens(tokens) + self.positions(positions)
        # A token sees itself and what stands before it in its own document.
        visible = (segments[:, :, None] == segments[:, None, :]).tril()
        parts = self.attention(self.before(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=visible[:, None]
        )
        x = x + self.mixed(seen.transpose(1, 2).reshape(batch, length, -1))
        scores: Tensor = self.guess(self.after(x + self.deep(x)))
        return scores


class Trainer:
    """A model and its optimizer; ``step`` is ordinary blocking code."""

    def __init__(self, length: int) -> None:
        torch.manual_seed(0)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = Model(length).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)

    def step(self, sample: Sample) -> float:
        """Train on one batch; return its loss, in nats a token."""
        tokens, targets, positions, segments = (part.to(self.device) for part in sample)
        scores = self.model(tokens, positions, segments)
        loss = functional.cross_entropy(
            scores.flatten(0, 1), targets.flatten(), ignore_index=NO_TARGET
        )
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.item()


async def train(pipeline: Pipeline[Sample], *, length: int, steps: int) -> None:
    """Train for some steps, over as many epochs as they take."""
    trainer, losses = Trainer(length), list[float]()
    async with pipeline.epochs() as runs:
        async for run in runs:
            began = len(losses)
            async for sample in run:
                losses.append(await asyncio.to_thread(trainer.step, sample))
                if len(losses) % max(1, steps // 5) == 0:
                    print(f"step {len(losses)}, epoch {run.epoch}: loss {losses[-1]:.3f}")
                if len(losses) == steps:
                    print(run.statistics())
                    return
            if len(losses) == began:
                raise SystemExit(
                    "the corpora hold less than one batch: lower --batch-size or --length"
                )


def make_smoke_corpora(folder: Path) -> list[Path]:
    """Write documents of very different lengths, one file compressed, with one damaged line."""
    rng = random.Random(0)
    words = [
        "to",
        "be",
        "or",
        "not",
        "that",
        "is",
        "the",
        "question",
        "whether",
        "it",
        "is",
        "nobler",
        "in",
        "the",
        "mind",
    ]
    paths = [folder / "a.jsonl", folder / "b.jsonl.gz"]
    for path in paths:
        texts = [" ".join(rng.choices(words, k=rng.randint(3, 120))) for _ in range(150)]
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        if path.suffix == ".jsonl":
            lines[10] = lines[10][:20] + "\n"
        data = "".join(lines).encode("utf-8")
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return paths


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description="Train a tiny language model on JSON lines.")
    parser.add_argument("corpora", type=Path, nargs="*", help='files of lines with a "text"')
    parser.add_argument("--length", type=int, default=256, help="tokens in a sequence")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--smoke", action="store_true", help="train on a few made-up documents")
    options = parser.parse_args()
    # A file with damaged lines is reported once in each epoch.
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    if not options.corpora and not options.smoke:
        parser.error("give a CORPUS, or --smoke")
    if options.smoke:
        options.length, options.batch_size, options.steps = 128, 8, 60
    with tempfile.TemporaryDirectory() as folder:
        corpora = make_smoke_corpora(Path(folder)) if options.smoke else options.corpora
        pipeline = build(corpora, length=options.length, batch_size=options.batch_size)
        asyncio.run(train(pipeline, length=options.length, steps=options.steps))


if __name__ == "__main__":
    main()
