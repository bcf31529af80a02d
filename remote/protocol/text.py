"""Text that a terminal can show as it is."""

from __future__ import annotations

import functools
import re

_SEQUENCES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI
    r"|[PX\]^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # DCS, SOS, OSC, PM, APC to their end
    r"|[ -/]*[0-~])"
)
_UNSAFE = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""C0, DEL, C1, bidirectional controls, line separators, lone surrogates."""


_PICTURES = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)} | {127: "\u2421"}
"""Control characters and their Unicode pictures."""


@functools.cache
def _unsafe(keep: str) -> re.Pattern[str]:
    return re.compile(f"(?![{re.escape(keep)}])[{_UNSAFE}]" if keep else f"[{_UNSAFE}]")


def clean(text: str, keep: str = "\n\t") -> str:
    """Text that cannot steer a terminal: escape sequences removed, other control characters replaced by ``·``."""
    if text.isprintable():  # the usual case, ten times faster than the search
        return text
    unsafe = _unsafe(keep)
    if not unsafe.search(text):
        return text
    if "\n" in keep:
        text = text.replace("\r\n", "\n")
    return unsafe.sub("·", _SEQUENCES.sub("", text))


def visible(text: str) -> str:
    """What a model wrote: as :func:`clean`, but control characters are shown by their pictures (``␛[31m``)."""
    return text if text.isprintable() else clean(pictured(text.replace("\r\n", "\n")))


def pictured(text: str) -> str:
    """Text with a picture for each control character: as long as before, also once it is :func:`clean`."""
    return text if text.isprintable() else text.translate(_PICTURES)


def last_state(line: str) -> str:
    """What a terminal shows of a line with carriage returns, such as a progress bar."""
    return line.rstrip("\r").rpartition("\r")[2]
