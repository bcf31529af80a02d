"""Commands that store, thin out and restore one run, one after the other, as a user types them.

After each of them that makes a snapshot, what the run is then is what a restore must bring back: every file of the run
and of its evaluations, and every checkpoint that was ever stored.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo_train.run_dir import RunDir
from tests.support.backups import contents, make_evaluation, make_run, save, train_to
from tests.support.engine import command_here

COMMANDS = ("backup", "evaluate", "cleanup", "archive", "prune", "resume", "restore")
ARCHIVED = "archive/completed_runs/one"


class Box:
    """A root with a run of three checkpoints, the second evaluated, that was backed up once."""

    def __init__(self, place: Path) -> None:
        self._place, self._boxes = place, 1
        self._evaluations = 1
        self._stored: dict[str, str] = {}
        make_run(self.root, "one", 10, 20, 30)
        make_evaluation(self.root, "one", "addition", 20)
        self.do("backup")

    @property
    def root(self) -> Path:
        return self._place / f"box_{self._boxes}"

    @property
    def run(self) -> Path:
        archived = self.root / ARCHIVED
        return archived if archived.is_dir() else self.root / "training_runs" / "one"

    def do(self, command: str) -> None:
        """Run a command; one that does not fit an archived run does nothing."""
        if self.run.parent.name == "completed_runs" and command in ("cleanup", "archive", "resume"):
            return
        if getattr(self, f"_{command}")():
            steps = {name: what for name, what in self._stored.items() if "/step_" in name}
            self._stored = steps | self._files()

    def check(self) -> None:
        """Restore the run on another box and compare it with what was stored last."""
        self._restore()
        assert self._files() == self._stored

    def _backup(self) -> bool:
        return not self._json("backup", "--training-run", "one")["omitted"]

    def _evaluate(self) -> None:
        """Another result in the table, and an evaluation of another dataset."""
        self._evaluations += 1
        make_evaluation(self.root, "one", f"set_{self._evaluations}", 30)
        with (self.root / "eval_runs" / "one_addition" / "consolidated_metrics.csv").open("a") as table:
            table.write(f"{self._evaluations},step,ok,0.5\n")

    def _cleanup(self) -> bool:
        return bool(self._json("cleanup", "--training-run", "one", "--keep-latest", "--yes").get("removed"))

    def _archive(self) -> bool:
        return bool(self._json("archive", "one"))

    def _prune(self) -> None:
        self._json("prune-backups", "one", "--keep-last", "1", "--yes")

    def _resume(self) -> None:
        run = RunDir(self.run)
        train_to(run, run.newest_step() + 10)
        save(run, run.newest_step() + 10)

    def _restore(self) -> None:
        """The box is gone; the run is restored on the next one."""
        self._boxes += 1
        assert not self._json("restore", "--training-run", "one")["omitted"]

    def _json(self, *words: str) -> Any:
        done = command_here(*words, "--json", root=self.root)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def _files(self) -> dict[str, str]:
        evaluations = contents(self.root / "eval_runs")
        return contents(self.run) | {f"eval_runs/{name}": what for name, what in evaluations.items()}
