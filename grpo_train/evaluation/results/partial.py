"""What an unfinished evaluation has so far: a hidden directory beside the step's final place. Torch-free.

    .step_10_gsm8k_r1_template.partial/
      key.json           what the samples belong to; a directory with another key is never added to
      layout.json        which samples are generated together, and on what machine; written once, by the first process
      completions.I.jsonl  process I: what the model said, a chunk at a time
      verdicts.I.jsonl     process I: what the task says about it

Samples of other settings wait in ``superseded/`` until these are asked for again (:mod:`.stored`).

Must: a kill at any instruction costs at most what was not written yet. A chunk of completions counts once the line
that ends it is there; whatever follows the last such line is cut off and made again, as a whole, because samples are a
pure function of the chunk they are generated in (and of nothing else). A verdict is a pure function of a completion.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_train.evaluation.results.stored import bring_back, set_aside
from grpo_train.run_dir.files import atomic_write, fsync_directory, read_json, remove_tree, to_json


class PartialError(Exception):
    """A directory of samples that belong to something else, or that cannot be written."""


class Partial:
    """The directory; made by the parent, written by its children, each in files of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def beside(cls, final: Path) -> Partial:
        """The place for the samples of a step whose results will be ``final``."""
        return cls(final.with_name(f".{final.name}.partial"))

    def open(self, key: Mapping[str, Any]) -> bool:
        """Make it hold samples of ``key`` and nothing else; True where there are some already.

        Completions whose key is the same are kept where only the grading differs: they are judged again.
        """
        have = read_json(self.path / "key.json")
        if self.layout() is None:
            (self.path / "layout.json").unlink(missing_ok=True)  # damaged: nobody could agree on another
        if have == key:
            return self.layout() is not None
        kept = have is not None and have.get("samples") == key["samples"]
        if kept:
            for file in self.path.glob("verdicts.*.jsonl"):
                file.unlink()
        else:
            if have is not None and self.completions():
                set_aside(self.path, have)
            remove_tree(self.path)
            if bring_back(self.path, key):
                return self.open(key)
        self.path.mkdir(parents=True, exist_ok=True)
        atomic_write(self.path / "key.json", to_json(key) + "\n")
        return kept

    def check(self, key: Mapping[str, Any]) -> None:
        """Raise PartialError where the directory holds samples of another key."""
        if read_json(self.path / "key.json") != key:
            raise PartialError(f"{self.path} holds samples of another evaluation: they are not mixed")

    def layout(self) -> dict[str, Any] | None:
        """What was agreed on, or None."""
        return read_json(self.path / "layout.json")

    def agree(self, layout: Mapping[str, Any]) -> dict[str, Any]:
        """Propose a layout; returns the one that holds: the first that was proposed, by whichever process."""
        mine = self.path / f".layout.{os.getpid()}.{secrets.token_hex(4)}"
        atomic_write(mine, to_json(layout) + "\n")
        try:
            os.link(mine, self.path / "layout.json")
        except FileExistsError:
            pass
        finally:
            mine.unlink()
        fsync_directory(self.path)
        agreed = self.layout()
        assert agreed is not None
        return agreed

    def completions(self) -> dict[int, dict[str, Any]]:
        """Every finished chunk's samples, by their number."""
        rows: dict[int, dict[str, Any]] = {}
        for file in sorted(self.path.glob("completions.*.jsonl")):
            rows |= _whole_chunks(file)[0]
        return rows

    def verdicts(self) -> dict[int, dict[str, Any]]:
        """Every verdict, by its sample's number."""
        rows: dict[int, dict[str, Any]] = {}
        for file in sorted(self.path.glob("verdicts.*.jsonl")):
            rows |= {row["item"]: row for row, _ in _lines(file)}
        return rows

    def remove(self) -> None:
        remove_tree(self.path)


class PartialWriter:
    """One process's two files."""

    def __init__(self, partial: Partial, process: int) -> None:
        """Cut off what a kill tore."""
        self._path = partial.path
        self._completions = _appendable(partial.path / f"completions.{process}.jsonl", chunks=True)
        self._verdicts = _appendable(partial.path / f"verdicts.{process}.jsonl", chunks=False)

    def chunk(self, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append the samples of a chunk and the line that ends it; on disk when this returns. Raises PartialError."""
        self._append(self._completions, [*rows, {"chunk": number, "samples": len(rows)}])

    def verdicts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append verdicts; on disk when this returns. Raises PartialError."""
        if rows:
            self._append(self._verdicts, rows)

    def _append(self, descriptor: int, rows: Iterable[Mapping[str, Any]]) -> None:
        try:
            _append(descriptor, rows)
        except OSError as error:
            kept = "what was written before is kept: make room and run the evaluation again"
            raise PartialError(f"cannot write to {self._path}: {error.strerror or error} ({kept})") from error

    def close(self) -> None:
        for descriptor in (self._completions, self._verdicts):
            os.close(descriptor)


def _appendable(path: Path, *, chunks: bool) -> int:
    """A descriptor at the end of what is whole in a file; the rest is cut off."""
    whole = 0
    if path.exists():
        whole = _whole_chunks(path)[1] if chunks else max((end for _, end in _lines(path)), default=0)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    os.ftruncate(descriptor, whole)
    return descriptor


def _append(descriptor: int, rows: Iterable[Mapping[str, Any]]) -> None:
    payload = memoryview("".join(to_json(row) + "\n" for row in rows).encode())
    while payload:
        payload = payload[os.write(descriptor, payload) :]
    os.fsync(descriptor)


def _lines(path: Path) -> list[tuple[dict[str, Any], int]]:
    """The whole lines from the file's beginning, each with the offset of its end."""
    rows: list[tuple[dict[str, Any], int]] = []
    end = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
            except ValueError:  # a block that the crash of a machine left empty
                break
            if not isinstance(row, dict) or not row.keys() & {"item", "chunk"}:
                break
            end += len(line)
            rows.append((row, end))
    return rows


def _whole_chunks(path: Path) -> tuple[dict[int, dict[str, Any]], int]:
    """The samples of the chunks that have their last line, and the bytes they take."""
    samples: dict[int, dict[str, Any]] = {}
    open_chunk: list[dict[str, Any]] = []
    whole = 0
    for row, end in _lines(path):
        if "chunk" not in row:
            open_chunk.append(row)
            continue
        samples |= {sample["item"]: sample for sample in open_chunk}
        open_chunk, whole = [], end
    return samples, whole
