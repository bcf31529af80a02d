"""Rows of a data file: JSONL, JSON, CSV, TSV or Parquet.

CSV and JSON are read here and not by ``datasets``: an answer stays as written (``007``, ``1.10``), a missing value does
not turn a column of integers into floats, and errors name the line.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from grpo_train.rewards.types import TaskError

SUFFIXES = (".jsonl", ".parquet", ".csv", ".tsv", ".json")
"""Kinds of data files; where a directory has a split in several kinds, the first of them is read."""
DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
"""What separates the fields of CSV files in practice."""
Located = tuple[str, "dict[str, Any] | TaskError"]
"""The location of a row ("FILE, line 3"), and the row, or why it cannot be read."""


def read_rows(file: Path, texts: Collection[str] = (), delimiter: str = ",") -> Iterator[Located]:
    """The rows of a file, wrong ones as errors. Lines count from 1; rows of JSON lists and Parquet files from 0.

    Args:
        texts: columns of a CSV file that stay as written; in other columns numbers and true, false are converted.
        delimiter: what separates the fields of a CSV file; those of a .tsv file are separated by tabs.

    Raises TaskError for a file that cannot be read at all.
    """
    if file.suffix == ".parquet":
        return _parquet_rows(file)
    if file.suffix in (".csv", ".tsv"):
        return _csv_rows(file, texts, "\t" if file.suffix == ".tsv" else delimiter)
    text = _text_of(file)
    if file.suffix == ".json" and text.lstrip()[:1] == "[":
        return _json_rows(file, text)
    return _jsonl_rows(file, text)


def rows_of(file: Path) -> Iterator[tuple[str, Any]]:
    """(location, row) of every row of a file. Raises TaskError for the first wrong one."""
    for location, row in read_rows(file):
        if isinstance(row, TaskError):
            raise row
        yield location, row


def _text_of(file: Path, newline: str | None = None) -> str:
    try:
        # utf-8-sig: Windows programs write a byte order mark.
        with file.open(encoding="utf-8-sig", newline=newline) as opened:
            return opened.read()
    except UnicodeDecodeError as error:
        what = f"not UTF-8 text (byte {error.start}); save it as UTF-8"
        raise TaskError(f"task.path: cannot read '{file}': {what}") from error
    except OSError as error:
        raise TaskError(f"task.path: cannot read '{file}': {error}") from error


def _jsonl_rows(file: Path, text: str) -> Iterator[Located]:
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: a JSON string may contain U+2028
        if line.strip():
            location = f"{file}, line {number}"
            try:
                yield location, _object(location, json.loads(line))
            except (ValueError, RecursionError) as error:  # ValueError also for an integer of more than 4,300 digits
                yield location, TaskError(f"{location}: invalid JSON: {error}")


def _json_rows(file: Path, text: str) -> Iterator[Located]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"task.path: '{file}' is not valid JSON: {error}") from error
    for number, row in enumerate(rows):
        location = f"{file}, row {number}"
        yield location, _object(location, row)


def _object(location: str, row: Any) -> dict[str, Any] | TaskError:
    if isinstance(row, dict):
        return row
    return TaskError(f"{location}: expected an object, found a {type(row).__name__}")


def _parquet_rows(file: Path) -> Iterator[Located]:
    from pyarrow import ArrowException, parquet  # installed with datasets; takes 0.2 s to import

    numbers = count()
    try:
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches():
                for row in batch.to_pylist():
                    yield f"{file}, row {next(numbers)}", row
    except (OSError, ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise TaskError(f"task.path: cannot read '{file}' as Parquet: {reason}") from error


def _csv_rows(file: Path, texts: Collection[str], delimiter: str) -> Iterator[Located]:
    csv.field_size_limit(sys.maxsize)  # the default refuses fields of more than 128 KiB
    lines = io.StringIO(_text_of(file, newline=""), newline="")
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    found: list[tuple[str, list[str]]] = []
    end = 0
    try:
        for fields in reader:
            if fields:
                found.append((f"{file}, line {end + 1}", fields))
            end = reader.line_num
    except csv.Error as error:
        raise TaskError(f"{file}, line {end + 1}: invalid CSV: {error}; check its quotes") from error
    if not found:
        return
    (location, header), *rows = found
    _check_header(location, header, delimiter)
    whole = [fields for _, fields in rows if len(fields) == len(header)]
    read = [
        str if name in texts else _converter([fields[column] for fields in whole]) for column, name in enumerate(header)
    ]
    between = DELIMITERS.get(delimiter, delimiter)
    for location, fields in rows:
        if len(fields) == len(header):
            cells = zip(header, read, fields, strict=True)
            yield location, {name: None if _is_missing(text) else convert(text) for name, convert, text in cells}
        else:
            found_fields = f"{location}: {len(fields)} fields where the header has {len(header)}"
            yield location, TaskError(f"{found_fields}; put quotes around texts with {between} or a line break in them")


def _check_header(location: str, header: list[str], delimiter: str) -> None:
    """Raise TaskError for a header of another delimiter, or with the same name twice."""
    others = [other for other in DELIMITERS if other != delimiter and other in header[0]]
    if len(header) == 1 and others:
        name = DELIMITERS[others[0]]
        value = "\\t" if others[0] == "\t" else others[0]
        raise TaskError(
            f"{location}: the header is one column, {header[0][:60]!r}; its delimiter seems to be {name}: set "
            f'task.delimiter: "{value}"'
        )
    if twice := [name for name in header if header.count(name) > 1]:
        raise TaskError(f"{location}: two columns are named '{twice[0]}'; rename one")


def _is_missing(text: str) -> bool:
    return text.strip().lower() in ("", "nan")


def _converter(texts: list[str]) -> Callable[[str], Any]:
    """How the cells of a column are read: as integers, numbers, true and false, or as written."""
    cells = [text.strip() for text in texts if not _is_missing(text)]
    if not cells:
        return str
    if all(re.fullmatch(r"-?(0|[1-9]\d{0,17})", cell) for cell in cells):  # 007 is a name
        return int
    if all(re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", cell) and _is_plain(cell) for cell in cells):
        return float
    if all(cell.lower() in ("true", "false") for cell in cells):
        return lambda text: text.strip().lower() == "true"
    return str


def _is_plain(number: str) -> bool:
    return not re.match(r"[+-]?0\d", number) and math.isfinite(float(number))
