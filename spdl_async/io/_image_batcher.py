"""ImageBatcher: decode pictures straight into the memory of their batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Unpack

from spdl_async import PipelineBuilder, on
from spdl_async.io._batch_memory import BatchRows, ImageRow, Memory
from spdl_async.io._image import ImageOptions, as_wanted, decoded, read_decoded
from spdl_async.io._image_data import as_bytes

if TYPE_CHECKING:
    import torch


class ImageBatcher:
    """Decode pictures straight into the memory of their batch, so that collating copies nothing.

    Each item is given a row of a batch before it is decoded; the decoder writes into it, and the full
    batch is handed over as it is. Failed and dropped items leave no hole: the rows behind them are moved
    up. The memory of a batch is used again when the consumer has dropped the batch, and every view and
    tensor made of it; to keep one, keep a reference, nothing else.

    Use all of it with ``builder.apply(batcher.stages(concurrency=8))``, or its parts, with stages of your
    own in between (see `ImageRow`)::

        .aggregate(batcher.rows)
        .pipe(batcher.decode, concurrency=8, on_error="skip")
        .aggregate(batcher.batch_size)
        .pipe(batcher.collate)

    The stages must keep the input order, else batches are copied together. ``len()`` of a pipeline is not
    known below ``rows``.

    Args:
        batch_size: pictures in a batch; the last one may have fewer.
        field: where in an item the picture is, as for `on`: index of a tuple or list, key of a dict, or
            name of a field; None where the item is the picture. The other fields are collated by
            `spdl_async.collate.collate`.
        allocate: makes the memory of a batch: takes its shape and returns a uint8 array or CPU tensor,
            such as ``lambda shape: torch.empty(shape, dtype=torch.uint8, pin_memory=True)``.
        keep: batches of unused memory that are kept for the next ones.
        options: as for `decode_image`. ``size`` is needed, and ``mode`` must not be ``"unchanged"``: all
            rows have one shape.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> import numpy as np
        >>> from spdl_async import PipelineBuilder
        >>> from spdl_async.io import encode_image
        >>> files = [encode_image(np.zeros((60, 80, 3), np.uint8)) for _ in range(5)]
        >>> samples = PipelineBuilder().add_source([(data, n) for n, data in enumerate(files)])
        >>> batcher = ImageBatcher(4, size=32, field=0)
        >>> for images, labels in samples.apply(batcher.stages(concurrency=2)).build():
        ...     print(tuple(images.shape), labels)
        (4, 32, 32, 3) tensor([0, 1, 2, 3])
        (1, 32, 32, 3) tensor([4])
    """

    def __init__(
        self,
        batch_size: int,
        /,
        *,
        field: Any = None,
        allocate: Callable[[tuple[int, ...]], Any] | None = None,
        keep: int = 4,
        **options: Unpack[ImageOptions],
    ) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("keep", keep, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(
                    f"{name} must be a whole number of at least {least}, not {value!r}"
                )
        if allocate is not None and not callable(allocate):
            raise ValueError(f"allocate must be a function of a shape, not {allocate!r}")
        wanted = as_wanted(**options)
        channels = wanted.channels()
        if wanted.size is None or channels is None:
            raise ValueError(
                "all rows of a batch have one shape: give size=, and a mode= other than 'unchanged'"
            )
        row = (*wanted.size, channels) if wanted.layout == "HWC" else (channels, *wanted.size)
        self.batch_size = batch_size
        self._field = field
        self._wanted = wanted
        self._memory = Memory((batch_size, *row), allocate, keep)

    def stages(
        self,
        *,
        concurrency: int = 1,
        drop_last: bool = False,
        on_error: Any = None,
        max_failures: int | Fraction | None = None,
    ) -> Callable[[PipelineBuilder[Any]], PipelineBuilder[Any]]:
        """Return the stages from items to batches, for `PipelineBuilder.apply`.

        Args:
            concurrency: threads that decode.
            drop_last: drop a last batch that is not full.
            on_error: of the stage that decodes, as for `PipelineBuilder.pipe`.
            max_failures: of the stage that decodes.
        """

        def fragment(builder: PipelineBuilder[Any]) -> PipelineBuilder[Any]:
            if not isinstance(builder, PipelineBuilder):
                raise TypeError(
                    f"ImageBatcher.stages() adds stages to a builder, by .apply(batcher.stages()); it "
                    f"is no op for items, as this {type(builder).__name__}"
                )
            return (
                builder.aggregate(self.rows)
                .pipe(
                    self.decode,
                    concurrency=concurrency,
                    on_error=on_error,
                    max_failures=max_failures,
                )
                .aggregate(self.batch_size, drop_last=drop_last)
                .pipe(self.collate)
            )

        return fragment

    def rows(self) -> BatchRows:
        """Make the aggregator that gives each item a row; each run calls this once."""
        return BatchRows(self._memory)

    def decode(self, row: ImageRow, /) -> ImageRow:
        """Decode the item's picture, bytes or the path of a file, into its row.

        Raises:
            DecodeError: as `decode_image` and `read_image`.
            OSError: as `read_image`.
            TypeError: there is no ``.aggregate(batcher.rows)`` above, or the picture is neither bytes
                nor a path.
        """
        if not isinstance(row, ImageRow):
            raise TypeError(
                f"ImageBatcher.decode takes the ImageRow of an item, not {type(row).__name__}: put "
                f".aggregate(batcher.rows) before it"
            )
        row.regain()
        try:
            if self._field is None:
                self._decode_into(row, row.item)
                row.item = None
            else:
                row.item = on(self._field, lambda picture: self._decode_into(row, picture))(
                    row.item
                )
        except BaseException:
            row.release()
            raise
        return row

    def _decode_into(self, row: ImageRow, picture: Any) -> None:
        if isinstance(picture, (str, os.PathLike)):
            read_decoded(picture, self._wanted, row.pixels)
        else:
            decoded(as_bytes(picture, "ImageBatcher", where="field="), self._wanted, row.pixels)

    def collate(self, rows: Sequence[ImageRow], /) -> Any:
        """Make the batch of decoded rows: the images, or the item's structure of collated fields.

        Returns:
            A uint8 tensor of shape (len(rows), \\*row), on the CPU; with ``field`` the collated items with
            that tensor in the picture's place.

        Raises:
            ValueError: there are no rows, or more than ``batch_size``.
            CollateError: as `spdl_async.collate.collate`, of the other fields.
        """
        if not 1 <= len(rows) <= self.batch_size:
            raise ValueError(
                f"ImageBatcher.collate got {len(rows)} rows for batches of {self.batch_size}: put "
                f".aggregate(batcher.batch_size) before it"
            )
        if any(row.pixels is None for row in rows):
            raise ValueError("these rows are in a batch already, or their pictures failed")
        import torch

        others = None if self._field is None else self._collated([row.item for row in rows])
        images: torch.Tensor = torch.from_numpy(rows[0]._rows.place(rows))
        return images if self._field is None else on(self._field, lambda _: images)(others)

    def statistics(self) -> dict[str, int]:
        """Return what the batches so far have cost, in all runs together.

        Returns:
            How many pictures were ``in_place`` when their batch was complete, how many had to be
            ``moved`` up because of others that were lost, and how many were ``copied`` together, with all
            of their batch, because the order was lost; and the batches of memory ``allocated``.
        """
        return self._memory.counts()

    def _collated(self, items: list[Any]) -> Any:
        from spdl_async.collate import collate

        return collate(items)
