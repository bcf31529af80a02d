"""Time and cost of a run before it starts: from earlier runs, from bench figures, or why nothing is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_train.bench.subject import shape_of
from grpo_train.config import dump_config, load_config
from grpo_train.config.schema import Config
from grpo_train.history.cost import Forecast
from grpo_train.platforms.memory import QWEN2_5
from grpo_train.platforms.speeds import (
    FILE,
    MEASURED,
    AssumedLengths,
    Speed,
    Work,
    is_kind,
    read_speeds,
    shape_parameters,
)
from grpo_train.run_dir.files import append_jsonl
from grpo_train.supervisor.estimate import TINY_PARAMETERS, Estimates
from grpo_train.supervisor.stages import all_stages
from tests.support.backups import make_run, set_state
from tests.support.engine import command_here

CONFIG = """\
run: {total_steps: 100, save_every: 10}
model: {backbone: qwen2_5_15}
rollout: {buffer_size: 32, num_generations: 8, max_prompt_length: 128, max_completion_length: 512}
task: {name: gsm8k}
"""
BENCH: dict[str, Any] = {
    "time": "2026-11-29T12:00:00.000Z", "device": "NVIDIA H100 80GB HBM3", "threads": 8, "model": "qwen2_5_15",
    "adapter": "lora", "prompt_length": 128,
    "figures": [
        {"name": "prefill", "rows": 64, "amount": 8192, "seconds": 0.1},
        {"name": "decode", "rows": 64, "amount": 64 * 100, "seconds": 0.2},
        {"name": "decode", "rows": 256, "amount": 256 * 100, "seconds": 0.4},
    ],
    "step": {"rollout": 2.048, "gradient": 4.0, "optimizer": 0.0, "save": 5.0, "save_wait": 0.5},
    "work": {"parameters": 1543569408.0, "prompts": 32, "completions": 256, "length": 512, "startup": 30.0},
}  # fmt: skip


def config_of(*changes: str) -> Config:
    return load_config(CONFIG, list(changes))


def step_of(*changes: str, lengths: AssumedLengths = AssumedLengths(128, 512, 512)) -> float:
    return Work(Speed.of(BENCH), config_of(*changes), BENCH["work"]["parameters"]).step(lengths)


def test_the_measured_step_is_found_again() -> None:
    assert step_of() == pytest.approx(6.048)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        (["rollout.buffer_size=16"], 512 * 0.0026666 + 2.0),  # 128 rows
        (["rollout.buffer_size=64"], 512 * 0.0066666 + 8.0),  # beyond the last point
        (["rollout.generation_batch_size=64"], 4 * 512 * 0.002 + 4.0),
        (["run.nproc=2"], 512 * 0.0026666 + 2.0),
        (["algorithm.num_iterations=2"], (2.048 + 4 / 3) / 2 + 4.0),  # scored once, by the old policy
        (["algorithm.updates_per_buffer=2"], (2.048 + 4 / 3) / 2 + 2.0),
        (["algorithm.beta=0.1"], 2.048 + 4 / 3 + 4.0),
        (["train.gradient_checkpointing=true"], 2.048 + 4 * 4 / 3),
        (["model.adapter=none"], 2.048 + 6.0),
    ],
)
def test_a_step_follows_the_config(changes: list[str], seconds: float) -> None:
    assert step_of(*changes) == pytest.approx(seconds, rel=1e-3)


def test_half_the_length_is_half_the_time() -> None:
    assert step_of(lengths=AssumedLengths(64, 256, 256)) == pytest.approx(3.024)


@pytest.mark.parametrize(
    ("device", "asked", "same"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", True),
        ("NVIDIA H100 80GB HBM3", "gpu_8x_h100_sxm5", True),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H200", False),
        ("NVIDIA GH200 480GB", "H200", False),
        ("NVIDIA RTX A6000", "gpu_1x_a6000", True),
        ("NVIDIA L40S", "L40", False),
        ("CPU", "H100", False),
        ("CPU", "CPU", True),
    ],
)
def test_kinds_of_machines(device: str, asked: str, same: bool) -> None:
    assert is_kind(device, asked) is same


def test_what_ships_is_what_the_docs_measured() -> None:
    (shipped,) = MEASURED
    text = " ".join((Path(__file__).parents[2] / "docs" / "performance.md").read_text().split())
    assert f"On one H100 (80 GB; {text.split('On one H100 (80 GB; ')[1][:20]}" in text
    assert shipped.date in text
    assert "45 % (2.8 ms, 23,200 tokens/s)" in text
    assert "45 % (3.7 ms, 69,400 tokens/s)" in text
    step = "A step of 256 completions of 512 tokens generated for 2.5 s, and took 4.6 s for the gradient and 0.01 s"
    assert step in text
    assert shipped.parameters == pytest.approx(shape_parameters(QWEN2_5["qwen2_5_15"]), rel=0.01)
    assert shape_parameters(shape_of("tiny")) == TINY_PARAMETERS


def test_figures_of_the_root_come_first(tmp_path: Path) -> None:
    """The newest first; rows of another version are left out."""
    for row in (
        BENCH,
        {**BENCH, "time": "2026-11-30T00:00:00Z"},
        {"time": "2027-01-01"},
        {**BENCH, "step": None},
        {**BENCH, "figures": [{"name": "decode", "rows": 1e400, "amount": 0, "seconds": -1}]},
    ):
        append_jsonl(tmp_path / FILE, row)
    assert [each.date for each in read_speeds(tmp_path)] == ["2026-11-30", "2026-11-29", "2026-11-26"]
    found = Estimates(tmp_path, config_of(), "H100").forecast(all_stages(config_of()))
    assert found.low == pytest.approx(30 + 10 * 0.5 + 100 * 3.024)
    assert found.high == pytest.approx(30 + 10 * 0.5 + 100 * 6.048)
    assert found.lines(3.6) == [
        "about 5 m 37 s to 10 m, $0.34 to $0.64 at $3.60/h · within a factor of 1.5 at these lengths",
        "from bench of NVIDIA H100 80GB HBM3, qwen2_5_15 with LoRA (2026-11-30) · completions of 256 to 512 tokens "
        "(half the maximum to the maximum)",
    ]


def test_evaluations_count(tmp_path: Path) -> None:
    append_jsonl(tmp_path / FILE, BENCH)
    config = config_of("run.eval_every=100", "eval.batch_size=64", "eval.num_problems=128")
    train, evaluation = all_stages(config)
    found = Estimates(tmp_path, config, "H100")
    assert found.seconds(evaluation, 100) == pytest.approx((30 + 2 * 256 * 0.002, 30 + 2 * 512 * 0.002))
    assert found.seconds(train, 50) == pytest.approx((30 + 2.5 + 50 * 3.024, 30 + 2.5 + 50 * 6.048))


def test_an_earlier_run_of_the_task_tells_the_lengths(tmp_path: Path) -> None:
    append_jsonl(tmp_path / FILE, BENCH)
    earlier = make_run(tmp_path, "earlier", 0)
    earlier.config_file.write_text(dump_config(config_of("model.backbone=qwen2_5_05")))
    for step in range(1, 4):
        row = {"completions/mean_length": 128.0, "completions/max_length": 256.0, "num_tokens": step * 256 * 192}
        append_jsonl(earlier.logs / "train_log.jsonl", {"step": step, "frac_reward_zero_std": 0.5, **row})
    found = Estimates(tmp_path, config_of(), "H100")
    assert (
        "completions of 128 to 512 tokens (as in earlier to the maximum)"
        in found.forecast(all_stages(config_of())).assumed
    )
    assert found._lengths(False) == AssumedLengths(64, 128, 256, 0.5)


def test_earlier_runs_count_on_the_same_kind_of_machine(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one", 0)
    run.config_file.write_text(dump_config(config_of()))
    for step in range(1, 4):
        append_jsonl(run.logs / "train_log.jsonl", {"step": step, "reward": 0.5, "time/step": 36.0})
    append_jsonl(
        run.events_file, {"event": "stage_done", "stage": "train to step 3", "kind": "train", "seconds": 120.0}
    )
    set_state(run, "finished", device="NVIDIA H100 80GB HBM3")
    stages = all_stages(config_of())
    on_h100 = Estimates(tmp_path, config_of(), "gpu_1x_h100_pcie").forecast(stages)
    assert (on_h100.low, on_h100.high, on_h100.basis) == (3612.0, 3612.0, "one"), "100 steps and 12 s to start"
    assert Estimates(tmp_path, config_of(), "").forecast(stages).basis == "one", "the kind is not known"
    assert Estimates(tmp_path, config_of(), "A100").forecast(stages).low is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([], "run  grpo-train bench --model qwen2_5_15  there"),
        (["task.name=tictactoe"], "the turns of a game are not known before"),
        (["rollout.backend=vllm"], "does not measure vLLM"),
    ],
)
def test_no_estimate_says_why(tmp_path: Path, changes: list[str], reason: str) -> None:
    config = config_of(*changes)
    (line,) = Estimates(tmp_path, config, "A100").forecast(all_stages(config)).lines(2.0)
    assert line.startswith("no estimate: no earlier run like this one")
    assert reason in line


def test_another_model_is_scaled_and_less_sure(tmp_path: Path) -> None:
    append_jsonl(tmp_path / FILE, BENCH)
    config = config_of("model.backbone=qwen2_5_05")
    found = Estimates(tmp_path, config, "H100").forecast(all_stages(config))
    assert found.high == pytest.approx(30 + 5 + 604.8 * 0.32, rel=0.01), "a third of the weights"
    assert found.factor == 2.0
    assert "scaled by the model's size" in found.assumed


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    config = config_of("rollout.filter_groups=true", "run.eval_every=100", "task.path=/nowhere")
    found = Estimates(tmp_path, config, "H100").forecast(all_stages(config))
    assert found.left_out == "1 evaluation, startup and saves, further rounds of rollout.filter_groups"
    assert "(2026-11-26, ships with grpo-train, one measurement)" in found.basis
    assert Forecast.from_json(found.to_json()) == found


def test_plan_prints_the_estimate(tmp_path: Path) -> None:
    append_jsonl(tmp_path / FILE, BENCH)
    cfg = tmp_path / "my.yaml"
    cfg.write_text(CONFIG.replace("gsm8k", "addition"))
    asked = ["--cfg", cfg, "--machine", "H100", "--price", "3.6"]
    done = command_here("plan", *asked, "--json", root=tmp_path)
    found = json.loads(done.stdout)
    assert [found[key] for key in ("dollars", "dollars_high")] == [
        round(found[key] / 1000, 2) for key in ("seconds", "seconds_high")
    ]
    assert found["estimate"]["low"] == found["seconds"]
    text = command_here("plan", *asked, root=tmp_path).stdout
    assert all(line in text.splitlines() for line in found["estimate"]["lines"])
