"""Rows of a data file: JSONL, JSON, CSV, TSV or Parquet, also compressed.

CSV and JSON are read here and not by ``datasets``: an answer stays as written (``007``, ``1.10``), a missing value does
not turn a column of integers into floats, and errors name the line.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import math
import re
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import IO, Any, cast

from grpo_train.rewards.types import TaskError
from grpo_train.run_dir.safe_json import half_character, type_name

SUFFIXES = (".jsonl", ".parquet", ".csv", ".tsv", ".json")
"""Kinds of data files; where a directory has a split in several kinds, the first of them is read."""
COMPRESSED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""How compressed files begin, and what reads them."""
OTHERS = {
    b"PK\x03\x04": "a ZIP archive, as .xlsx files are: extract it, or save the sheet as CSV",
    b"PAR1": "a Parquet file: rename it to .parquet",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: decompress it",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}
"""How files begin that are often taken for text, and what they are."""
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""A JSON escape that is one half of a character beyond U+FFFF."""
SPACE = re.compile(r"\s*")
DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
"""What separates the fields of CSV files in practice."""
Located = tuple[str, "dict[str, Any] | TaskError"]
"""The location of a row ("FILE, line 3"), and the row, or why it cannot be read."""


def name_parts(file: Path) -> tuple[str, str]:
    """The name of a file without its ending, and its kind (of :data:`SUFFIXES`, else ""): ("train", ".csv") for
    train.CSV and train.csv.gz."""
    name = re.sub(r"\.(gz|bz2|xz)$", "", file.name, flags=re.IGNORECASE)
    stem, dot, ending = name.rpartition(".")
    kind = f".{ending.lower()}"
    return (stem, kind) if dot and kind in SUFFIXES else (name, "")


def read_rows(file: Path, texts: Collection[str] = (), delimiter: str = ",") -> Iterator[Located]:
    """The rows of a file, wrong ones as errors. Lines count from 1; rows of JSON lists and Parquet files from 0.

    Args:
        texts: names of the columns that are used. In a CSV file they stay as written; in other columns numbers and
            true, false are converted. A JSON object that has one is a row, not a list of rows.
        delimiter: what separates the fields of a CSV file; those of a .tsv file are separated by tabs.

    Raises TaskError for a file that cannot be read at all.
    """
    kind = name_parts(file)[1]
    if kind == ".parquet":
        return _parquet_rows(file)
    if kind in (".csv", ".tsv"):
        return _csv_rows(file, texts, "\t" if kind == ".tsv" else delimiter)
    text = _text_of(file)
    first, _, more = text.lstrip().partition("\n")
    if more.strip() and _is_json(first):
        return _jsonl_rows(file, text)
    try:
        return _document_rows(file, text, texts)
    except (ValueError, RecursionError) as error:
        if kind == ".json":
            raise TaskError(f"task.path: '{file}' is not valid JSON: {_reason(error)}") from error
        return _jsonl_rows(file, text)


def rows_of(file: Path) -> Iterator[tuple[str, Any]]:
    """(location, row) of every row of a file. Raises TaskError for the first wrong one."""
    for location, row in read_rows(file):
        if isinstance(row, TaskError):
            raise row
        yield location, row


def arrow_rows(table: Any, location: str, numbers: Iterator[int]) -> Iterator[Located]:
    """The rows of a table or record batch of Arrow, located as "LOCATION, row N".

    A number of 16 or 32 bits becomes the shortest decimal that gives it: 0.1, not 0.10000000149011612.
    """
    kinds = {field.name: field.type for field in table.schema}
    try:
        rows = table.to_pylist()
    except UnicodeDecodeError as error:
        for start in range(table.num_rows if table.num_rows > 1 else 0):
            yield from arrow_rows(table.slice(start, 1), location, numbers)
        if table.num_rows == 1:
            place = f"{location}, row {next(numbers)}"
            yield place, TaskError(f"{place}: a text is not UTF-8 (byte {error.start})")
        return
    for row in rows:
        yield f"{location}, row {next(numbers)}", {name: _plain(value, kinds[name]) for name, value in row.items()}


def _plain(value: Any, kind: Any) -> Any:
    """A value of an Arrow type as Python's, see :func:`arrow_rows`."""
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)
    if value is None:
        return None
    if types.is_float16(kind) or types.is_float32(kind):
        import numpy

        return float(str((numpy.float16 if types.is_float16(kind) else numpy.float32)(value)))
    if types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if types.is_map(kind):
        return {str(key): _plain(item, kind.item_type) for key, item in value}
    if isinstance(value, list):
        return [_plain(item, kind.value_type) for item in value]
    return value


def _open(file: Path) -> IO[bytes]:
    """A file, decompressed if it is compressed, whatever its name."""
    with file.open("rb") as opened:
        start = opened.read(6)
    for mark, unpack in COMPRESSED.items():
        if start.startswith(mark):
            return cast("IO[bytes]", unpack(file, "rb"))
    return file.open("rb")


def _text_of(file: Path, newline: str | None = None) -> str:
    start = b""
    try:
        with _open(file) as opened:
            start = opened.read(4)
            opened.seek(0)
            # utf-8-sig: Windows programs write a byte order mark.
            return io.TextIOWrapper(opened, encoding="utf-8-sig", newline=newline).read()
    except UnicodeDecodeError as error:
        known = [what for mark, what in OTHERS.items() if start.startswith(mark)]
        what = known[0] if known else f"not UTF-8 text (byte {error.start}); save it as UTF-8"
        raise TaskError(f"task.path: cannot read '{file}': {what}") from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise TaskError(f"task.path: cannot read '{file}': {error}") from error


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _jsonl_rows(file: Path, text: str) -> Iterator[Located]:
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: a JSON string may contain U+2028
        if line.strip():
            location = f"{file}, line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # ValueError also for an integer of more than 4,300 digits
                yield location, TaskError(f"{location}: invalid JSON: {_reason(error)}")
            else:
                yield location, _object(location, row, line)


def _document_rows(file: Path, text: str, texts: Collection[str]) -> Iterator[Located]:
    """The rows of a JSON value, or of several after each other. Raises ValueError, RecursionError, TaskError."""
    values: list[tuple[int, Any]] = []
    position, line = 0, 1
    while (start := SPACE.match(text, position).end()) < len(text):  # type: ignore[union-attr]
        line += text.count("\n", position, start)
        value, end = json.JSONDecoder().raw_decode(text, start)
        values.append((line, value))
        line += text.count("\n", start, end)
        position = end
    listed = _listed(file, values[0][1], texts) if len(values) == 1 else None
    found = [(f"row {number}", row) for number, row in enumerate(listed)] if listed is not None else None
    places = found if found is not None else [(f"line {line}", value) for line, value in values]
    return ((f"{file}, {place}", _object(f"{file}, {place}", row, text)) for place, row in places)


def _listed(file: Path, value: Any, texts: Collection[str]) -> list[Any] | None:
    """The rows that a JSON value holds: a list; an object with one list of objects (``{"data": […]}``); columns, as
    lists or as pandas writes them. None for a value that is a row itself. Raises TaskError for several lists."""
    if isinstance(value, list):
        return value
    if not isinstance(value, Mapping) or any(map(_is_conversation, value.values())):
        return None
    inner = list(value.values())
    if all(isinstance(column, list) for column in inner) and not any(map(_has_objects, inner)):
        return [dict(zip(value, row, strict=True)) for row in zip(*inner, strict=True)] if _equal(inner) else None
    if all(isinstance(column, Mapping) and all(map(str.isdecimal, column)) for column in inner) and _equal(inner):
        return [{name: column.get(key) for name, column in value.items()} for key in (inner[0] if inner else ())]
    lists = [name for name, column in value.items() if _has_objects(column) and not value.keys() & texts]
    if len(lists) > 1:
        raise TaskError(
            f"task.path: '{file}' has several lists of objects ({', '.join(lists[:8])}): save each as a file, such as "
            f"{lists[0]}.json"
        )
    return cast("list[Any]", value[lists[0]]) if lists else None


def _has_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _is_conversation(value: Any) -> bool:
    return _has_objects(value) and all("role" in item for item in value)


def _equal(columns: Collection[Any]) -> bool:
    return len({len(column) for column in columns}) == 1


def _object(location: str, row: Any, text: str) -> dict[str, Any] | TaskError:
    """A row of the JSON ``text``, checked."""
    if not isinstance(row, dict):
        return TaskError(f"{location}: expected an object, found {type_name(row)}")
    if SURROGATE.search(text):
        for name, value in row.items():
            if half := half_character(json.dumps([name, value], ensure_ascii=False)):
                return TaskError(f"{location}: '{name.encode(errors='backslashreplace').decode()}' {half}")
    return row


def _parquet_rows(file: Path) -> Iterator[Located]:
    from pyarrow import ArrowException, parquet  # installed with datasets; takes 0.2 s to import

    numbers = count()
    try:
        with _open(file) as source, parquet.ParquetFile(source) as opened:
            for batch in opened.iter_batches():
                yield from arrow_rows(batch, str(file), numbers)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ArrowException) as error:
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
    header = [name.strip() for name in header]
    _check_header(location, header, delimiter)
    whole = [fields for _, fields in rows if len(fields) == len(header)]
    read = [
        str if name in texts else _converter([fields[column] for fields in whole]) for column, name in enumerate(header)
    ]
    between = DELIMITERS.get(delimiter, delimiter)
    for location, fields in rows:
        if len(fields) == len(header):
            cells = zip(header, read, fields, strict=True)
            yield location, {name: convert(text) if text.strip() else None for name, convert, text in cells}
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


def _is_nan(text: str) -> bool:
    return text.strip().lower() == "nan"


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _converter(texts: list[str]) -> Callable[[str], Any]:
    """How the cells of a column are read: as integers, numbers, true and false, or as written. NaN is missing where the
    others are not texts."""
    cells = [text.strip() for text in texts if text.strip() and not _is_nan(text)]
    read: Callable[[str], Any] | None = None
    if all(re.fullmatch(r"-?(0|[1-9]\d{0,17})", cell) for cell in cells):  # 007 is a name
        read = int
    elif all(re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", cell) and _is_plain(cell) for cell in cells):
        read = float
    elif all(cell.lower() in ("true", "false") for cell in cells):
        read = _is_true
    return (lambda text: None if _is_nan(text) else read(text)) if read else str


def _is_plain(number: str) -> bool:
    return not re.match(r"[+-]?0\d", number) and math.isfinite(float(number))
