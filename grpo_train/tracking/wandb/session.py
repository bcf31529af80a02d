"""One W&B run: opened, fed and finished. The only module that imports ``wandb``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from grpo_train.config.yaml_text import read_plain_config
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.credentials import netrc_password
from grpo_train.run_dir.identity import run_identity
from grpo_train.tracking.wandb.rows import (
    COLUMNS,
    LOGGED,
    ROLLOUTS,
    STEP,
    Generation,
    completions_of,
    entry_of,
    evaluations_after,
    generations,
    last_evaluated,
    rows_after,
)
from grpo_train.tracking.wandb.settings import WandbSettings

FAILED = ("crashed", "killed", "lost", "stalled")
"""States that W&B calls failed."""
INIT_S = 60.0


class WandbSession:
    """An open W&B run of a generation. Raises what ``wandb`` raises."""

    def __init__(
        self, run: RunDir, settings: WandbSettings, generation: Generation, folder: Path | None = None
    ) -> None:
        """``folder``: where ``wandb/`` with its files is made; None = in the run."""
        if problem := netrc_password("")[1]:  # threads of wandb read it offline, too, and end in a traceback
            print(f"{problem}; it is left out", flush=True)
            os.environ["NETRC"] = os.devnull
        import wandb

        self._id = generation.id_of(run_identity(run.path).identity)
        self._run, self._generation, self._completions = run, generation, settings.completions
        self._offset = 0
        """Byte of the log up to which its rows were sent."""
        self._rollouts_offset = 0
        """The same of ``rollouts.jsonl``."""
        self._wandb = wandb.init(
            mode="offline" if settings.mode == "offline" else "online",
            entity=settings.entity,
            project=settings.project,
            group=settings.group,
            tags=settings.tags or None,
            id=self._id,
            name=run.name + (f" (resumed {generation.index})" if generation.index else ""),
            config=read_plain_config(run.config_file),
            resume="allow",
            dir=str(folder or run.path),
            settings=wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                init_timeout=INIT_S,
                silent=True,
                x_disable_machine_info=True,
                x_disable_meta=True,  # argv, user name and environment stay here
                x_disable_stats=True,
            ),
        )
        self._wandb.define_metric(STEP)
        self._wandb.define_metric("*", step_metric=STEP)
        summary = dict(self._wandb.summary) if self._wandb.resumed else {}
        self._last_step = float(summary.get(LOGGED) or 0)
        self._evaluated = last_evaluated(summary)

    @property
    def url(self) -> str:
        """Where it is shown; "" offline."""
        return str(self._wandb.url or "") if not self._wandb.offline else ""

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return Path(self._wandb.dir).parent

    def feed(self) -> int:
        """Send the rows that are new, and the evaluated steps; returns how many entries. The steps that W&B has already
        are left out."""
        count = 0
        for end, row in rows_after(self._run, self._generation, self._offset):
            self._offset = end
            entry = entry_of(row)
            if entry is not None and entry[STEP] > self._last_step:
                self._wandb.log({**entry, **self._table(int(entry[STEP]))})
                self._last_step = entry[STEP]
                count += 1
        if self._generation.end is None:
            for entry in evaluations_after(self._run, self._evaluated):
                self._wandb.log(entry)
                self._evaluated |= last_evaluated(entry)
                count += 1
        return count

    def _table(self, step: int) -> dict[str, Any]:
        """The table ``completions`` of a step; {} if none is asked for, or the step learns from an earlier one's."""
        if not self._completions:
            return {}
        import wandb

        events = (event for _, event in self._run.events())
        generation = generations(events, ROLLOUTS)[self._generation.index]
        self._rollouts_offset, rows = completions_of(
            self._run, generation, self._rollouts_offset, step, self._completions
        )
        return {"completions": wandb.Table(list(COLUMNS), rows, allow_mixed_types=True)} if rows else {}

    def finish(self, state: str) -> None:
        """Send what is left, and end the W&B run with our state of the run.

        The files of an offline run hold everything, so those of earlier starts are removed then.
        """
        self._wandb.summary["state"] = state
        self._wandb.finish(exit_code=1 if state in FAILED else 0)
        if self._wandb.offline:
            for folder in self.folder.parent.glob(f"offline-run-*-{self._id}"):
                if folder != self.folder:
                    shutil.rmtree(folder, ignore_errors=True)
