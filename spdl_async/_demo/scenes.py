"""Paint pictures that are textured as photos are, fast enough to make hundreds in seconds.

A picture is painted in two planes: a brightness, and a palette number for each pixel. Fractal
noise, whose spectrum falls with frequency as that of photos does, gives the brightness its
texture; it is made once (`Textures`) and each picture takes a different crop of it. One table
look-up at the end turns both planes into colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TILE = 2048
"""Side of a texture in pixels: more than the longest side of a picture."""

_HUES = 16
"""Steps of hue of each palette, so that colour does not follow from brightness alone."""

Rgb = tuple[int, int, int]
Palette = tuple[Rgb, Rgb, Rgb]
"""The colours of dark, middle and bright pixels; between them they are interpolated."""


@dataclass(frozen=True, kw_only=True)
class Textures:
    """Fractal noise, each a square of uint8 with mean 128 and standard deviation about 42.

    Attributes:
        clouds: soft, without detail.
        rough: as detailed as foliage or gravel.
        grain: nearly white noise, as a sensor's.
    """

    clouds: NDArray[np.uint8]
    rough: NDArray[np.uint8]
    grain: NDArray[np.uint8]


def make_textures(rng: np.random.Generator) -> Textures:
    """Make the textures that `paint` takes crops of; takes about half a second."""
    return Textures(
        clouds=_fractal_noise(rng, 1.9),
        rough=_fractal_noise(rng, 1.1),
        grain=_fractal_noise(rng, 0.4),
    )


def _fractal_noise(rng: np.random.Generator, exponent: float) -> NDArray[np.uint8]:
    """Make noise whose amplitude falls as 1 / frequency ** exponent."""
    rows = np.fft.fftfreq(_TILE).astype(np.float32)[:, None]
    columns = np.fft.rfftfreq(_TILE).astype(np.float32)[None, :]
    # Below a few periods a picture there is nothing to see but a crop's different brightness.
    frequency = np.maximum(np.hypot(rows, columns), 3 / _TILE)
    phase = rng.random(frequency.shape, dtype=np.float32) * np.float32(2 * np.pi)
    noise = np.fft.irfft2(np.exp(1j * phase) * frequency**-exponent, s=(_TILE, _TILE))
    noise *= 42 / noise.std()
    return np.clip(noise + 128, 0, 255).astype(np.uint8)


class Canvas:
    """The two planes of a picture that is being painted, and what random choices it makes."""

    def __init__(self, height: int, width: int, textures: Textures, rng: np.random.Generator):
        self.height = height
        self.width = width
        self.rng = rng
        self.textures = textures
        self.light = np.empty((height, width), np.int16)
        self.palette = np.zeros((height, width), np.uint16)
        self.down = np.linspace(0, 1, height, dtype=np.float32)[:, None]

    def crop(self, texture: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
        """Take a random part of a texture, mirrored or not; a view, not a copy."""
        top = int(self.rng.integers(_TILE - height + 1))
        left = int(self.rng.integers(_TILE - width + 1))
        part = texture[top : top + height, left : left + width]
        return part[:, ::-1] if self.rng.random() < 0.5 else part

    def fill(
        self, top: int, bottom: int, palette: int, texture: NDArray[np.uint8], contrast: float
    ) -> None:
        """Fill the rows from ``top`` to ``bottom`` with a texture."""
        part = self.crop(texture, bottom - top, self.width)
        self.light[top:bottom] = _contrasted(part, contrast)
        self.palette[top:bottom] = palette

    def colors(self, palettes: list[Palette]) -> NDArray[np.uint8]:
        """Add hue and grain, and look the colours up: shape (height, width, 4), the last unused."""
        table = _color_table(palettes, self.rng)
        hue = self.crop(self.textures.clouds, self.height, self.width) >> 4
        grain = self.crop(self.textures.grain, self.height, self.width)
        self.light += _contrasted(grain, 0.16, center=0)
        np.clip(self.light, 0, 255, out=self.light)
        index = (self.palette * _HUES + hue) << 8
        index |= self.light.view(np.uint16)
        colors: NDArray[np.uint32] = table[index]
        return colors.view(np.uint8).reshape(self.height, self.width, 4)


def _contrasted(part: NDArray[np.uint8], contrast: float, center: int = 128) -> NDArray[np.int16]:
    """Scale a texture about its mean; through a table, which is faster than arithmetic."""
    values = (np.arange(256) - 128) * contrast + center
    scaled: NDArray[np.int16] = values.astype(np.int16)[part]
    return scaled


def _color_table(palettes: list[Palette], rng: np.random.Generator) -> NDArray[np.uint32]:
    """Make the table from (palette, hue, brightness) to four bytes, under a random light."""
    warmth = rng.normal(0, 0.05)
    exposure = rng.uniform(0.85, 1.15)
    balance = exposure * np.array([1 + warmth, 1, 1 - warmth])
    table = np.zeros((len(palettes), _HUES, 256, 4), np.uint8)
    for number, palette in enumerate(palettes):
        drift = rng.normal(0, 0.16, 3)
        for hue in range(_HUES):
            tint = balance * (1 + drift * (hue / (_HUES - 1) - 0.5))
            for channel in range(3):
                levels = [color[channel] for color in palette]
                curve = np.interp(np.arange(256), (0, 128, 255), levels)
                table[number, hue, :, channel] = np.clip(curve * tint[channel], 0, 255)
    return table.reshape(-1).view(np.uint32)


SKY: Palette = ((70, 110, 170), (130, 170, 215), (250, 250, 250))
SEA: Palette = ((5, 30, 60), (30, 90, 120), (200, 225, 230))
LEAVES: Palette = ((8, 16, 6), (50, 90, 30), (190, 215, 120))
GRASS: Palette = ((20, 45, 10), (85, 135, 45), (200, 225, 130))
SAND: Palette = ((95, 50, 25), (200, 140, 80), (250, 225, 180))
STONE: Palette = ((30, 32, 38), (120, 118, 115), (225, 222, 215))
DUSK: Palette = ((40, 45, 75), (190, 150, 150), (250, 220, 190))
PETALS: tuple[Palette, ...] = (
    ((90, 10, 20), (215, 40, 50), (250, 150, 130)),
    ((120, 90, 5), (240, 200, 30), (255, 245, 150)),
    ((70, 20, 90), (165, 80, 190), (235, 190, 245)),
    ((150, 150, 150), (235, 235, 235), (255, 255, 255)),
)


def paint(
    scene: str, height: int, width: int, textures: Textures, rng: np.random.Generator
) -> Image.Image:
    """Paint a picture of a scene, one of `SCENES`.

    Returns:
        An RGB picture of ``width`` x ``height`` pixels.
    """
    canvas = Canvas(height, width, textures, rng)
    palettes = SCENES[scene](canvas)
    pixels = canvas.colors(palettes)
    return Image.frombuffer("RGBX", (width, height), pixels, "raw", "RGBX", 0, 1).convert("RGB")


def _coast(canvas: Canvas) -> list[Palette]:
    """Sky above waves, which are noise that is stretched sideways."""
    horizon = int(canvas.height * canvas.rng.uniform(0.35, 0.65))
    canvas.fill(0, horizon, 0, canvas.textures.clouds, 1.1)
    canvas.light[:horizon] += (canvas.down[:horizon] * 60).astype(np.int16)
    depth = canvas.height - horizon
    part = canvas.crop(canvas.textures.rough, depth, canvas.width // 6)
    waves = Image.fromarray(np.ascontiguousarray(part)).resize((canvas.width, depth))
    canvas.light[horizon:] = _contrasted(np.asarray(waves), 1.4)
    canvas.palette[horizon:] = 1
    radius = canvas.height // int(canvas.rng.integers(12, 30))
    _disc(canvas, int(horizon * canvas.rng.uniform(0.1, 0.8)), radius, 0, 250)
    return [SKY, SEA]


def _forest(canvas: Canvas) -> list[Palette]:
    """Leaves with the shadows of trunks, lit from above."""
    canvas.fill(0, canvas.height, 0, canvas.textures.rough, 1.5)
    across = np.arange(canvas.width, dtype=np.float32) / canvas.width
    trunks = np.zeros(canvas.width, np.float32)
    for _ in range(int(canvas.rng.integers(4, 12))):
        center, thickness = canvas.rng.random(), canvas.rng.uniform(0.008, 0.03)
        trunks = np.maximum(trunks, np.clip(1.6 - np.abs(across - center) / thickness, 0, 1))
    canvas.light += (20 - canvas.down * 50 - trunks * 75).astype(np.int16)
    return [LEAVES]


def _meadow(canvas: Canvas) -> list[Palette]:
    """Grass full of flowers, below a strip of sky."""
    horizon = int(canvas.height * canvas.rng.uniform(0, 0.25))
    canvas.fill(0, horizon, 1, canvas.textures.clouds, 0.8)
    canvas.fill(horizon, canvas.height, 0, canvas.textures.rough, 1.2)
    for _ in range(int(canvas.rng.integers(50, 120))):
        near = canvas.rng.random()
        row = int(horizon + near * (canvas.height - horizon))
        radius = max(2, int(canvas.height * (0.006 + 0.03 * near)))
        _disc(canvas, row, radius, int(canvas.rng.integers(2, 2 + len(PETALS))), 140)
    return [GRASS, SKY, *PETALS]


def _desert(canvas: Canvas) -> list[Palette]:
    """Rippled sand: a sine across the picture, bent by soft noise."""
    horizon = int(canvas.height * canvas.rng.uniform(0.05, 0.4))
    canvas.fill(0, horizon, 1, canvas.textures.clouds, 0.4)
    rows = canvas.height - horizon
    ripples = canvas.rng.uniform(12, 30)
    phase = (canvas.down[horizon:] ** 0.6 * ripples * 256).astype(np.uint16)
    bend = canvas.crop(canvas.textures.clouds, rows, canvas.width) * np.uint16(8)
    sine = (40 * np.sin(np.arange(256) * (2 * math.pi / 256))).astype(np.int16)
    canvas.fill(horizon, canvas.height, 0, canvas.textures.rough, 0.4)
    canvas.light[horizon:] += sine[(bend + phase) & 255]
    return [SAND, SKY]


def _city(canvas: Canvas) -> list[Palette]:
    """Rows of buildings with windows before an evening sky."""
    canvas.fill(0, canvas.height, 0, canvas.textures.clouds, 0.5)
    canvas.light += (canvas.down * 50).astype(np.int16)
    for layer in range(2):
        left = 0
        while left < canvas.width:
            broad = int(canvas.width * canvas.rng.uniform(0.06, 0.16))
            top = int(canvas.height * canvas.rng.uniform(0.15 + 0.25 * layer, 0.75))
            _building(canvas, top, left, min(left + broad, canvas.width), layer)
            left += broad
    return [DUSK, STONE, PETALS[1]]


def _building(canvas: Canvas, top: int, left: int, right: int, layer: int) -> None:
    part = canvas.crop(canvas.textures.rough, canvas.height - top, right - left)
    shade = int(canvas.rng.integers(-60, 20)) - 25 * layer
    canvas.light[top:, left:right] = _contrasted(part, 0.35, center=120 + shade)
    canvas.palette[top:, left:right] = 1
    pitch = max(6, canvas.height // int(canvas.rng.integers(28, 60)))
    size = pitch // 2
    for row in range(top + size, canvas.height - size, pitch):
        for column in range(left + size, right - size, pitch):
            lit = canvas.rng.random() < 0.25
            window = (slice(row, row + size), slice(column, column + size))
            canvas.light[window] = 190 if lit else 40
            canvas.palette[window] = 2 if lit else 1


def _disc(canvas: Canvas, row: int, radius: int, palette: int, light: int) -> None:
    """Paint a disc, brighter in its middle, in a random column."""
    column = int(canvas.rng.integers(canvas.width))
    top, left = max(row - radius, 0), max(column - radius, 0)
    area = (slice(top, row + radius + 1), slice(left, column + radius + 1))
    height, width = canvas.light[area].shape
    rows = np.arange(top - row, top - row + height)[:, None]
    columns = np.arange(left - column, left - column + width)[None, :]
    distance = rows * rows + columns * columns
    inside = distance <= radius * radius
    canvas.light[area][inside] = (light + 40 - 60 * distance / radius**2)[inside]
    canvas.palette[area][inside] = palette


SCENES: dict[str, Callable[[Canvas], list[Palette]]] = {
    "city": _city,
    "coast": _coast,
    "desert": _desert,
    "forest": _forest,
    "meadow": _meadow,
}
"""The classes of the data set, and what paints each."""
