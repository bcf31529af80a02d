"""``grpo-train selftest``: the whole workflow on this machine, each step as a user runs it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from grpo_train.backup.backup_yaml import Bucket, Folder
from grpo_train.backup.destinations import find_destination, open_destination
from grpo_train.backup.leftovers import ROOT, erase, homes_of, note_destination
from grpo_train.cli.options import AsJson, Root
from grpo_train.cli.output import fail, styled, table
from grpo_train.config import dump_config, load_config, read_config_text, with_changes
from grpo_train.policy.locate import resolve_backbone
from grpo_train.run_dir import RunDir, prepare_root, remove_tree, resolve_root, sha256
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.processes import start_ticks
from grpo_train.run_dir.root import ROOT_VARIABLE
from grpo_train.train.preflight import check_engine

RUN = "selftest"
DESTINATION = "selftest"
STEP_S = 1800.0
"""Time limit of a step."""
TINY = """
run: {total_steps: 2, save_every: 1}
model: {backbone: tiny, adapter: lora}
rollout: {buffer_size: 4, num_generations: 4, max_prompt_length: 16, max_completion_length: 24}
optimizer: {learning_rate: 1.0e-4}
task: {name: addition}
"""


class StepError(Exception):
    """A step that failed; the message is the end of its output."""


@dataclass(frozen=True)
class SelftestRow:
    """A step of the test."""

    step: str
    result: str
    """``ok``, ``failed`` or ``not run``."""
    seconds: float = 0.0
    detail: str = ""


def selftest(
    cfg: Annotated[Path | None, typer.Option(help="Config to test (default: the tiny model).")] = None,
    to: Annotated[str | None, typer.Option(help="Destination of backup.yaml (default: a directory).")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep what it wrote.")] = False,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Train, evaluate, resume, back up, verify and restore on this machine, and compare every byte.

    It works in a new directory below the root and removes it, and what it backed up with --to. It copies the root's
    tiny model, or makes one; with it, two cores take one or two minutes. Exit codes: 0 all steps passed, 1 one failed.
    """
    check_engine()
    if to is not None:
        find_destination(to)
    folder = resolve_root(root)
    folder.mkdir(parents=True, exist_ok=True)
    with _scratch(folder, keep) as scratch:
        if to is not None:
            note_destination(scratch, to)
        test = _Test(scratch, folder, to)
        rows = test.run(_config(cfg, folder))
        if to is not None:
            rows.append(test.leave(to) if keep else test.erase(to))
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        tones = {"ok": "good", "failed": "bad", "not run": "rest"}
        cells = [[row.step, styled(row.result, tones[row.result]), f"{row.seconds:.1f} s"] for row in rows]
        plain = (f"{row.step:<32} {row.result:<8} {row.seconds:6.1f} s" for row in rows)
        table(("step", "result", "time"), cells, plain=plain)
        if to is not None and rows[-1].detail and rows[-1].result != "failed":
            print(rows[-1].detail)
    if failed := next((row for row in rows if row.result == "failed"), None):
        left = f"\n{rows[-1].detail}" if to is not None and rows[-1] is not failed and rows[-1].detail else ""
        where = f" (everything is in {scratch})" if keep else " (--keep keeps everything it wrote)"
        fail(f"{failed.step} failed{where}:\n{failed.detail}{left}")


def _config(cfg: Path | None, root: Path) -> str:
    """The config that is tested: two steps, each saved, a base model that is found from another root."""
    text = TINY if cfg is None else read_config_text(cfg)
    config = load_config(text, source=str(cfg or "selftest"))
    run = {"total_steps": 2, "save_every": 1, "eval_every": 0, "eval_initial": False, "keep_last": 0}
    config = with_changes(config, run=run)
    if cfg is not None:
        config = with_changes(config, model={"backbone": resolve_backbone(config.model.backbone, root)})
    return dump_config(config)


@contextmanager
def _scratch(root: Path, keep: bool) -> Iterator[Path]:
    pid = os.getpid()  # grpo-train clean sees by the name whether it is at work
    path = Path(tempfile.mkdtemp(prefix=f".selftest-{pid}-{start_ticks(pid)}-", dir=root))
    try:
        yield path
    finally:
        if not keep:
            remove_tree(path)


class _Test:
    """The steps; each runs only if all before it passed."""

    def __init__(self, scratch: Path, root: Path, to: str | None) -> None:
        self._scratch, self._to = scratch, to or DESTINATION
        self._tiny = root / "models" / "tiny"
        self._here, self._there = scratch / ROOT, scratch / "restored"
        self._run = RunDir(self._here / "training_runs" / RUN)
        self._restored = RunDir(self._there / "training_runs" / RUN)
        self._environment = {**os.environ}
        if to is None:
            # A destination of its own, in a configuration directory of its own.
            store = scratch / "store"
            store.mkdir()
            settings = scratch / "config" / "grpo-tui" / "backup.yaml"
            settings.parent.mkdir(parents=True)
            settings.write_text(f"destinations:\n  - name: {DESTINATION}\n    folder: {json.dumps(str(store))}\n")
            self._environment["XDG_CONFIG_HOME"] = str(settings.parents[1])

    def run(self, config: str) -> list[SelftestRow]:
        """Every step's row."""
        file = self._scratch / "selftest.yaml"
        file.write_text(config, encoding="utf-8")
        of_run = ("--training-run", RUN)
        steps = {
            "make or copy the tiny model": lambda: self._make_model(config),
            "train 2 steps": lambda: self._command("train", "--cfg", str(file), "--run-name", RUN),
            "evaluate every checkpoint": lambda: self._command(
                "eval", *of_run, "--steps", "all", "--num-problems", "4", "--max-completion-length", "24"
            ),
            "evaluate the final one": lambda: self._command(
                "eval", *of_run, "--steps", "final", "--num-problems", "2", "--max-completion-length", "24"
            ),
            "resume for 1 step": lambda: self._command("resume", *of_run, "--additional-steps", "1"),
            "check the files": self._check_files,
            "back up": lambda: self._command("backup", *of_run, "--to", self._to),
            "verify the backup": lambda: self._command("verify-backup", RUN, "--to", self._to),
            "restore under another root": self._restore,
            "compare every byte": self._compare,
            "resume both, compare the weights": self._resume_both,
        }
        rows: list[SelftestRow] = []
        for name, work in steps.items():
            if any(row.result == "failed" for row in rows):
                rows.append(SelftestRow(name, "not run"))
                continue
            print(f"selftest: {name}", file=sys.stderr, flush=True)
            began = time.monotonic()
            try:
                work()
                rows.append(SelftestRow(name, "ok", round(time.monotonic() - began, 1)))
            except (StepError, OSError) as error:
                rows.append(SelftestRow(name, "failed", round(time.monotonic() - began, 1), str(error)))
        return rows

    def erase(self, to: str) -> SelftestRow:
        """Remove what was backed up, also after a step that failed."""
        step, began = f"remove its backup from {to}", time.monotonic()
        try:
            erased = erase(open_destination(to, self._here, write=False).store, self._here)
        except (UserError, OSError) as error:
            seconds = round(time.monotonic() - began, 1)
            return SelftestRow(step, "failed", seconds, f"{error}\n{self.leave(to).detail}")
        stays = " ".join(["grpo-store.json", *erased.shared])
        kept = f"kept in {to}: {stays} (shared by all runs)" if erased.objects else ""
        return SelftestRow(step, "ok", round(time.monotonic() - began, 1), kept)

    def leave(self, to: str) -> SelftestRow:
        """Name what is left in the store, and the commands that remove it."""
        step = f"remove its backup from {to}"
        try:
            commands = [removal_command(find_destination(to), home.prefix) for home, _ in homes_of(self._here)]
        except (UserError, OSError) as error:  # removed from backup.yaml meanwhile
            return SelftestRow(step, "not run", detail=f"what is left in {to} is not known: {error}")
        lines = "\n".join(f"  {command}" for command in commands)
        return SelftestRow(step, "not run", detail=f"may be left in {to}; remove it with\n{lines}" if commands else "")

    def _command(self, *words: str, root: Path | None = None) -> None:
        """Run a command over a root. Raises StepError with the end of its output."""
        command = [sys.executable, "-m", "grpo_train.cli", *words]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                errors="replace", timeout=STEP_S,
                env={**self._environment, ROOT_VARIABLE: str(root or self._here)},
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:  # a model server or a disk that hangs
            raise StepError(f"grpo-train {' '.join(words)} took longer than {STEP_S:.0f} s") from error
        if done.returncode:
            tail = "\n".join(done.stdout.splitlines()[-20:])
            raise StepError(f"grpo-train {' '.join(words)} ended with exit code {done.returncode}\n{tail}")

    def _make_model(self, config: str) -> None:
        prepare_root(self._here)
        if load_config(config).model.backbone != "tiny":
            return
        out = self._here / "models" / "tiny"
        if (self._tiny / "config.json").is_file():
            shutil.copytree(self._tiny, out)
        else:
            self._command("tiny-model", "--out", str(out))

    def _check_files(self) -> None:
        """The run has what the contract names, and its checkpoints are whole."""
        wanted = ("launch.json", "config.yaml", "status.json", "logs/train_log.jsonl", "logs/rollouts.jsonl",
                  "logs/events.jsonl", "logs/console.log")  # fmt: skip
        if missing := [name for name in wanted if not (self._run.path / name).is_file()]:
            raise StepError(f"{self._run.path} lacks {', '.join(missing)}")
        steps = [checkpoint.step for checkpoint in self._run.checkpoints() if not checkpoint.problem]
        if steps != [1, 2, 3]:
            raise StepError(f"complete checkpoints: {steps}, expected 1, 2 and 3")
        for step in steps:
            self._run.checkpoint(step, deep=True)
        if not list((self._here / "eval_runs").glob("*/*/summary.json")):
            raise StepError(f"no evaluation wrote a summary below {self._here / 'eval_runs'}")

    def _restore(self) -> None:
        prepare_root(self._there)
        if (models := self._here / "models").is_dir():
            shutil.copytree(models, self._there / "models")
        self._command("restore", "--training-run", RUN, "--steps", "all", "--from", self._to, root=self._there)

    def _compare(self) -> None:
        here, there = _hashes(self._run.path), _hashes(self._restored.path)
        if differing := sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name)):
            raise StepError("these files of the restored run differ: " + ", ".join(differing[:20]))

    def _resume_both(self) -> None:
        for root in (self._here, self._there):
            self._command("resume", "--training-run", RUN, "--additional-steps", "1", root=root)
        states = [_state(run.training_state / "step_4") for run in (self._run, self._restored)]
        if differing := sorted(name for name in states[0] | states[1] if states[0].get(name) != states[1].get(name)):
            raise StepError(f"the restored run continued to another state: {', '.join(differing)}")


def removal_command(where: Folder | Bucket, prefix: str) -> str:
    """The command for a shell that removes everything below a prefix of a destination."""
    if not isinstance(where, Bucket):
        return shlex.join(["rm", "-r", f"{where.folder.rstrip('/')}/{prefix}"])
    url = "/".join(part for part in (f"s3://{where.bucket or 'BUCKET'}", where.prefix.strip("/"), prefix) if part)
    endpoint = ["--endpoint-url", where.endpoint] if where.endpoint else []
    return shlex.join(["aws", "s3", "rm", "--recursive", *endpoint, url])


def _state(checkpoint: Path) -> dict[str, str]:
    """Hashes of weights, optimizer, scheduler and random generators; peft writes its notes in any order."""
    hashes = _hashes(checkpoint)
    return {name: found for name, found in hashes.items() if name.endswith((".safetensors", ".pt"))}


def _hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file, target of every link; without ``status.json``, ``control`` and hidden files, which belong
    to the machine."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name.startswith(".") or name == "status.json" or name.startswith("control"):
            continue
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = sha256(path)
    return found
