"""Samples of an unfinished evaluation: a hidden directory beside the step's final one. Torch-free.

    .step_10_gsm8k_r1_template.partial/
      key.json             cache key of the samples; a directory with another key is never added to
      layout.json          which samples are generated together, on what machine; written once, by the first process
      completions.I.jsonl  process I: completions, one chunk at a time
      verdicts.I.jsonl     process I: verdicts

Samples of other settings are kept in ``superseded/`` (:mod:`.stored`).

Invariant: a kill at any instruction costs at most what was not written yet. A chunk of completions counts once the
line that ends it is on disk; anything after the last such line is cut off and generated again, the whole chunk at once,
because samples are a pure function of their chunk. A verdict is a pure function of a completion.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from grpo_train.evaluation.results.stored import bring_back, generated, read_completion_rows, read_summary, set_aside
from grpo_train.run_dir.errors import UserError, code_of, disk_fix, disk_reason
from grpo_train.run_dir.files import (
    atomic_write,
    discarding,
    fsync_path,
    open_for_writing,
    read_json,
    remove_tree,
    to_json,
)
from grpo_train.run_dir.safe_json import Unreadable, parse_object


class PartialError(UserError):
    """Samples that belong to another evaluation, or that cannot be written."""

    code = "bad_evaluation"


class Partial:
    """The directory: created by the parent, written by its workers, each to its own files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def beside(cls, final: Path) -> Partial:
        """The directory for samples of a step whose results go to ``final``."""
        return cls(final.with_name(f".{final.name}.partial"))

    def open(self, key: Mapping[str, Any]) -> bool:
        """Prepare the directory for samples of ``key`` only; True if it already has some.

        If only the grading differs, completions are kept and their verdicts removed.
        """
        found = read_json(self.path / "key.json")
        if self.layout() is None:
            (self.path / "layout.json").unlink(missing_ok=True)  # damaged
        if found == key:
            return self.layout() is not None
        kept = found is not None and found.get("samples") == key["samples"]
        if kept:
            for file in self.path.glob("verdicts.*.jsonl"):
                file.unlink()
        else:
            if found is not None and self.completions():
                set_aside(self.path, found)
            remove_tree(self.path)
            if bring_back(self.path, key):
                return self.open(key)
        self.path.mkdir(parents=True, exist_ok=True)
        atomic_write(self.path / "key.json", to_json(key) + "\n")
        return kept

    def check(self, key: Mapping[str, Any]) -> None:
        """Raise PartialError if the directory holds samples of another key."""
        if read_json(self.path / "key.json") != key:
            raise PartialError(f"{self.path} holds samples of another evaluation")

    def layout(self) -> dict[str, Any] | None:
        """The layout, or None before :meth:`agree`."""
        return read_json(self.path / "layout.json")

    def agree(self, layout: Mapping[str, Any]) -> dict[str, Any]:
        """Propose a layout; returns the first one proposed by any process, which applies to all."""
        draft = self.path / f".layout.{os.getpid()}.{secrets.token_hex(4)}"
        atomic_write(draft, to_json(layout) + "\n")
        with discarding(draft), suppress(FileExistsError):  # another process was first
            os.link(draft, self.path / "layout.json")
        draft.unlink()
        fsync_path(self.path)
        agreed = self.layout()
        assert agreed is not None
        return agreed

    def adopt(self, folder: Path) -> int:
        """Copy the completions of complete results of the same samples, to judge them again; returns their number.

        Raises DamagedError.
        """
        summary, rows = read_summary(folder) or {}, read_completion_rows(folder)
        samples = [{"item": item, **generated(row)} for item, row in enumerate(rows)]
        layout = {
            "chunks": [list(range(len(rows)))],
            "batch_size": summary["metrics"]["batch_size"],
            "checkpoint": summary["checkpoint"],
            **summary["run"],
        }
        with closing(PartialWriter(self, 0)) as writer:
            writer.chunk(0, samples)
        self.agree(layout)
        return len(samples)

    def completions(self) -> dict[int, dict[str, Any]]:
        """Samples of every finished chunk, by item."""
        rows: dict[int, dict[str, Any]] = {}
        for file in sorted(self.path.glob("completions.*.jsonl")):
            rows |= _whole_chunks(file)[0]
        return rows

    def verdicts(self) -> dict[int, dict[str, Any]]:
        """Verdicts, by item."""
        rows: dict[int, dict[str, Any]] = {}
        for file in sorted(self.path.glob("verdicts.*.jsonl")):
            rows |= {row["item"]: row for row, _ in _lines(file)}
        return rows

    def remove(self) -> None:
        remove_tree(self.path)


class PartialWriter:
    """The two files of one worker. Creating it cuts off incomplete lines and chunks."""

    def __init__(self, partial: Partial, rank: int) -> None:
        self._path = partial.path
        self._completions = _appendable(partial.path / f"completions.{rank}.jsonl", chunks=True)
        self._verdicts = _appendable(partial.path / f"verdicts.{rank}.jsonl", chunks=False)

    def chunk(self, index: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append a chunk's samples and the line that ends it, durably. Raises PartialError."""
        self._append(self._completions, [*rows, {"chunk": index, "samples": len(rows)}])

    def verdicts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append verdicts, durably. Raises PartialError."""
        if rows:
            self._append(self._verdicts, rows)

    def _append(self, descriptor: int, rows: Iterable[Mapping[str, Any]]) -> None:
        try:
            _append(descriptor, rows)
        except OSError as error:
            hint = f"earlier samples are kept; {disk_fix(error) or 'fix the cause'} and rerun the evaluation"
            message = f"cannot write to {self._path}: {disk_reason(error)}; {hint}"
            raise PartialError(message, code=code_of(error)) from error

    def close(self) -> None:
        for descriptor in (self._completions, self._verdicts):
            os.close(descriptor)


def _appendable(path: Path, *, chunks: bool) -> int:
    """A descriptor at the end of a file's whole lines or chunks; the rest is cut off."""
    whole = 0
    if path.exists():
        whole = _whole_chunks(path)[1] if chunks else max((end for _, end in _lines(path)), default=0)
    descriptor = open_for_writing(path)
    os.ftruncate(descriptor, whole)
    return descriptor


def _append(descriptor: int, rows: Iterable[Mapping[str, Any]]) -> None:
    payload = memoryview("".join(to_json(row) + "\n" for row in rows).encode())
    while payload:
        payload = payload[os.write(descriptor, payload) :]
    os.fsync(descriptor)


def _lines(path: Path) -> list[tuple[dict[str, Any], int]]:
    """The whole lines from the start of a file, each with the offset of its end."""
    rows: list[tuple[dict[str, Any], int]] = []
    end = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                row = parse_object(line, finite=False)
            except Unreadable:  # for example a block of zeros after a machine crash
                break
            if not row.keys() & {"item", "chunk"}:
                break
            end += len(line)
            rows.append((row, end))
    return rows


def _whole_chunks(path: Path) -> tuple[dict[int, dict[str, Any]], int]:
    """Samples of the finished chunks, by item, and the length of those chunks in bytes."""
    samples: dict[int, dict[str, Any]] = {}
    current: list[dict[str, Any]] = []
    whole = 0
    for row, end in _lines(path):
        if "chunk" not in row:
            current.append(row)
            continue
        samples |= {sample["item"]: sample for sample in current}
        current, whole = [], end
    return samples, whole
