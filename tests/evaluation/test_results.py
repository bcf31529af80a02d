"""Results of an evaluation: summaries, comparisons, logs, and the automatic batch size."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grpo_train.evaluation.report import step as step_files
from grpo_train.evaluation.report.compare import compare_runs, compare_steps
from grpo_train.evaluation.request import EvalError
from grpo_train.evaluation.workers import single_turn
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.display import fraction, signed
from grpo_train.run_dir.files import read_json, read_jsonl
from grpo_train.tasks.addition import AdditionTask
from tests.support.evaluating import (
    SAMPLED,
    evaluate_here,
    evaluate_until,
    step_of,
)


def test_summary_is_consistent_with_the_samples(run: RunDir) -> None:
    assert evaluate_here(run.root, "trained", steps="1,2", **{**SAMPLED, "num_samples": 4}) == 0
    one, two = (read_json(step_of(run, step) / "summary.json") or {} for step in (1, 2))
    rows = [row for _, row in read_jsonl(step_of(run) / "completions.jsonl")]
    assert [(row["index"], row["sample"]) for row in rows] == sorted((row["index"], row["sample"]) for row in rows)
    assert len({row["seed"] for row in rows}) == 48
    assert sum(two["solve_rates"]) == 12
    assert sum(correct * count for correct, count in enumerate(two["solve_rates"])) == two["metrics"]["correct"]
    assert sum(two["reasons"].values()) == two["metrics"]["n"] == 48
    assert sum(two["length"]["histogram"]["counts"]) == 48
    assert set(two["pass_at_k"]) == set(two["maj_at_k"]) == {"1", "2", "4"}
    assert two["pass_at_k"]["1"]["value"] == pytest.approx(two["metrics"]["accuracy"])
    assert two["metrics"]["pass@4"] == two["pass_at_k"]["4"]["value"]
    assert two["status"] == "complete"
    assert "hacking/multiple_answers" in two["indicators"]
    assert (one["previous"], one["base"]) == (None, None)
    previous = two["previous"]
    assert (previous["name"], previous["n"], two["base"]) == ("step_1", 12, None)
    gap = two["metrics"]["accuracy"] - one["metrics"]["accuracy"]
    assert previous["difference"]["value"] == pytest.approx(gap)
    assert len(previous["gained"]) + len(previous["lost"]) <= 12


def test_previous_is_the_nearest_earlier_step(run: RunDir) -> None:
    """Step 0, the model the run started from, is ``base``."""
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert evaluate_here(run.root, "trained", steps="0", **SAMPLED) == 0
    two = read_json(step_of(run) / "summary.json") or {}
    assert two["previous"]["name"] == two["base"]["name"] == "step_0"
    assert evaluate_here(run.root, "trained", steps="1", **SAMPLED) == 0
    two = read_json(step_of(run) / "summary.json") or {}
    assert (two["previous"]["name"], two["base"]["name"]) == ("step_1", "step_0")
    assert evaluate_here(run.root, "trained", steps="1", **{**SAMPLED, "temperature": 0.5}) == 0
    two = read_json(step_of(run) / "summary.json") or {}
    assert two["previous"]["name"] == "step_0", "other settings are not comparable"


def test_compare_steps(run: RunDir) -> None:
    with pytest.raises(EvalError, match="step_1 of trained has not been evaluated"):
        compare_steps(run.root, "trained", ["1", "2"])
    assert evaluate_here(run.root, "trained", steps="1,2", **SAMPLED) == 0
    previous = (read_json(step_of(run) / "summary.json") or {})["previous"]
    (found,), errors = compare_steps(run.root, "trained", ["1", "2"])
    assert (found.dataset, found.name, found.reference, errors) == ("addition", "step_2", "step_1", [])
    assert found.difference == previous["difference"]["value"]
    assert found.text().startswith(f"{signed(previous['difference']['value'], fraction)} [")
    assert f"against step_1: {len(previous['gained'])} gained, {len(previous['lost'])} lost of 12" in found.text()
    assert compare_steps(run.root, "trained", ["1", "final"]) == ([found], []), "the last step, by its name"
    with pytest.raises(EvalError, match="step_7 has not been evaluated on addition"):
        compare_steps(run.root, "trained", ["1", "7"])
    with pytest.raises(EvalError, match=r"has not been evaluated on adition .*; evaluated datasets: addition"):
        compare_steps(run.root, "trained", ["1", "2"], ["adition"])
    with pytest.raises(EvalError, match="needs at least two"):
        compare_steps(run.root, "trained", ["1", "01"])
    found_steps, (error,) = compare_steps(run.root, "trained", ["1", "7", "2"])
    assert ([each.name for each in found_steps], error.code) == (["step_2"], "bad_evaluation")
    assert evaluate_here(run.root, "trained", steps="1", **{**SAMPLED, "temperature": 0.5}) == 0
    with pytest.raises(EvalError, match="under different settings"):
        compare_steps(run.root, "trained", ["1", "2"])


def test_compare_runs(run: RunDir) -> None:
    """Two runs, on the same problems and in pairs, as the steps of one run are compared."""
    other = run.path.with_name("other")
    shutil.copytree(run.path, other, symlinks=True)
    with pytest.raises(EvalError, match="no step is evaluated for trained and another"):
        compare_runs(run.root, "trained", ["other"])
    for name, steps in (("trained", "1,2"), ("other", "2")):
        assert evaluate_here(run.root, name, steps=steps, **SAMPLED) == 0
    (same,), errors = compare_runs(run.root, "trained", ["other"])
    assert (same.run, same.dataset, same.name, same.step, same.n, errors) == ("other", "addition", "step_2", 2, 12, [])
    assert (same.difference, same.gained, same.lost, same.p_value) == (0.0, 0, 0, 1.0)
    theirs = run.root / "eval_runs" / "other_addition" / "step_2_addition"
    completions = [row for _, row in read_jsonl(theirs / "completions.jsonl")]
    for row in completions:
        row["correct"] = not row["correct"]
    (theirs / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in completions))
    summary = read_json(theirs / "summary.json") or {}
    summary["key"]["samples"]["seed"] += 1  # it chooses samples, not problems
    (theirs / "summary.json").write_text(json.dumps(summary))
    (turned,), _ = compare_runs(run.root, "trained", ["other"], ["2"], ["addition"])
    ours = [row for _, row in read_jsonl(step_of(run) / "completions.jsonl")]
    share = sum(row["correct"] for row in ours) / len(ours)
    assert turned.difference == pytest.approx((1 - share) - share)
    assert turned.low <= turned.difference <= turned.high
    summary["key"]["samples"]["problems"] = "others"
    (theirs / "summary.json").write_text(json.dumps(summary))
    found, (error,) = compare_runs(run.root, "trained", ["other"])
    assert not found
    assert "step_2 of other and step_2 of trained were evaluated on addition under different settings (data or " in str(
        error
    )


def test_eval_log_has_one_line_per_step(run: RunDir) -> None:
    for _ in range(2):
        assert evaluate_here(run.root, "trained", steps="1,2", **SAMPLED) == 0
    lines = [row for _, row in read_jsonl(run.logs / "eval_log.jsonl")]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        metrics = (read_json(step_of(run, line["step"]) / "summary.json") or {})["metrics"]
        assert line["addition_eval/accuracy"] == metrics["accuracy"]
        assert line["addition_eval/pass@2"] == metrics["pass@2"]
        assert line["time"].endswith("Z")
    assert not list((run.path / "tensorboard").glob("*/*")), "tracking.tensorboard is off"


def test_tensorboard_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from grpo_train.evaluation.results.log import scalars_of, write_scalars

    metrics = {"accuracy": 0.25, "correct": 3, "n": 12, "num_samples": 1, "pass@2": 0.5}
    mbpp: Any = AdditionTask(name="mbpp", label="mbpp")
    scalars = scalars_of(mbpp, "mbpp", metrics)
    assert scalars == {
        "mbpp_eval/accuracy": 0.25,
        "mbpp_eval/pass@2": 0.5,
        "mbpp_eval/pass_rate": 0.25,
        "mbpp_eval/problems_passed": 3,
    }
    write_scalars(tmp_path, 10, scalars, "2025-08-19T12:35:07.412Z")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (event,) = events.Scalars("mbpp_eval/pass_rate")
    assert (event.step, event.value) == (10, 0.25)


# ------------------------------------------------------------------------------------------------------- batch size


def test_out_of_memory_halves_the_batch(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    original = NativeBackend._flow
    sizes: list[int] = []

    def flow(self: Any, prompts: Any, seeds: Any, numbers: Any, size: int, *settings: Any) -> Any:
        sizes.append(size)
        if size > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, prompts, seeds, numbers, size, *settings)

    monkeypatch.setattr(NativeBackend, "_flow", flow)
    assert evaluate_here(run.root, "trained", steps="2", **{**SAMPLED, "batch_size": 5}) == 0
    assert sizes == [5, 3, 2, 2]


def test_automatic_batch_size_fills_free_memory(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from grpo_train.evaluation.workers import memory

    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    config, cpu = model.config, torch.device("cpu")
    each = memory.bytes_per_completion(model, 10, 90)
    cache = (
        2 * config.num_hidden_layers * config.num_key_value_heads * (config.hidden_size // config.num_attention_heads)
    )
    assert each > cache * 4 * 100
    monkeypatch.setattr(memory, "free_bytes", lambda device: int(each * 50 / memory.MEMORY_SHARE["cpu"]))
    assert memory.automatic_batch_size(model, cpu, 10, 90, 1000) in (49, 50)
    assert memory.automatic_batch_size(model, cpu, 10, 90, 7) == 7
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1)
    assert memory.automatic_batch_size(model, cpu, 10, 90, 7) == 1
    monkeypatch.undo()
    assert memory.free_bytes(cpu) > 1 << 20


def test_automatic_batch_size_survives_a_resume(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_turn, "automatic_batch_size", lambda *_: 7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SAMPLED, "batch_size", "auto")
        assert evaluate_until(run, 1, torn=False)
    monkeypatch.setattr(single_turn, "automatic_batch_size", lambda *_: 3)
    assert evaluate_here(run.root, "trained", steps="2", **{**SAMPLED, "batch_size": "auto"}) == 0
    assert (read_json(step_of(run) / "summary.json") or {})["metrics"]["batch_size"] == 7


def test_results_are_replaced_as_a_whole(run: RunDir) -> None:
    folder = step_of(run)
    step_files._replace(folder, {"a": "1"})
    step_files._replace(folder, {"b": "2"})
    assert [path.name for path in folder.iterdir()] == ["b"]
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(f".{folder.name}")] == []
