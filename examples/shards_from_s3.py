"""Stream samples from tar shards in object stores, shuffled, and mixed from two sources.

    python examples/shards_from_s3.py s3://bucket/photos s3://bucket/drawings [--weights 3 1]
    python examples/shards_from_s3.py --smoke

Each URL holds shards, ``*.tar``, whose members go in pairs: ``0001.jpg`` (or another format) and
``0001.cls``, the number of its class as text. ``--smoke`` starts an S3 service in this process
(moto's), puts a few shards into it, one of them damaged, and reads them; that takes a few seconds.

What it shows:

- The URLs of the shards are the source: `list_files` lists them page by page, and each epoch lists
  them again. They are shuffled before they are fetched, which costs nothing.
- The store is the op that fetches: ``.pipe(store, concurrency=4)`` on the loop. Four shards at a
  time are in memory, and not one on the disk.
- A shard becomes its samples in a thread (``expand``); of a damaged one the samples before the
  damage count, and the failure names the shard.
- ``Merge`` takes three samples of one source for each of the other, whatever the shards' sizes.
- A window of samples is shuffled at the end, so that neighbours in a shard are none in a batch.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from spdl_async import Merge, Pipeline, PipelineBuilder
from spdl_async.collate import collate
from spdl_async.io import Store, decode_image, list_files, tar_samples

SMOKE_KEYS = {"access_key_id": "smoke", "secret_access_key": "smoke", "region": "us-east-1"}


class Sample(NamedTuple):
    """A picture, uint8 of shape (height, width, 3), and its class; of a batch, both as tensors."""

    image: Any
    label: Any


def decode(sample: Mapping[str, Any], *, size: int) -> Sample:
    """Decode the picture of a sample, whatever its extension says, and its class."""
    extension = next(name for name in sample if name != "cls" and not name.startswith("__"))
    return Sample(decode_image(sample[extension], size=size), int(bytes(sample["cls"])))


def build(
    stores: Sequence[Store], weights: Sequence[float], *, size: int, batch_size: int, threads: int
) -> Pipeline[Sample]:
    """Describe the loading: batches of samples from all stores."""
    sources = [
        PipelineBuilder()
        .add_source(list_files(store, "**/*.tar"), name=f"list {store.root}")
        .shuffle(1000)  # URLs are small
        .pipe(store, concurrency=4, name=f"fetch {store.root}")
        .expand(tar_samples, name=f"untar {store.root}", on_error="skip")
        for store in stores
    ]
    return (
        PipelineBuilder()
        .add_source(Merge(*sources, weights=list(weights)))
        .shuffle(200)
        .pipe(partial(decode, size=size), concurrency=threads, on_error="skip")
        .aggregate(batch_size, drop_last=True)
        .pipe(collate)
        .build(name="shards", seed=0)
    )


async def count_classes(pipeline: Pipeline[Sample], *, epochs: int) -> None:
    """Go through the data for some epochs, and say what was in them."""
    async with pipeline.epochs(epochs) as runs:
        async for run in runs:
            counts: dict[int, int] = {}
            async for batch in run:
                for label in batch.label.tolist():
                    counts[label] = counts.get(label, 0) + 1
            found = ", ".join(f"class {label}: {counts[label]}" for label in sorted(counts))
            print(f"epoch {run.epoch}: {found}")
    print(run.statistics())
    for failure in run.failures:
        print(f"skipped: {failure.summary()}")


@contextlib.contextmanager
def smoke_service() -> Iterator[dict[str, Any]]:
    """Run an S3 service on loopback with one empty bucket; give the options of a `Store` for it."""
    import logging

    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name=SMOKE_KEYS["region"],
            aws_access_key_id=SMOKE_KEYS["access_key_id"],
            aws_secret_access_key=SMOKE_KEYS["secret_access_key"],
        )
        with contextlib.closing(client):
            client.create_bucket(Bucket="smoke")
        yield {
            "config": {**SMOKE_KEYS, "endpoint": endpoint, "virtual_hosted_style_request": False},
            "client": {"allow_http": True},
        }
    finally:
        server.stop()


def make_smoke_shard(seed: int, label: int, *, count: int = 20) -> bytes:
    """Make a shard of small pictures of one class."""
    random = np.random.default_rng(seed)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as shard:
        for number in range(count):
            picture = io.BytesIO()
            pixels = random.integers(0, 256, (48, 64, 3), np.uint8)
            Image.fromarray(pixels).save(picture, "PNG" if number % 2 else "JPEG")
            extension = "png" if number % 2 else "jpg"
            for name, data in ((extension, picture.getvalue()), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{seed:02}{number:04}.{name}")
                member.size = len(data)
                shard.addfile(member, io.BytesIO(data))
    return file.getvalue()


async def fill_smoke_stores(stores: Sequence[Store]) -> None:
    """Put three shards into each store, and a damaged one into the last."""
    for label, store in enumerate(stores):
        for number in range(3):
            shard = make_smoke_shard(10 * label + number, label)
            await store.put(f"part/{number:05}.tar", shard)
    await stores[-1].put("part/damaged.tar", b"no archive" * 1000)


async def main() -> None:
    """Read the options and load."""
    parser = argparse.ArgumentParser(description="Samples from tar shards in object stores.")
    parser.add_argument("urls", nargs="*", help="stores of shards, such as s3://bucket/photos")
    parser.add_argument("--weights", type=float, nargs="+", help="how often each store's turn is")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--size", type=int, default=224, help="height and width in pixels")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--smoke", action="store_true", help="load made-up shards")
    options = parser.parse_args()
    if not options.urls and not options.smoke:
        parser.error("give URLs, or --smoke")
    if options.smoke:
        options.urls, options.weights = ["s3://smoke/photos", "s3://smoke/drawings"], [3, 1]
        options.batch_size, options.size = 8, 32
    weights = options.weights or [1.0] * len(options.urls)
    with contextlib.ExitStack() as stack:
        more = stack.enter_context(smoke_service()) if options.smoke else {}
        stores = [Store(url, **more) for url in options.urls]
        if options.smoke:
            await fill_smoke_stores(stores)
        pipeline = build(
            stores,
            weights,
            size=options.size,
            batch_size=options.batch_size,
            threads=options.threads,
        )
        await count_classes(pipeline, epochs=options.epochs)


if __name__ == "__main__":
    asyncio.run(main())
