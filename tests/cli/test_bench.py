"""``grpo-train bench``: what it measures, beside which floors. Figures of speed are not tested."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_train.bench import measure
from grpo_train.bench.floors import Figure, Rates, decode_floor, prefill_floor
from grpo_train.bench.subject import make_subject
from grpo_train.cli import bench as command
from grpo_train.config.schema import Config
from grpo_train.platforms.facts import Platform
from grpo_train.platforms.memory import QWEN2_5
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.rollout import Completion
from tests.support.engine import command_here, grpo_train

H200 = Rates(copy=4.3e12, products=7.8e14, disk=1e9)
SHORT = ("rollout.buffer_size=4", "rollout.num_generations=4", "rollout.max_completion_length=8")


def test_measurements(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = [option for change in SHORT for option in ("--set", change)]
    done = grpo_train(
        "bench",
        "--json",
        "--repeats",
        "1",
        "--set",
        "model.device=cpu",
        *changes,
        root=root,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(figure["name"], figure["rows"]) for figure in found["figures"]] == [
        ("sync", 0), *((name, rows) for rows in (1, 8, 16) for name in ("prefill", "decode", "decode, second half")),
        ("train", 0), ("save", 0),
    ]  # fmt: skip
    assert all(figure["seconds"] > 0 and figure["floor_seconds"] > 0 for figure in found["figures"])
    # Four prompts of 64 tokens, read once, and 16 completions of 8 tokens, whose last predicts nothing.
    train = found["figures"][-2]
    assert train["amount"] == 4 * 64 + 16 * 7
    assert found["config"] == {"model.backbone": "tiny", "model.dtype": "float32"}
    assert 0 < found["step"]["save_wait"] < found["step"]["save"]
    assert not list(root.glob(".bench-*"))
    assert not (root / "training_runs").exists(), "the run that is saved is not in the root"

    command._show(found)
    text = capsys.readouterr().out
    assert "train (share = MFU)" in text
    assert text.count("decode, second half") == 3
    assert "backbone: tiny" in text
    assert "log-probabilities: rows packed" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "qwen"], "--model qwen: choose from auto, tiny, qwen2_5_05"),
        (["--set", "rollout.length=1"], "rollout.length"),
    ],
)
def test_bad_options_are_named(root: Path, options: list[str], message: str) -> None:
    done = command_here("bench", *options, root=root)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_disk_without_room_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement of the disk writes, and nothing that it fills may be lost."""
    free = SimpleNamespace(free=2**29 - 1)
    monkeypatch.setattr(command.shutil, "disk_usage", lambda path: free)
    done = command_here("bench", "--set", "model.device=cpu", root=root)
    assert done.returncode == 1
    assert "0.5 GiB free, and the checkpoint needs 0.5 GiB; choose another disk with --root" in done.stderr
    free.free += 1
    command._check_room(Config.model_validate({"model": {"backbone": "tiny"}}), root)


def test_models_of_a_subject_keep_their_attention() -> None:
    """A model made later, as by a comparison, changes nothing in the policy."""
    subject = make_subject(Config.model_validate({"model": {"backbone": "tiny", "adapter": "none", "device": "cpu"}}))
    policy = subject.policy(torch.device("cpu"))
    forward = LogprobForward(policy, temperature=1.0)
    completions = [Completion(tuple(range(20)), tuple(range(n)), (), True) for n in (5, 9)]
    before = forward(completions)
    subject.model(torch.device("cpu"))
    assert torch.equal(forward(completions).logps, before.logps)


@pytest.mark.parametrize(
    ("problem", "overrides", "model"),
    [("", [], "tiny"), ("no nvidia-smi", [], "auto"), ("no nvidia-smi", ["model.device=cpu"], "tiny")],
)
def test_a_gpu_that_cannot_be_read_is_a_gpu(problem: str, overrides: list[str], model: str) -> None:
    machine = Platform("box", "plain", gpu_problem=problem)
    assert command.bench_config("auto", overrides, machine).model.backbone == model


def test_floor_of_decoding() -> None:
    """256 rows of Qwen2.5-1.5B in bfloat16, 320 tokens each, on an H200: bound by products, not by bandwidth."""
    shape = QWEN2_5["qwen2_5_15"]
    floor, bandwidth = decode_floor(shape, H200, 256, 320, 2)
    weights, cache, products = 3.08e9 / 4.3e12, 256 * 320 * 28_672 / 4.3e12, 2 * 1.54e9 * 256 / 7.8e14
    assert bandwidth == pytest.approx(weights + cache, rel=0.01)
    assert floor == pytest.approx(products + cache, rel=0.01)
    few, by_bandwidth = decode_floor(shape, H200, 8, 320, 2)
    assert few == by_bandwidth


def test_second_half_is_without_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of 64 steps and the captures take 5 s, each other step 0.1 s."""
    monkeypatch.setattr(measure, "timed", lambda _, work: (None, work.args[1] * 0.1 + 5.0 * (work.args[1] > 1)))
    trainer: Any = SimpleNamespace(
        policy=SimpleNamespace(device=torch.device("cpu")), config=Config(), generate=lambda prompts, count: None
    )
    _, decode, half = measure.rollout_figures(trainer, [[1] * 64] * 8, QWEN2_5["qwen2_5_05"], H200, 64)
    assert (decode.amount, half.amount) == (63 * 8, 32 * 8)
    assert (decode.seconds, half.seconds) == (pytest.approx(5.0 + 6.3), pytest.approx(3.2))
    assert half.floor_seconds / 32 > decode.floor_seconds / 63, "it attends to longer rows"


def test_floor_of_reading_prompts() -> None:
    shape = QWEN2_5["qwen2_5_15"]
    assert prefill_floor(shape, H200, 1, 16, 2) == pytest.approx(3.08e9 / 4.3e12, rel=0.01)
    assert prefill_floor(shape, H200, 32, 8_192, 2) == pytest.approx(2 * 1.31e9 * 8_192 / 7.8e14, rel=0.01)


def test_share_of_the_floor() -> None:
    assert Figure("decode", 1, 100, "tokens", seconds=2.0, floor_seconds=0.5).share == 0.25
