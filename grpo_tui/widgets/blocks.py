"""Braille as block characters, for terminals and fonts without braille. Pure functions, no Textual.

A block has 2 × 2 pixels in place of the 2 × 4 dots of braille: two dots make a pixel, so no peak is lost.
"""

from __future__ import annotations

_QUADRANTS = " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"
"""By pixel: 1 upper left, 2 upper right, 4 lower left, 8 lower right."""
_DOTS = (0x03, 0x18, 0x44, 0xA0)
"""The dots of each of these pixels."""
_HEIGHTS = (("█", 0x09), ("▆", 0x12), ("▄", 0x24), ("▂", 0xC0))
"""A bar as high as the dots of a row, the highest first."""


def _quadrant(dots: int) -> str:
    return _QUADRANTS[sum(1 << pixel for pixel, mask in enumerate(_DOTS) if dots & mask)]


def _bar(dots: int) -> str:
    return next((bar for bar, mask in _HEIGHTS if dots & mask), " ")


_LINES = {0x2800 + dots: _quadrant(dots) for dots in range(256)}
_BARS = {0x2800 + dots: _bar(dots) for dots in range(256)}


def lines_in_blocks(braille: str) -> str:
    """A row of a line chart."""
    return braille.translate(_LINES)


def bars_in_blocks(braille: str) -> str:
    """A row of a bar chart, or a curve of one row: each cell is a bar as high as its highest dot."""
    return braille.translate(_BARS)
