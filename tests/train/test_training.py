"""Training in this process: bit-exact resumes, logs, and invariance."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from grpo_train.config import load_config
from grpo_train.run_dir import RunDir, write_manifest
from grpo_train.tasks import data_order, load_task
from grpo_train.tasks.shared import user_data
from grpo_train.train import loop as training
from grpo_train.train.distributed import World
from grpo_train.train.gradients import GradientSum
from grpo_train.train.resume import prompts_drawn
from grpo_train.train.token_metrics import TokenSums
from grpo_train.train.worker import main
from tests.support.engine import (
    assert_same_run,
    events,
    file_hash,
    resume_here,
    rows,
    run_of,
    steps_logged,
    train_here,
    weights_hash,
    write_config,
)


@pytest.fixture(scope="module")
def halves(straight: RunDir) -> RunDir:
    """Three steps of the same run, then a resume."""
    run = train_here(straight.root, straight.root / "small.yaml", "halves", "--until", "3")
    assert (run.read_status() or {})["state"] == "stopped"
    resume_here(run)
    return run


def test_kernels_that_repeat_change_nothing_on_a_cpu(straight: RunDir) -> None:
    document = yaml.safe_load((straight.root / "small.yaml").read_text())
    document["run"]["deterministic"] = True
    cfg = straight.root / "repeats.yaml"
    cfg.write_text(yaml.safe_dump(document))
    try:
        run = train_here(straight.root, cfg, "repeats", "--until", "3")
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cuda.enable_mem_efficient_sdp(True)
    assert_same_run(straight, run, 3)


def test_resume_is_bit_exact(straight: RunDir, halves: RunDir) -> None:
    assert_same_run(straight, halves, 6)
    assert_same_run(straight, halves, 3)
    assert steps_logged(halves) == [1, 2, 3, 4, 5, 6]


def test_weights_and_rewards_change(straight: RunDir) -> None:
    assert len({weights_hash(straight, step) for step in range(1, 7)}) == 6
    assert len({row["reward"] for row in rows(straight)}) > 1
    assert any(row["frac_reward_zero_std"] < 1 for row in rows(straight))


def test_repeated_steps_are_bit_exact(straight: RunDir, tmp_path: Path) -> None:
    root = tmp_path / "moved root"  # a moved root gives the same numbers
    shutil.copytree(straight.root, root, symlinks=True)
    run = run_of(root, "straight")
    resume_here(run, "4")
    assert_same_run(straight, run, 6)
    assert steps_logged(run) == [1, 2, 3, 4, 5, 6]
    assert len((run.logs / "train_log.jsonl").read_text().splitlines()) == 8
    assert [p.name for p in sorted((run.training_state / "superseded").glob("*/*"))] == ["step_5", "step_6"]


def test_a_copy_with_followed_links_resumes(straight: RunDir, tmp_path: Path) -> None:
    """``aws s3 sync`` turns step_latest and step_final into directories. They are kept and do not interfere."""
    shutil.copytree(straight.root, tmp_path / "copy")
    run = run_of(tmp_path / "copy", "straight")
    resume_here(run, "4")
    assert_same_run(straight, run, 6)
    for name in ("step_latest", "step_final"):
        assert os.readlink(run.training_state / name) == "step_6"
    aside = {path.name for path in (run.training_state / "superseded").glob("*/*")}
    assert aside == {"step_5", "step_6", "step_latest", "step_final"}


def test_random_generators_are_restored(make_root: Callable[[], Path], tmp_path: Path) -> None:
    """Dropout draws from them. Negative control: with other generators the weights differ."""
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


def test_all_files_of_the_contract_exist(straight: RunDir) -> None:
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


def test_log_rows_have_the_keys_of_the_contract(straight: RunDir) -> None:
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
    learned = [row for row in rows(straight) if row["frac_reward_zero_std"] < 1]
    assert learned
    of_gradients = {"entropy", "ess/token"}  # which a step without spread does not compute
    for row in rows(straight):
        assert {key for key in keys if key not in row} <= (set() if row in learned else of_gradients)
        assert row["perf/decode_tokens_per_s"] > 0
        assert row["memory/peak_gib"] > 0
        assert "memory/reserved_gib" not in row, "only CUDA reserves memory"
    for row in learned:
        assert row["mismatch/kl"] < 1e-9
        assert row["ess/token"] == pytest.approx(1, abs=1e-6)
        assert row["perf/mfu"] > 0
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


def test_data_order(straight: RunDir) -> None:
    asked = [r["index"] for r in rows(straight, "rollouts.jsonl") if r["sample"] == 0]
    assert asked == [data_order(7076, 3, position) for position in range(24)]


def test_no_stored_file_contains_the_root(straight: RunDir) -> None:
    root = str(straight.root).encode()
    for path in straight.training_state.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".pt", ".safetensors", ".jinja", ".txt"):
            assert root not in path.read_bytes(), path
    info = json.loads((straight.training_state / "step_6" / "training_info.json").read_text())
    assert (info["base_model"]["name"], info["device"]) == ("models/tiny", "CPU")
    assert len(info["base_model"]["weights_sha256"]) == 64


# ------------------------------------------------------------------------------------------------- invariance


def test_micro_batch_size_changes_only_rounding(root: Path) -> None:
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


def test_gradient_checkpointing_changes_only_rounding(root: Path) -> None:
    runs = [
        train_here(root, write_config(root, train__gradient_checkpointing=on, run__total_steps=1), f"g{on}")
        for on in (False, True)
    ]
    plain, recomputed = (rows(run)[0] for run in runs)
    assert plain["grad_norm"] == pytest.approx(recomputed["grad_norm"], rel=1e-5)
    assert plain["reward"] == recomputed["reward"]


@pytest.mark.parametrize("change", [{"algorithm__noise_scale": False}, {"run__save_every": 3}])
def test_probes_do_not_change_training(straight: RunDir, change: dict[str, object]) -> None:
    adapter = load_config(straight.config_file.read_text()).model.adapter
    name = "_".join(change)
    cfg = write_config(straight.root, f"{name}.yaml", model__adapter=adapter, **change)
    other = train_here(straight.root, cfg, name)
    assert weights_hash(other, 6) == weights_hash(straight, 6)
    gns = [any(key.startswith("gns/") for key in row) for row in rows(other)]
    assert gns == [change != {"algorithm__noise_scale": False}] * 6


def test_log_rows_have_health_records(straight: RunDir) -> None:
    assert any(row["health"] for row in rows(straight))
    for row in rows(straight):
        assert all(record["code"] and record["level"] and record["message"] for record in row["health"])
        dead = row["groups/all_correct"] + row["groups/all_wrong"] + row["groups/all_equal"]
        assert dead == pytest.approx(row["frac_reward_zero_std"])
        if dead < 1:
            assert 0.99 < row["ess/sequence"] <= row["ess/token"] + 1e-9 <= 1 + 1e-9
            assert abs(row["mismatch/kl"]) < 1e-8  # sampler and trainer are one model, in float32
            assert row["mismatch/outside_0.9_1.1"] == 0


def test_changed_keys_are_reported_and_applied(root: Path) -> None:
    run = train_here(root, write_config(root, run__total_steps=4), "edited", "--until", "3")
    text = run.config_file.read_text()
    text = text.replace("learning_rate: 0.0003", "learning_rate: 0.00001").replace("  seed: 3\n", "  seed: 4\n")
    text = text.replace("microbatch_size: 2", "microbatch_size: 4")
    run.config_file.write_text(text)
    resume_here(run, total=4)
    assert rows(run)[-1]["learning_rate"] == pytest.approx(1e-5)
    (differences,) = [row["differences"] for row in rows(run, "events.jsonl") if row["event"] == "training"][-1:]
    assert differences == [
        "run.seed: was 3, is 4",
        "optimizer.learning_rate: was 3e-4, is 1e-5",
        "train.microbatch_size: was 2, is 4",
    ]


@pytest.mark.parametrize(("size", "is_old", "filtered"), [(2, False, False), (2, True, False), (8, False, True)])
def test_another_buffer_size_continues_in_the_data(root: Path, size: int, is_old: bool, filtered: bool) -> None:
    """Also from a checkpoint of an earlier version, which counted buffers."""
    cfg = write_config(root, run__total_steps=3, rollout__filter_groups=filtered, train__microbatch_size=2)
    run = train_here(root, cfg, "sizes", "--until", "2")
    before = rows(run)[-1]["epoch"]
    info = run.training_state / "step_2" / "training_info.json"
    saved = json.loads(info.read_text())
    assert set(saved["data"][""]) == {"problems", "sha256"}
    if is_old:
        del saved["num_prompts"], saved["data"]
        info.write_text(json.dumps(saved))
        write_manifest(info.parent, format=1, step=2)
    run.config_file.write_text(run.config_file.read_text().replace("buffer_size: 4", f"buffer_size: {size}"))
    resume_here(run, total=3)
    drawn = [row for row in rows(run, "rollouts.jsonl") if row.get("discarded") != "surplus"]  # drawn again
    seen = list(dict.fromkeys((row["step"], row["index"]) for row in drawn))
    task = load_task(load_config(run.config_file.read_text()).task)
    order = [data_order(task.size("train"), 3, position) for position in range(len(seen))]
    assert sorted(index for _, index in seen) == sorted(order)
    assert rows(run)[-1]["epoch"] > before
    assert json.loads((run.training_state / "step_3" / "training_info.json").read_text())["num_prompts"] == len(seen)
    (differences,) = [row["differences"] for row in rows(run, "events.jsonl") if row["event"] == "training"][-1:]
    assert differences == [f"rollout.buffer_size: was 4, is {size}"]


def test_changed_data_is_said_and_recorded(root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "test-and-train.jsonl"

    def write(count: int) -> None:
        file.write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": n + 1}) + "\n" for n in range(count)))

    def said() -> Any:
        return [row["differences"] for row in rows(run, "events.jsonl") if row["event"] == "training"][-1]

    write(30)
    task = {"task__name": "data", "task__path": str(file), "task__template": "question"}
    run = train_here(root, write_config(root, run__total_steps=1, **task), "grows")
    count = json.loads((run.training_state / "step_1" / "training_info.json").read_text())["data"][""]["problems"]
    for step, (rows_now, differs) in enumerate([(30, False), (40, True), (40, False)], 2):
        write(rows_now)
        user_data._read.cache_clear()
        text = run.config_file.read_text()
        run.config_file.write_text(text.replace(f"total_steps: {step - 1}", f"total_steps: {step}"))
        resume_here(run, total=step)
        assert len(said()) == differs, said()
        if differs:
            assert said()[0].startswith(f"training problems: saved with {count}, resumed with ")
            assert "this resume is not bit-exact: training problems: saved with" in capfd.readouterr().out


def test_processes_must_read_the_same_data(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gather = World.gather

    def other_data(world: World, value: Any) -> list[Any]:
        is_data = isinstance(value, dict) and "sha256" in value.get("", {})
        return [value, {"": {"problems": 1, "sha256": "x"}}] if is_data else gather(world, value)

    monkeypatch.setattr(World, "gather", other_data)
    assert main(["--cfg", str(write_config(root)), "--root", str(root), "--run-name", "differs"]) != 0
    captured = capfd.readouterr()
    assert "the processes read different training problems; copy the same files" in captured.out + captured.err


@pytest.mark.parametrize(
    ("info", "step", "has_buffer", "prompts"),
    [
        ({}, 0, False, 0),
        ({"extra_prompts": 3, "config": {"rollout": {"buffer_size": 4}}}, 4, False, 11),
        ({"extra_prompts": 3, "config": {"rollout": {"buffer_size": 4}}}, 5, True, 15),
        ({"extra_prompts": 3, "config": {"rollout": {"buffer_size": 4}}}, 5, False, 11),
        ({}, 4, False, 64),
        ({"num_prompts": 7}, 4, True, 7),
    ],
)
def test_positions_of_earlier_versions(info: dict[str, Any], step: int, has_buffer: bool, prompts: int) -> None:
    config = load_config("algorithm: {num_iterations: 2}")
    assert prompts_drawn(info, step, config, has_buffer=has_buffer) == prompts


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_update_is_skipped(root: Path, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """Weights, moments and schedule stay unchanged, and training continues from them."""
    original, updates = training.accumulate_gradients, []

    def poisoned(forward: Any, buffer: Any, update: int, gradients: Any, config: Any, **options: Any) -> TokenSums:
        sums = original(forward, buffer, update, gradients, config, **options)
        updates.append(update)
        if len(updates) == 2:
            gradients.backward(gradients.parameters[0].sum() * value)
        return sums

    monkeypatch.setattr(training, "accumulate_gradients", poisoned)
    run = train_here(root, write_config(root, run__total_steps=3, optimizer__warmup_steps=3), "poisoned")
    assert weights_hash(run, 2) == weights_hash(run, 1)
    for name in ("optimizer.pt", "scheduler.pt"):
        one, two, three = (file_hash(run.training_state / f"step_{step}" / name) for step in (1, 2, 3))
        assert one == two != three, name
    assert weights_hash(run, 3) != weights_hash(run, 2)
    final = load_file(run.training_state / "step_3" / "model" / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in final.values())
    lines = rows(run)
    assert [line["learning_rate"] for line in lines] == pytest.approx([0.75e-4, 1.5e-4, 1.5e-4])
    assert not math.isfinite(float(lines[1]["grad_norm"]))
    assert lines[1]["health"][0]["code"] == "gradient_not_finite"
    assert [line["gns/noise"] for line in lines[:2]] == [lines[0]["gns/noise"]] * 2, "a skipped update is not averaged"
    assert math.isfinite(lines[2]["grad_norm"])


def test_non_finite_first_updates_are_skipped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = write_config(root, run__total_steps=2)
    monkeypatch.setattr("grpo_train.train.gradients.GradientSum.all_reduce", spoiled_all_reduce)
    run = train_here(root, cfg, "spoiled")
    before = load_file(next((root / "models" / "tiny").glob("*.safetensors")))
    after = load_file(next((run.training_state / "step_2" / "model").glob("*.safetensors")))
    assert all(torch.equal(before[key], after[key]) for key in after)
    assert torch.load(run.training_state / "step_2" / "optimizer.pt", weights_only=True)["state"] == {}
    assert torch.load(run.training_state / "step_2" / "scheduler.pt", weights_only=True)["last_epoch"] == 0
    assert all(row["health"][0]["code"] == "gradient_not_finite" for row in rows(run))
    assert [row["grad_norm"] for row in rows(run)] == ["NaN", "NaN"]


def spoiled_all_reduce(gradients: GradientSum, world: World) -> list[float]:
    """One NaN in the gradient, as after an overflow."""
    norms = original_all_reduce(gradients, world)
    next(p for p in gradients.parameters if p.grad is not None).grad.fill_(math.nan)  # type: ignore[union-attr]
    return norms


original_all_reduce = GradientSum.all_reduce
