"""SIGKILL before every system call by which a save and its pruning change the disk. Part of ``make soak``.

Exhaustive: every write, fsync, rename, symlink, mkdir, unlink … by any library, for LoRA and full weights, with the
probes' averages and the pending buffer. After each kill every visible step is complete, the run resumes from the newest
with its full state, and the next save removes the leftovers.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch

from grpo_train.run_dir import RunDir, create_run
from grpo_train.train.checkpoint import load_extra, load_training_state
from grpo_train.train.distributed import World
from grpo_train.train.retention import prune_checkpoints
from tests.support.saving import EXTRA, Trainer, make_trainer, whole
from tests.support.tracing import Touch, killed_before, trace
from tests.train.test_retention import announce

BEFORE = [1, 2, 3, 4]
READ = 2
"""A live evaluation reads this step."""
SAVED = 5
KEPT = [READ, 3, SAVED]
"""Of the five: the newest, the milestone, and the one being read; 1 and 4 are pruned."""


@pytest.fixture(scope="module", params=["none", "lora"])
def trainer(request: pytest.FixtureRequest, tiny_model: Path) -> Trainer:
    return make_trainer(tiny_model, request.param)


@pytest.fixture
def run(trainer: Trainer, tmp_path: Path) -> RunDir:
    run = create_run(tmp_path / "root", {}, "one")
    for step in BEFORE:
        trainer.save(run, step, extra=EXTRA)
    announce(run, READ)
    return run


def save_and_prune(trainer: Trainer, run: RunDir, step: int = SAVED) -> None:
    trainer.save(run, step, final=True, extra=EXTRA)
    prune_checkpoints(run, keep_last=1, keep_every=3)


def assert_resumable(run: RunDir, trainer: Trainer, step: int) -> None:
    """Assert that the newest step restores its full state: weights, optimizer, scheduler, generators, extras."""
    point = run.resume_point()
    assert point is not None
    assert point.step == step
    again = make_trainer(Path(trainer.policy.base), _adapter(trainer), point.path / "model")
    info = load_training_state(point, again.optimizer, again.scheduler, World())
    assert info["num_tokens"] == step
    for mine, theirs in zip(again.policy.trainable(), trainer.policy.trainable(), strict=True):
        moments, saved = again.optimizer.state[mine], trainer.optimizer.state[theirs]
        assert torch.equal(moments["exp_avg_sq"], saved["exp_avg_sq"])
    assert load_extra(point, "probes") == EXTRA["probes"]
    assert torch.equal((load_extra(point, "buffer") or {})["ids"], EXTRA["buffer"]["ids"])


def _adapter(trainer: Trainer) -> str:
    return "lora" if hasattr(trainer.policy.model, "peft_config") else "none"


@pytest.mark.timeout(3600)
def test_kill_before_every_system_call(trainer: Trainer, run: RunDir) -> None:
    kept = shutil.copytree(run.training_state, run.path / "kept", symlinks=True)
    made = trace(lambda: save_and_prune(trainer, run))
    assert whole(run) == sorted(KEPT)
    print(f"\n{_adapter(trainer)}: {len(made)} kill points: {dict(Counter(touch.call for touch in made))}")
    seen: Counter[tuple[int, ...]] = Counter()
    for n, touch in enumerate(made):
        shutil.rmtree(run.training_state)
        shutil.copytree(kept, run.training_state, symlinks=True, copy_function=os.link)
        killed_before(n, lambda: save_and_prune(trainer, run))
        steps = whole(run)
        seen[tuple(steps)] += 1
        assert {READ, 3} <= set(steps), f"killed before {n}, {touch}"
        assert_resumable(run, trainer, steps[-1])
        save_and_prune(trainer, run, steps[-1] + 1)
        assert whole(run)[-1] == steps[-1] + 1
        assert not list(run.training_state.glob(".*")), f"left by a kill before {n}, {touch}"
    print(f"{_adapter(trainer)}: visible after the kills: {dict(seen)}")
    assert set(seen) == {(1, 2, 3, 4), (1, 2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 5)}, "every intermediate state occurred"


def test_steps_are_durable_before_visible(trainer: Trainer, run: RunDir) -> None:
    """A power cut loses unsynced data, which a kill does not show, so this checks the order of the calls."""
    state = str(run.training_state)
    made = trace(lambda: save_and_prune(trainer, run))
    shown = next(n for n, touch in enumerate(made) if touch.to == f"{state}/step_{SAVED}")
    staging = made[shown].path

    def final_name(path: str, after: int) -> str:
        """Name, when the step becomes visible, of a file written under a temporary name."""
        for touch in made[after:shown]:
            if touch.call == "rename" and touch.path == path:
                path = touch.to
        return path

    dirty: dict[str, int] = {}
    synced: dict[str, int] = {}
    for n, touch in enumerate(made[:shown]):
        if touch.call in ("fsync", "fdatasync"):
            synced[final_name(touch.path, n)] = n
        elif touch.path.startswith(staging):
            changed = [touch.path] if touch.call in ("write", "writev", "pwrite64", "ftruncate") else []
            made_names = [touch.path, touch.to] if touch.call in ("open", "rename", "symlink", "mkdir") else []
            for path in [*changed, *(os.path.dirname(name) for name in made_names if name)]:
                dirty[final_name(path, n)] = n
    dirty.pop(state, None)  # the hidden name itself; the fsync after the rename counts
    late = {path: n for path, n in dirty.items() if synced.get(path, -1) < n}
    assert not late, f"visible before they were durable: {sorted(late)}"
    assert len(dirty) > 12

    def after(n: int, wanted: Touch) -> int:
        return next(m for m in range(n, len(made)) if made[m] == wanted)

    durable = after(shown, Touch("fsync", state))
    linked = next(n for n, touch in enumerate(made) if touch.to == f"{state}/step_latest")
    assert shown < durable < linked, "the link moves after its target is durable"
    for step in (1, 4):
        hidden = next(n for n, touch in enumerate(made) if touch.path == f"{state}/step_{step}")
        gone = made[hidden].to
        assert made[hidden].call == "rename"
        first_loss = next(n for n, t in enumerate(made) if n > hidden and t.call in ("unlink", "rmdir"))
        assert after(hidden, Touch("fsync", state)) < first_loss, f"{gone} was removed piecewise under its own name"
