"""A line of JSON as indented fields, also of one that was cut. No Textual."""

from __future__ import annotations

import json
from typing import Any

from remote.protocol.text import clean

INDENT = 2
MAX_DEPTH = 12
MAX_ROWS = 5_000


def fields(text: str) -> list[str] | None:
    """One line per field of a JSON object, and more for a text of several lines; None for anything else.

    Of an object that was cut, the last field is as it came.
    """
    if not text.startswith("{"):
        return None
    try:
        rows = _rows(json.loads(text), 0)
    except (ValueError, RecursionError):
        rows = _of_cut(text)
    return rows[:MAX_ROWS] if rows else None


def _of_cut(text: str) -> list[str]:
    """The whole fields of a cut object, what there is of a text, and anything else as it is."""
    decode = json.JSONDecoder().raw_decode
    rows: list[str] = []
    place = 1
    while True:
        place = _after(text, place, " ,")
        try:
            key, after = decode(text, place)
            after = _after(text, after, " :")
        except (ValueError, RecursionError):
            return [*rows, text[place:]] if rows and place < len(text) else rows
        try:
            value, end = decode(text, after)
        except (ValueError, RecursionError):
            begun = _begun_text(text[after:])
            return [*rows, *(_rows({key: begun}, 0) if begun is not None else [text[place:]])]
        if isinstance(value, (int, float)) and text[end : end + 1] not in (",", "}", " "):
            return [*rows, text[place:]]  # digits or an exponent may be missing
        place = end
        rows += _rows({key: value}, 0)


def _begun_text(text: str) -> str | None:
    """A string without its end; an escape at the end that is not whole is left out."""
    for left_out in range(7):
        try:
            value = json.loads(text[: len(text) - left_out] + '"')
        except ValueError:
            continue
        return value if isinstance(value, str) else None
    return None


def _after(text: str, place: int, characters: str) -> int:
    while place < len(text) and text[place] in characters:
        place += 1
    return place


def _rows(value: Any, depth: int) -> list[str]:
    """An object or a list, indented by its depth."""
    pad = " " * (INDENT * depth)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    rows: list[str] = []
    for key, item in items:
        name = f"{pad}{clean(str(key), '')}: "
        if isinstance(item, (dict, list)) and item and depth < MAX_DEPTH and not _is_short(item):
            rows += [name.rstrip(), *_rows(item, depth + 1)]
        elif isinstance(item, str):
            first, *more = clean(item, "\n\t").expandtabs(4).split("\n")
            rows += [name + first, *(" " * len(name) + line for line in more)]
        else:
            rows.append(name + json.dumps(item, ensure_ascii=False))
    return rows


def _is_short(item: Any) -> bool:
    """Whether it is read best in one line: numbers."""
    values = item.values() if isinstance(item, dict) else item
    return len(item) <= 8 and all(isinstance(value, (int, float, bool, type(None))) for value in values)
