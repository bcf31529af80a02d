"""Several steps per rollout buffer, the reference model, and keys that cannot change at a resume."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from grpo_train.config import load_config
from grpo_train.run_dir import write_manifest
from grpo_train.supervisor.resume import prepare_resume
from grpo_train.train.checkpoint import seed_everything
from grpo_train.train.resume import check_position, config_changes, new_keys
from grpo_train.train.worker import main
from tests.support.engine import (
    assert_same_run,
    resume_here,
    rows,
    train_here,
    weights_hash,
    write_config,
)

REUSE: dict[str, dict[str, object]] = {
    "two passes": {"algorithm__num_iterations": 2},
    "two passes of LoRA": {"algorithm__num_iterations": 2, "model__adapter": "lora"},
    "two updates a pass": {"algorithm__updates_per_buffer": 2, "train__microbatch_size": 1},
    "everything": {
        "algorithm__num_iterations": 2,
        "algorithm__updates_per_buffer": 2,
        "train__microbatch_size": 1,
        "train__token_budget": 104,
        "algorithm__loss_type": "gspo",
        "algorithm__scale_rewards": "batch",
        "algorithm__beta": 0.05,
        "algorithm__entropy_coef": 0.001,
        "algorithm__mask_truncated_completions": True,
        "algorithm__overlong_buffer": 20,
        "algorithm__reward_weights": {"overlong": 0.5},
        "rollout__top_p": 0.95,
        "algorithm__rollout_correction": "sequence_truncate",
    },
    "beta on a fresh adapter": {"algorithm__beta": 0.05, "model__adapter": "lora"},
}


@pytest.mark.parametrize("how", REUSE)
def test_resumes_within_a_buffer_are_bit_exact(root: Path, how: str) -> None:
    """Resumed after steps 1, 3 and 4: pending buffer, probes and reference are restored bit for bit."""
    cfg = write_config(root, run__total_steps=6, **REUSE[how])
    whole = train_here(root, cfg, "whole")
    run = train_here(root, cfg, "parts", "--until", "1")
    for until in (3, 4, 6):
        prepare_resume(run, "latest", 6)
        assert main(["--run-dir", str(run.path), "--until", str(until)]) == 0
    assert_same_run(run, whole, 6)
    assert_same_run(run, whole, 3)
    pending = (run.training_state / "step_3" / "buffer.pt").is_file()
    assert pending == (load_config(cfg.read_text()).steps_per_buffer > 1)


def test_a_reused_buffer_is_logged_once(root: Path) -> None:
    cfg = write_config(root, run__total_steps=4, algorithm__num_iterations=2)
    run = train_here(root, cfg, "reused")
    assert {row["step"] for row in rows(run, "rollouts.jsonl")} == {1, 3}
    assert [row["reward"] for row in rows(run)][::2] == [row["reward"] for row in rows(run)][1::2]
    first, second = rows(run)[:2]
    assert first["num_tokens"] == second["num_tokens"]
    assert second["ess/token"] < first["ess/token"] <= 1  # the policy has moved


def test_beta_uses_the_starting_adapter(root: Path) -> None:
    """At step 1 policy and reference are equal. The run keeps a copy of the adapter it continued."""
    changes = {"model__adapter": "lora", "run__total_steps": 3, "optimizer__learning_rate": 3e-3}
    first = train_here(root, write_config(root, "first.yaml", **changes), "first")
    cfg = write_config(root, "second.yaml", **changes, algorithm__beta=0.2)
    ckpt = str(first.training_state / "step_3")
    whole = train_here(root, cfg, "whole", "--ckpt", ckpt)
    assert abs(rows(whole)[0]["kl"]) < 1e-9
    assert rows(whole)[-1]["kl"] > 1e-9
    run = train_here(root, cfg, "parts", "--ckpt", ckpt, "--until", "1")
    shutil.rmtree(first.training_state)  # the run has its own copy
    resume_here(run, total=3)
    assert_same_run(run, whole, 3)


def test_restart_before_the_first_save_keeps_reference(root: Path) -> None:
    """The first attempt's copy of the starting adapter exists when the supervisor restarts the stage."""
    changes = {"model__adapter": "lora", "run__total_steps": 1}
    first = train_here(root, write_config(root, "first.yaml", **changes), "first")
    cfg = write_config(root, "second.yaml", **{**changes, "algorithm__beta": 0.2, "model__lora_rank": 64})
    ckpt = str(first.training_state / "step_1")
    run = train_here(root, cfg, "again", "--ckpt", ckpt)
    assert run.read_launch()["ckpt"] == "training_runs/first/training_state/step_1"
    assert load_config(run.config_file.read_text()).model.lora_rank == 4  # the adapter's value, not the config's
    weights = weights_hash(run, 1)
    shutil.rmtree(run.training_state)
    run.training_state.mkdir()
    assert main(["--run-dir", str(run.path), "--ckpt", ckpt]) == 0
    assert weights_hash(run, 1) == weights


def test_another_world_size_draws_new_numbers(root: Path) -> None:
    """A resume with another world size does not repeat the random numbers of step 0."""
    run = train_here(root, write_config(root, run__total_steps=2), "alone", "--until", "1")
    info = run.training_state / "step_1" / "training_info.json"
    info.write_text(info.read_text().replace('"world_size": 1', '"world_size": 3').replace('"torch": "', '"torch": "x'))
    write_manifest(info.parent, format=1, step=1)
    resume_here(run, total=2)
    (differences,) = [row["differences"] for row in rows(run, "events.jsonl") if row["event"] == "training"][-1:]
    assert differences[0] == "processes: saved with 3, resumed with 1"
    assert differences[1].startswith("torch: saved with x")
    seed_everything(3, 0)
    fresh = torch.rand(1)
    seed_everything(3, 0, 1)
    assert torch.rand(1) != fresh


def test_missing_reference_is_an_error(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = train_here(root, write_config(root, "first.yaml", run__total_steps=1), "first")
    cfg = write_config(root, "second.yaml", run__total_steps=3, algorithm__beta=0.2)
    run = train_here(root, cfg, "second", "--ckpt", str(first.training_state / "step_1"), "--until", "1")
    shutil.rmtree(first.path)
    prepare_resume(run, "latest", 3)
    assert main(["--run-dir", str(run.path)]) == 1
    assert "algorithm.beta and task.opponent need the model that the run started from" in capfd.readouterr().err


def test_seed_may_change_within_a_buffer() -> None:
    saved, config = (load_config(f"run: {{seed: {seed}}}\nalgorithm: {{num_iterations: 2}}") for seed in (3, 4))
    changes = config_changes(saved.model_dump(mode="json"), config)
    assert changes == {"run.seed": (3, 4)}
    check_position(changes, 3, config, Path("config.yaml"))


def test_keys_that_an_earlier_version_did_not_save() -> None:
    config = load_config("")
    saved = config.model_dump(mode="json")
    assert new_keys(saved, config) == new_keys({}, config) == []
    del saved["rollout"]["backend"], saved["tracking"]
    assert (new_keys(saved, config), config_changes(saved, config)) == (["rollout.backend"], {})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("num_iterations: 2", "num_iterations: 1"),
        ("buffer_size: 4", "buffer_size: 8"),
        ("num_generations: 4", "num_generations: 2"),
        ("beta: 0.0", "beta: 0.5"),
    ],
)
def test_keys_of_a_pending_buffer_cannot_change(
    root: Path, capfd: pytest.CaptureFixture[str], old: str, new: str
) -> None:
    cfg = write_config(root, run__total_steps=4, algorithm__num_iterations=2)
    run = train_here(root, cfg, "halfway", "--until", "3")
    run.config_file.write_text(run.config_file.read_text().replace(old, new))
    prepare_resume(run, "latest", 4)
    assert main(["--run-dir", str(run.path)]) == 1
    error = capfd.readouterr().err
    assert f"{old.split(':')[0]} (" in error
    assert "cannot change at step 3" in error
    assert "Traceback" not in error
