"""Decode the fields of samples by their extensions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer

Decoder = Callable[[Any], Any]

PICTURES: Final = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "avif")
TEXTS: Final = ("txt", "text", "transcript")
NUMBERS: Final = ("cls", "cls2", "index", "id")


def default_decoders() -> dict[str, Decoder]:
    """Return what the common extensions are decoded with: a new dict, to be changed at will.

    Pictures by ``decode_image`` (uint8 arrays of shape (height, width, 3)), ``json`` by ``json.loads``,
    ``txt``, ``text`` and ``transcript`` as UTF-8, ``cls``, ``cls2``, ``index`` and ``id`` as whole numbers,
    ``npy`` by ``load_npy``, copied. A picture decoder of your own takes a size:

    >>> from functools import partial
    >>> from spdl_async.io import decode_image, default_decoders
    >>> decoders = default_decoders() | {"jpg": partial(decode_image, size=224)}
    >>> decoders["cls"](b"7")
    7
    """
    return {
        **dict.fromkeys(PICTURES, _picture),
        **dict.fromkeys(TEXTS, _text),
        **dict.fromkeys(NUMBERS, _number),
        "json": _json,
        "npy": _npy,
    }


class SampleDecoder:
    """Decode the fields of samples by extension: an op for ``.pipe(SampleDecoder(…), concurrency=8)``.

    A field is decoded by the decoder of its whole extension (``seg.png``), else by that of its last part
    (``png``); fields without a decoder stay as they are. A failure gets a note that names the field and,
    where the sample has them, its key, its shard, and the byte at which it begins. Thread-safe when the
    decoders are.

    Args:
        decoders: functions of the data, by extension; default: :func:`default_decoders`.

    Raises:
        TypeError: a decoder is not callable.
        ValueError: an extension has a dot in front.

    Example:
        >>> from spdl_async.io import SampleDecoder
        >>> SampleDecoder()({"__key__": "a", "cls": b"3", "meta.json": b"[1]", "bin": b"as it is"})
        {'__key__': 'a', 'cls': 3, 'meta.json': [1], 'bin': b'as it is'}
    """

    def __init__(self, decoders: Mapping[str, Decoder] | None = None) -> None:
        self._decoders = default_decoders() if decoders is None else dict(decoders)
        for extension, decoder in self._decoders.items():
            if extension.startswith("."):
                raise ValueError(
                    f"SampleDecoder: an extension has no dot in front: {extension[1:]!r}, not {extension!r}"
                )
            if not callable(decoder):
                raise TypeError(
                    f"the decoder of {extension!r} is no function but a {type(decoder).__name__}"
                )

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample with its fields decoded.

        Raises:
            Exception: whatever a decoder raises, with a note that says where.
        """
        decoders = self._decoders
        decoded: dict[str, Any] = {}
        if not hasattr(sample, "items"):
            raise TypeError(
                f"SampleDecoder takes a sample, a dict of fields, not {type(sample).__name__}: samples "
                f"come from TarShards, or from .expand(tar_samples) above"
            )
        for field, value in sample.items():
            decoder = decoders.get(field) or decoders.get(field.rpartition(".")[2])
            if decoder is None:
                decoded[field] = value
                continue
            try:
                decoded[field] = decoder(value)
            except Exception as error:
                error.add_note(_where(field, sample))
                raise
        return decoded


def _where(field: str, sample: Mapping[str, Any]) -> str:
    """Say where a field is, as far as the sample knows: one that was made by hand may have no key."""
    key, offset, shard = (sample.get(name) for name in ("__key__", "__offset__", "__shard__"))
    text = f"in field {field!r} of " + (
        "a sample without a key" if key is None else f"sample {key!r}"
    )
    if offset is not None:
        text += f", at byte {offset}"
    return text if shard is None else f"{text} of {shard}"


def _picture(data: Buffer) -> Any:
    from spdl_async.io._image import decode_image

    return decode_image(data)


def _text(data: Buffer) -> str:
    return bytes(data).decode("utf-8")


def _number(data: Buffer) -> int:
    return int(bytes(data))


def _json(data: Buffer) -> Any:
    return json.loads(bytes(data))


def _npy(data: Buffer) -> Any:
    from spdl_async.io._npy import load_npy

    return load_npy(memoryview(data)).copy()  # an array of its own, which may be written to
