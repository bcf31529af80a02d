"""What failed in a trial at startup is recorded in the run, and a resume takes the same path."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_train.config.schema import Config
from grpo_train.policy import head, loading, packing
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.rollout.backends import make_backend
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.native.trial import CopyTrials
from grpo_train.rollout.native.weights import UnsupportedModelError
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.train import resume, state
from grpo_train.train.compiling import Compiling
from tests.rollout.native.models import TOKENIZER, make_model
from tests.support.engine import assert_same_run, resume_here, train_here, write_micro

SHARED = "rollouts keep a copy of the prompt for each completion: no such kernel"
BLOCKS = "train.compile: blocks are not compiled: RuntimeError: no compiler"


def other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "device_name", lambda device: "Abacus")


def other_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {**resume.library_versions(), "torch": "9.0"}
    monkeypatch.setattr(state, "library_versions", lambda: versions)


def earlier_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoints have no record."""
    load = state.load_info
    monkeypatch.setattr(state, "load_info", lambda latest: {k: v for k, v in load(latest).items() if k != "fallbacks"})


def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each had another fallback; one process takes the path of both."""
    load, saved = state.load_info, [{"sharing": SHARED}, {"blocks": BLOCKS}]
    monkeypatch.setattr(state, "load_info", lambda latest: {**load(latest), "fallbacks": saved})


CASES: list[tuple[Callable[[pytest.MonkeyPatch], None] | None, str]] = [
    (None, ""),
    (other_device, "device: saved with CPU, resumed with Abacus"),
    (other_torch, f"torch: saved with {torch.__version__}, resumed with 9.0"),
    (two_processes, ""),
    (earlier_version, ""),
]


@pytest.mark.parametrize(("change", "reason"), CASES)
def test_a_resume_takes_the_path_of_its_run(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    change: Callable[[pytest.MonkeyPatch], None] | None,
    reason: str,
) -> None:
    torch.set_num_threads(1)
    tries: list[str] = []
    run_trial = CopyTrials.run

    def run_shared(self: CopyTrials, *, is_shared: bool, is_flash: bool = False) -> int:
        if is_shared:
            tries.append("shared")
            raise UnsupportedModelError("no such kernel")
        return run_trial(self, is_shared=False)

    def compile_blocks(self: Compiling) -> Any:
        tries.append("blocks")
        raise RuntimeError("no compiler")

    monkeypatch.setattr(CopyTrials, "run", run_shared)
    monkeypatch.setattr(Compiling, "_try", compile_blocks)
    cfg = write_micro(root, train__compile="on")
    run = train_here(root, cfg, "run", "--until", "1")
    assert sorted(tries) == ["blocks", "shared"]
    info = json.loads((run.training_state / "step_1" / "training_info.json").read_text())
    assert info["fallbacks"] == [{"blocks": BLOCKS, "sharing": SHARED}]
    tries.clear()
    capfd.readouterr()
    if change:
        change(monkeypatch)
    resume_here(run, total=2)
    assert sorted(tries) == (["blocks", "shared"] if reason else ["shared"] if change is earlier_version else [])
    printed = capfd.readouterr().out
    again = f"trials that failed before this resume run again ({reason}): {BLOCKS}; {SHARED}\n"
    assert printed.count(again) == bool(reason)
    assert printed.count("run again") == bool(reason)
    events = [json.loads(line) for line in (run.logs / "events.jsonl").read_text().splitlines()]
    found = [event["fallbacks"] for event in events if event["event"] == "training"]
    decided = "train.compile: blocks are not compiled, as decided before this resume"
    assert found[0] == [BLOCKS, SHARED]
    assert found[1] == ([SHARED] if change is earlier_version else [BLOCKS, SHARED])
    assert (decided in printed) == (change is earlier_version), "it kept only that they are not compiled"
    rows = [json.loads(line) for line in (run.logs / "train_log.jsonl").read_text().splitlines()]
    codes = {record["code"]: record["message"] for record in rows[0]["health"]}
    assert (codes["rollout_fallback"], codes["training_fallback"]) == (SHARED, BLOCKS)
    if not change:
        assert_same_run(train_here(root, cfg, "whole", "--until", "2"), run, 2)


def test_what_fails_after_a_resume_alone_is_a_difference(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = train_here(root, write_micro(root), "run", "--until", "1")

    def fail(self: NativeBackend, *_: Any, **__: Any) -> None:
        raise UnsupportedModelError("other layers")

    monkeypatch.setattr(NativeBackend, "__init__", fail)
    resume_here(run, total=2)
    message = "rollouts by transformers, as native cannot run this model: other layers"
    assert f"this resume is not bit-exact: {message}\n" in capfd.readouterr().out


def test_failed_trials_of_a_backend_are_not_run() -> None:
    model = make_model(dtype=torch.float32)
    policy = loading.Policy(model, TOKENIZER, torch.device("cpu"), "tiny")
    config = Config.model_validate({"rollout": {"compile": "on"}, "model": {"dtype": "float32"}})
    failed = {name: f"without {name}" for name in ("sharing", "layers", "graphs")}
    backend = make_backend(config, policy, failed=failed)
    assert isinstance(backend, NativeBackend)
    backend._record_with(lambda: pytest.fail("recorded"))
    assert backend.fallbacks == failed
    other = make_backend(config, policy, failed={"native": "without native"})
    assert isinstance(other, TransformersBackend)
    assert other.fallbacks == {"native": "without native"}


def test_lack_of_memory_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither about packing nor about matrix products: the next process would decide otherwise."""

    def fail(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    policy = loading.Policy(make_model(), TOKENIZER, torch.device("cpu"), "tiny")
    monkeypatch.setattr(packing, "_by_buckets", fail)
    with pytest.raises(torch.OutOfMemoryError):
        LogprobForward(policy, temperature=1.0)
    monkeypatch.setattr(torch, "addmm", fail)
    monkeypatch.setattr(torch, "ones", lambda *shape, **_: torch.zeros(1))
    monkeypatch.setattr(torch, "empty", lambda *shape, **_: torch.zeros(1))
    with pytest.raises(torch.OutOfMemoryError):
        head.mixed_products.__wrapped__(torch.device("cuda"), torch.bfloat16)
