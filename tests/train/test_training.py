"""Training in this process: a resumed run is the run that never stopped; wrong starts are refused."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grpo_train.config import load_config
from grpo_train.run_dir import RunDir, RunDirError, write_manifest
from grpo_train.supervisor.supervisor import prepare_resume
from grpo_train.tasks import data_order
from grpo_train.train.checkpoint import seed_everything
from grpo_train.train.distributed import Group
from grpo_train.train.gradients import GradientSum
from grpo_train.train.worker import main
from tests.support.engine import (
    DAMAGES,
    assert_same_run,
    damage,
    events,
    resume_here,
    rows,
    run_of,
    steps_logged,
    train_here,
    weights_hash,
    write_config,
)

ADAPTERS = ("none", "lora")


@pytest.fixture(scope="module", params=ADAPTERS)
def straight(request: pytest.FixtureRequest, make_root: Callable[[], Path]) -> RunDir:
    """Six steps in one go, full weights and LoRA."""
    torch.set_num_threads(1)
    root = make_root()
    cfg = write_config(root, model__adapter=request.param, tracking__tensorboard=True)
    return train_here(root, cfg, "straight")


@pytest.fixture(scope="module")
def halves(straight: RunDir) -> RunDir:
    """Three steps of the same run, then a resume."""
    run = train_here(straight.root, straight.root / "small.yaml", "halves", "--until", "3")
    assert (run.read_status() or {})["state"] == "stopped"
    resume_here(run)
    return run


def test_six_steps_are_three_and_three_bit_for_bit(straight: RunDir, halves: RunDir) -> None:
    assert_same_run(straight, halves, 6)
    assert_same_run(straight, halves, 3)
    assert steps_logged(halves) == [1, 2, 3, 4, 5, 6]


def test_the_weights_move_and_the_rewards_vary(straight: RunDir) -> None:
    assert len({weights_hash(straight, step) for step in range(1, 7)}) == 6
    assert len({row["reward"] for row in rows(straight)}) > 1
    assert any(row["frac_reward_zero_std"] < 1 for row in rows(straight))


def test_a_step_repeated_from_the_middle_is_the_same_step(straight: RunDir, tmp_path: Path) -> None:
    root = tmp_path / "moved root"  # with another path, too: nothing may depend on it
    shutil.copytree(straight.root, root, symlinks=True)
    run = run_of(root, "straight")
    resume_here(run, "4")
    assert_same_run(straight, run, 6)
    assert steps_logged(run) == [1, 2, 3, 4, 5, 6]
    assert len((run.logs / "train_log.jsonl").read_text().splitlines()) == 8
    assert [p.name for p in sorted((run.training_state / "superseded").glob("*/*"))] == ["step_5", "step_6"]


def test_a_copy_that_followed_the_links_goes_on(straight: RunDir, tmp_path: Path) -> None:
    """As aws s3 sync makes them: step_latest and step_final are directories then. None is lost, none in the way."""
    shutil.copytree(straight.root, tmp_path / "copy")
    run = run_of(tmp_path / "copy", "straight")
    resume_here(run, "4")
    assert_same_run(straight, run, 6)
    for name in ("step_latest", "step_final"):
        assert os.readlink(run.training_state / name) == "step_6"
    aside = {path.name for path in (run.training_state / "superseded").glob("*/*")}
    assert aside == {"step_5", "step_6", "step_latest", "step_final"}


def test_generators_are_those_that_were_saved(make_root: Callable[[], Path], tmp_path: Path) -> None:
    """Dropout draws from them. The negative control: were they not restored, the first could not pass by luck."""
    torch.set_num_threads(1)
    root = make_root()
    cfg = write_config(root, model__adapter="lora", model__lora_dropout=0.2)
    run = train_here(root, cfg, "dropout")
    for name in ("saved", "others"):
        shutil.copytree(root, tmp_path / name, symlinks=True)
        again = run_of(tmp_path / name, "dropout")
        if name == "others":
            state = again.training_state / "step_3" / "rng.pt"
            generators = torch.load(state, weights_only=True)
            generators["rank_0"]["torch"] = torch.Generator().manual_seed(1).get_state()
            torch.save(generators, state)
            write_manifest(state.parent, format=1, step=3)
        resume_here(again, "3")
        assert (weights_hash(again, 6) == weights_hash(run, 6)) is (name == "saved")


def test_every_artefact_of_the_contract_is_there(straight: RunDir) -> None:
    for name in (
        "launch.json",
        "config.yaml",
        "status.json",
        "logs/events.jsonl",
        "training_state/step_6/MANIFEST.json",
    ):
        assert (straight.path / name).is_file(), name
    assert list((straight.path / "tensorboard").glob("events.out.tfevents.*"))
    assert os.readlink(straight.training_state / "step_latest") == "step_6"
    assert os.readlink(straight.training_state / "step_final") == "step_6"
    assert not list(straight.training_state.glob(".*"))
    assert load_config(straight.config_file.read_text()).run.total_steps == 6
    assert events(straight) == ["launched", "training", *["saved"] * 6]
    status = straight.read_status() or {}
    assert (status["state"], status["exit_code"], status["error"]) == ("finished", 0, None)


def test_a_line_of_the_log_has_the_contracts_keys(straight: RunDir) -> None:
    keys = [
        "step",
        "time",
        "loss",
        "reward",
        "reward_std",
        "rewards/accuracy/mean",
        "frac_reward_zero_std",
        "completions/mean_length",
        "completions/clipped_ratio",
        "entropy",
        "kl",
        "grad_norm",
        "learning_rate",
        "ess/token",
        "num_tokens",
        "time/rollout",
        "time/train",
        "time/step",
    ]
    for row in rows(straight):
        assert not [key for key in keys if key not in row]
        assert row["mismatch/kl"] < 1e-9
        assert row["ess/token"] == pytest.approx(1, abs=1e-6)
    assert [row["learning_rate"] for row in rows(straight)] == pytest.approx([1e-4, 2e-4, *[3e-4] * 4])


def test_rewards_and_advantages_in_the_log_agree(straight: RunDir) -> None:
    for step in rows(straight):
        completions = [r for r in rows(straight, "rollouts.jsonl") if r["step"] == step["step"]]
        assert len(completions) == 16
        assert step["reward"] == pytest.approx(math.fsum(r["reward"] for r in completions) / 16)
        for group in range(4):
            members = [r for r in completions if r["group"] == group]
            mean = math.fsum(r["reward"] for r in members) / 4
            assert [r["advantage"] for r in members] == pytest.approx([r["reward"] - mean for r in members])


def test_the_data_is_walked_in_its_order(straight: RunDir) -> None:
    asked = [r["index"] for r in rows(straight, "rollouts.jsonl") if r["sample"] == 0]
    assert asked == [data_order(7076, 3, position) for position in range(24)]


def test_nothing_stored_names_the_root(straight: RunDir) -> None:
    place = str(straight.root).encode()
    for path in straight.training_state.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".pt", ".safetensors", ".jinja", ".txt"):
            assert place not in path.read_bytes(), path
    info = json.loads((straight.training_state / "step_6" / "training_info.json").read_text())
    assert info["base_model"]["name"] == "models/tiny"
    assert len(info["base_model"]["weights_sha256"]) == 64


# ------------------------------------------------------------------------- what must not change a number


def test_micro_batches_change_nothing_but_rounding(root: Path) -> None:
    runs = [
        train_here(root, write_config(root, train__microbatch_size=size, run__total_steps=1), f"m{size}")
        for size in (1, 4)
    ]
    one, four = (rows(run)[0] for run in runs)
    assert one["grad_norm"] == pytest.approx(four["grad_norm"], rel=1e-4)
    left, right = (load_file(run.training_state / "step_1" / "model" / "model.safetensors") for run in runs)
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=1e-3, rtol=0)  # Adam's first step is +-lr
        assert (left[name] - right[name]).abs().mean() < 2e-5, name


def test_gradient_checkpointing_changes_nothing_but_rounding(root: Path) -> None:
    runs = [
        train_here(root, write_config(root, train__gradient_checkpointing=on, run__total_steps=1), f"g{on}")
        for on in (False, True)
    ]
    plain, recomputed = (rows(run)[0] for run in runs)
    assert plain["grad_norm"] == pytest.approx(recomputed["grad_norm"], rel=1e-5)
    assert plain["reward"] == recomputed["reward"]


# ------------------------------------------------------------------------------------------------- starting weights


def test_training_starts_from_a_step_a_model_or_an_adapter(straight: RunDir) -> None:
    root = straight.root
    adapter = load_config(straight.config_file.read_text()).model.adapter
    step = straight.training_state / "step_6"
    cfg = write_config(root, "go_on.yaml", model__adapter=adapter, run__total_steps=1, optimizer__learning_rate=1e-12)
    for name, ckpt in (("from_step", step), ("from_model", step / "model")):
        run = train_here(root, cfg, f"{name}_{adapter}", "--ckpt", str(ckpt))
        (saved,), (given,) = (
            [load_file(file) for file in (path / "model").glob("*.safetensors")]
            for path in (run.training_state / "step_1", step)
        )
        assert saved.keys() == given.keys()
        for key in saved:
            torch.testing.assert_close(saved[key], given[key], atol=1e-9, rtol=0)


def test_an_adapter_over_a_full_model_finds_it_again(straight: RunDir) -> None:
    """The base is then the model that was given, not the backbone: a resume and a restart must find it."""
    if load_config(straight.config_file.read_text()).model.adapter == "lora":
        return
    cfg = write_config(straight.root, "over.yaml", model__adapter="lora", run__total_steps=2)
    ckpt = straight.training_state / "step_2"
    run = train_here(straight.root, cfg, "over", "--ckpt", str(ckpt), "--until", "1")
    info = json.loads((run.training_state / "step_1" / "training_info.json").read_text())
    assert info["base_model"]["name"] == "training_runs/straight/training_state/step_2/model"
    resume_here(run, total=2)
    whole = train_here(straight.root, cfg, "over_straight", "--ckpt", str(ckpt))
    assert_same_run(run, whole, 2)


def refused(capfd: pytest.CaptureFixture[str], root: Path, *arguments: str) -> str:
    """The words with which a start is refused; no run may be left."""
    before = sorted(os.listdir(root / "training_runs"))
    assert main([*arguments, "--root", str(root), "--run-name", "refused"]) == 1
    assert sorted(os.listdir(root / "training_runs")) == before
    error = capfd.readouterr().err
    assert "Traceback" not in error
    return error


def test_an_adapter_on_another_base_is_refused(
    straight: RunDir, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if load_config(straight.config_file.read_text()).model.adapter == "none":
        return
    adapter = straight.training_state / "step_6"
    other = tmp_path / "other"
    shutil.copytree(straight.root / "models" / "tiny", other)
    weights = other / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    cfg = write_config(tmp_path, model__backbone=str(other), model__adapter="lora")
    error = refused(capfd, straight.root, "--cfg", str(cfg), "--ckpt", str(adapter))
    assert "was trained on models/tiny, whose weights differ from" in error
    assert "set model.backbone (or --base)" in error
    cfg = write_config(tmp_path, model__adapter="none")
    error = refused(capfd, straight.root, "--cfg", str(cfg), "--ckpt", str(adapter))
    assert "holds a LoRA adapter but model.adapter is 'none'" in error


def test_a_damaged_start_is_refused(straight: RunDir, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ckpt = tmp_path / "step_6"
    shutil.copytree(straight.training_state / "step_6", ckpt)
    (file,) = (ckpt / "model").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    error = refused(capfd, straight.root, "--cfg", str(straight.root / "small.yaml"), "--ckpt", str(ckpt))
    assert f"cannot be used: model/{file.name} does not have the checksum the manifest says" in error
    error = refused(capfd, straight.root, "--cfg", str(straight.root / "small.yaml"), "--ckpt", str(tmp_path))
    assert "holds neither a peft adapter" in error


def test_a_resume_with_the_other_kind_of_weights_is_refused(
    straight: RunDir, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(straight.root, root, symlinks=True)
    run = run_of(root, "straight")
    config = run.config_file.read_text()
    swapped = {"adapter: none": "adapter: lora", "adapter: lora": "adapter: none"}
    old = next(text for text in swapped if text in config)
    run.config_file.write_text(config.replace(old, swapped[old]))
    prepare_resume(run, "3", 6)
    assert main(["--run-dir", str(run.path)]) == 1
    assert f"set model.{old}" in capfd.readouterr().err


# --------------------------------------------------------------------------- several steps from one rollout buffer

REUSE: dict[str, dict[str, object]] = {
    "two passes": {"algorithm__num_iterations": 2},
    "two passes of LoRA": {"algorithm__num_iterations": 2, "model__adapter": "lora"},
    "two updates a pass": {"algorithm__updates_per_buffer": 2, "train__microbatch_size": 1},
    "all at once": {
        "algorithm__num_iterations": 2,
        "algorithm__updates_per_buffer": 2,
        "train__microbatch_size": 1,
        "train__token_budget": 60,
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
def test_resumes_in_the_middle_of_a_buffer_are_the_run_that_never_stopped(root: Path, how: str) -> None:
    """Stopped and resumed after steps 1, 3 and 4: the pending buffer, probes and reference come back bit for bit."""
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


def test_a_buffer_is_generated_once_and_logged_once(root: Path) -> None:
    cfg = write_config(root, run__total_steps=4, algorithm__num_iterations=2)
    run = train_here(root, cfg, "reused")
    assert {row["step"] for row in rows(run, "rollouts.jsonl")} == {1, 3}
    assert [row["reward"] for row in rows(run)][::2] == [row["reward"] for row in rows(run)][1::2]
    first, second = rows(run)[:2]
    assert first["num_tokens"] == second["num_tokens"]
    assert second["ess/token"] < first["ess/token"] <= 1  # the policy has moved


def test_beta_holds_the_policy_to_where_it_started(root: Path) -> None:
    """At step 1 policy and reference are one; a continued adapter is its own reference, and a resume finds it."""
    changes = {"model__adapter": "lora", "run__total_steps": 3, "optimizer__learning_rate": 3e-3}
    first = train_here(root, write_config(root, "first.yaml", **changes), "first")
    cfg = write_config(root, "second.yaml", **changes, algorithm__beta=0.2)
    ckpt = str(first.training_state / "step_3")
    whole = train_here(root, cfg, "whole", "--ckpt", ckpt)
    assert abs(rows(whole)[0]["kl"]) < 1e-9
    assert rows(whole)[-1]["kl"] > 1e-9
    run = train_here(root, cfg, "parts", "--ckpt", ckpt, "--until", "1")
    shutil.rmtree(first.training_state)  # the run has kept what it needs
    resume_here(run, total=3)
    assert_same_run(run, whole, 3)


def test_a_start_that_died_unsaved_can_be_repeated_with_its_reference(root: Path) -> None:
    """What the first attempt kept of the starting adapter is there already when the supervisor starts again."""
    changes = {"model__adapter": "lora", "run__total_steps": 1}
    first = train_here(root, write_config(root, "first.yaml", **changes), "first")
    cfg = write_config(root, "second.yaml", **{**changes, "algorithm__beta": 0.2, "model__lora_rank": 64})
    ckpt = str(first.training_state / "step_1")
    run = train_here(root, cfg, "again", "--ckpt", ckpt)
    assert run.read_launch()["ckpt"] == "training_runs/first/training_state/step_1"
    assert load_config(run.config_file.read_text()).model.lora_rank == 4  # the adapter's own, not the config's
    weights = weights_hash(run, 1)
    shutil.rmtree(run.training_state)
    run.training_state.mkdir()
    assert main(["--run-dir", str(run.path), "--ckpt", ckpt]) == 0
    assert weights_hash(run, 1) == weights


def test_another_number_of_processes_draws_anew(root: Path) -> None:
    """Generators that fit no longer are not those of step 0 again: a resume never repeats old sampling noise."""
    run = train_here(root, write_config(root, run__total_steps=2), "alone", "--until", "1")
    info = run.training_state / "step_1" / "training_info.json"
    info.write_text(info.read_text().replace('"world_size": 1', '"world_size": 3').replace('"torch": "', '"torch": "x'))
    write_manifest(info.parent, format=1, step=1)
    resume_here(run, total=2)
    (told,) = [row["differences"] for row in rows(run, "events.jsonl") if row["event"] == "training"][-1:]
    assert told[0] == "3 processes saved it, 1 go on"
    assert told[1].startswith("torch x")
    seed_everything(3, 0)
    fresh = torch.rand(1)
    seed_everything(3, 0, 1)
    assert torch.rand(1) != fresh


def test_a_reward_function_that_is_not_there_is_named(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cfg = write_config(root, algorithm__reward_weights={"acuracy": 2.0})
    assert main(["--cfg", str(cfg), "--root", str(root), "--run-name", "typo"]) == 1
    assert "'acuracy' is not a reward function of this run; did you mean accuracy?" in capfd.readouterr().err


def test_a_reference_that_is_gone_is_named(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = train_here(root, write_config(root, "first.yaml", run__total_steps=1), "first")
    cfg = write_config(root, "second.yaml", run__total_steps=3, algorithm__beta=0.2)
    run = train_here(root, cfg, "second", "--ckpt", str(first.training_state / "step_1"), "--until", "1")
    shutil.rmtree(first.path)
    prepare_resume(run, "latest", 3)
    assert main(["--run-dir", str(run.path)]) == 1
    assert "algorithm.beta needs the model that the run started from as its reference" in capfd.readouterr().err


@pytest.mark.parametrize("change", [{"algorithm__noise_scale": False}, {"run__save_every": 3}])
def test_a_probe_changes_no_number(straight: RunDir, change: dict[str, object]) -> None:
    adapter = load_config(straight.config_file.read_text()).model.adapter
    name = "_".join(change)
    cfg = write_config(straight.root, f"{name}.yaml", model__adapter=adapter, **change)
    other = train_here(straight.root, cfg, name)
    assert weights_hash(other, 6) == weights_hash(straight, 6)
    gns = [any(key.startswith("gns/") for key in row) for row in rows(other)]
    assert gns == [change != {"algorithm__noise_scale": False}] * 6


def test_a_step_says_how_it_is(straight: RunDir) -> None:
    for row in rows(straight):
        assert isinstance(row["health"], list)
        assert all(isinstance(line, str) for line in row["health"])
        dead = row["groups/all_right"] + row["groups/all_wrong"] + row["groups/all_equal"]
        assert dead == pytest.approx(row["frac_reward_zero_std"])
        if dead < 1:
            assert 0.99 < row["ess/sequence"] <= row["ess/token"] + 1e-9 <= 1 + 1e-9
            assert abs(row["mismatch/kl"]) < 1e-8  # sampler and trainer are one model, in float32
            assert row["mismatch/outside_0.9_1.1"] == 0


def test_changed_keys_are_named_and_the_learning_rate_counts(root: Path) -> None:
    run = train_here(root, write_config(root, run__total_steps=4), "edited", "--until", "3")
    text = run.config_file.read_text()
    run.config_file.write_text(text.replace("learning_rate: 0.0003", "learning_rate: 0.00001"))
    resume_here(run, total=4)
    assert rows(run)[-1]["learning_rate"] == pytest.approx(1e-5)
    (told,) = [row["differences"] for row in rows(run, "events.jsonl") if row["event"] == "training"][-1:]
    assert told == ["optimizer.learning_rate was 0.0003, is 1e-05"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("num_iterations: 2", "num_iterations: 1"),
        ("buffer_size: 4", "buffer_size: 8"),
        ("num_generations: 4", "num_generations: 2"),
        ("beta: 0.0", "beta: 0.5"),
    ],
)
def test_a_buffer_that_no_longer_fits_is_refused(
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


def test_weights_that_are_no_numbers_are_never_saved(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cfg = write_config(root, run__total_steps=4, optimizer__learning_rate=1e38, optimizer__warmup_steps=0)
    assert main(["--cfg", str(cfg), "--root", str(root), "--run-name", "blown_up"]) == 1
    assert "has left weights that are not finite (optimizer.learning_rate 1e+38)" in capfd.readouterr().err
    for checkpoint in run_of(root, "blown_up").checkpoints():
        weights = load_file(next((checkpoint.path / "model").glob("*.safetensors")))
        assert all(torch.isfinite(value).all() for value in weights.values())


def test_an_update_that_is_not_finite_is_left_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = write_config(root, run__total_steps=2)
    monkeypatch.setattr("grpo_train.train.gradients.GradientSum.finish", spoil_finish)
    run = train_here(root, cfg, "spoiled")
    before = load_file(next((root / "models" / "tiny").glob("*.safetensors")))
    after = load_file(next((run.training_state / "step_2" / "model").glob("*.safetensors")))
    assert all(torch.equal(before[key], after[key]) for key in after)
    assert torch.load(run.training_state / "step_2" / "optimizer.pt", weights_only=True)["state"] == {}
    assert torch.load(run.training_state / "step_2" / "scheduler.pt", weights_only=True)["last_epoch"] == 0
    assert all(row["health"][0].startswith("alarm: the gradient is not finite") for row in rows(run))
    assert [row["grad_norm"] for row in rows(run)] == ["NaN", "NaN"]


def spoil_finish(gradients: GradientSum, group: Group) -> list[float]:
    """One NaN in the gradient, as an overflow would leave it."""
    norms = original_finish(gradients, group)
    next(p for p in gradients.parameters if p.grad is not None).grad.fill_(math.nan)  # type: ignore[union-attr]
    return norms


original_finish = GradientSum.finish


# -------------------------------------------------------------------------------------------------- refused resumes


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_is_refused_before_anything_is_touched(straight: RunDir, tmp_path: Path, how: str) -> None:
    root = tmp_path / "root"
    shutil.copytree(straight.root, root, symlinks=True)
    run = run_of(root, "straight")
    message = damage(run.training_state / "step_5", how)
    before = sorted(os.listdir(run.training_state)), run.events_file.read_text()
    with pytest.raises(RunDirError) as caught:
        prepare_resume(run, "5", 6)
    assert message in str(caught.value)
    assert "other complete steps: 1, 2, 3, 4, 6; newest complete: step_6; resume with --from-step 6" in str(
        caught.value
    )
    assert (sorted(os.listdir(run.training_state)), run.events_file.read_text()) == before
    resume_here(run, "4")
    assert_same_run(run, straight, 6)


def test_a_run_that_is_done_says_how_to_go_on(straight: RunDir) -> None:
    with pytest.raises(RunDirError, match=r"has done all 6 steps at step_6: say how many more with --additional-steps"):
        prepare_resume(straight, "final", 6)


# ------------------------------------------------------------------------------------------------- odd situations


def test_a_stop_that_is_asked_saves_and_ends(root: Path) -> None:
    from grpo_train.run_dir import create_run

    cfg = write_config(root, run__total_steps=50, run__save_every=50)
    run = create_run(root, {}, "stopped")
    run.config_file.write_text(cfg.read_text())
    run.request_stop(by="test")
    assert main(["--run-dir", str(run.path)]) == 0
    assert (steps_logged(run), [c.step for c in run.checkpoints()]) == ([1], [1])
    assert not run.stop_requested()
    assert events(run)[-2:] == ["saved", "stopped"]


def test_an_error_is_left_for_the_supervisor_and_in_the_status(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("grpo_train.train.update.policy_loss", lambda *args, **keys: 1 / 0)
    arguments = ["--cfg", str(write_config(root)), "--root", str(root), "--run-name", "broken"]
    assert main(arguments) == 1
    run = run_of(root, "broken")
    report = json.loads((run.path / "control" / "error_rank0.json").read_text())
    assert report["message"] == "ZeroDivisionError: division by zero"
    assert "ZeroDivisionError" in report["traceback"]
    status = run.read_status() or {}
    assert (status["state"], status["error"]["summary"]) == ("crashed", report["message"])
    assert "Traceback" in capfd.readouterr().err


def test_a_lora_target_that_matches_nothing_is_named(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cfg = write_config(root, model__adapter="lora", model__lora_targets=["nothing_like_this"])
    assert main(["--cfg", str(cfg), "--root", str(root)]) == 1
    error = capfd.readouterr().err
    assert "error: model.lora_targets ['nothing_like_this']" in error
    assert "Traceback" not in error
