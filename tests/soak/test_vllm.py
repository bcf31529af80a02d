"""Rollouts by real vLLM servers on the CPU: the same completions as native, and faults of the server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_train.config.schema import Config
from grpo_train.policy.completion import Completion
from grpo_train.policy.loading import Policy, load_policy
from grpo_train.policy.locate import PolicyError
from grpo_train.rollout import RolloutBackend
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.vllm import backend as vllm
from grpo_train.rollout.vllm import serve, server
from grpo_train.rollout.vllm.backend import VllmBackend
from grpo_train.rollout.vllm.client import ServerGoneError, call_server
from grpo_train.run_dir.files import read_jsonl
from tests.support.engine import GRPO_TRAIN, write_config
from tests.support.patience import PATIENCE

PROMPTS = [tuple(range(5 + shift, 5 + shift + length)) for shift, length in enumerate([3, 9, 4, 17, 1, 30] * 6)]
STOP = ("</answer>", "1+")
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["none", "lora"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Policy:
    root = tmp_path_factory.mktemp("root")
    (root / "models").mkdir()
    if request.param == "lora":
        (root / "models" / "tiny").symlink_to(tiny_model)
    else:  # on a CPU, vLLM does not take over tied embeddings
        loaded = load_policy(_config("none").model.model_copy(update={"backbone": str(tiny_model)}), root, CPU)
        loaded.model.config.tie_word_embeddings = False
        loaded.model.lm_head.weight = torch.nn.Parameter(loaded.model.lm_head.weight.detach().clone())
        loaded.model.save_pretrained(root / "models" / "tiny")
        loaded.tokenizer.save_pretrained(root / "models" / "tiny")
    return load_policy(_config(request.param).model, root, CPU)


def test_tied_embeddings_on_a_cpu(tmp_path: Path, tiny_model: Path) -> None:
    config = _config("none")
    policy = load_policy(config.model.model_copy(update={"backbone": str(tiny_model)}), tmp_path, CPU)
    with pytest.raises(PolicyError, match="keeps the old output layer"):
        VllmBackend(policy, STOP, config)
    _end_servers()


@pytest.fixture(scope="module")
def backend(policy: Policy) -> Iterator[VllmBackend]:
    yield VllmBackend(policy, STOP, _config("lora" if hasattr(policy.model, "peft_config") else "none"))
    _end_servers()


def test_greedy_equals_native(policy: Policy, backend: VllmBackend) -> None:
    """Before and after two updates of the weights."""
    native, seen = NativeBackend(policy.model, policy.tokenizer, STOP), []
    for seed in (0, 1, 2):
        _train(policy, seed)
        native.sync()
        backend.sync()
        seen.append(_generate(backend, temperature=0.0))
        assert _said(seen[-1]) == _said(_generate(native, temperature=0.0))
        assert not any(one.logps for one in seen[-1])
    assert _said(seen[0]) != _said(seen[1]) != _said(seen[2])
    assert {one.finished for found in seen for one in found} == {True, False}


def test_samples_have_the_trainers_log_probabilities(policy: Policy, backend: VllmBackend) -> None:
    _train(policy, 3)
    backend.sync()
    for settings in ({}, {"temperature": 1.5}, {"top_k": 5}):
        together = _generate(backend, **settings)
        assert _said(together) == _said(_generate(backend, batch_size=4, **settings)), "seeds decide"
        for one in together:
            expected = _logps(policy, one, settings.get("temperature", 1.0), settings.get("top_k", 0))
            assert one.logps == pytest.approx(expected, abs=1e-4)
    assert len({one.ids for one in _generate(backend, [PROMPTS[0]] * 36)}) > 10


def test_every_backend_draws_from_its_own_weights(policy: Policy, backend: VllmBackend) -> None:
    """An opponent's backend shares the server."""
    _train(policy, 4)
    backend.sync()
    expected = _said(_generate(backend, temperature=0.0))
    other = VllmBackend(policy, STOP, _config("lora" if hasattr(policy.model, "peft_config") else "none"))
    kept = [parameter.detach().clone() for parameter in policy.trainable()]
    _train(policy, 5)
    other.sync()
    assert _said(_generate(other, temperature=0.0)) != expected
    for parameter, value in zip(policy.trainable(), kept, strict=True):
        parameter.data.copy_(value)
    assert _said(_generate(backend, temperature=0.0)) == expected


def test_an_adapter_that_is_switched_off(policy: Policy, backend: VllmBackend) -> None:
    if not hasattr(policy.model, "peft_config"):
        return
    _train(policy, 6)
    with policy.model.disable_adapter():
        native = NativeBackend(policy.model, policy.tokenizer, STOP)
        backend.sync()
        assert _said(_generate(backend, temperature=0.0)) == _said(_generate(native, temperature=0.0))


def test_a_server_that_is_killed_starts_again_once(policy: Policy, backend: VllmBackend) -> None:
    _train(policy, 7)
    backend.sync()
    expected = _said(_generate(backend, temperature=0.0))
    (running,) = [each for each in vllm._servers.values() if isinstance(each, server.LocalServer)]
    kills: list[int] = []

    def kill(index: int, completion: Completion) -> None:
        if not kills:
            os.killpg(running._process.pid, signal.SIGKILL)
            kills.append(index)

    assert _said(_generate(backend, temperature=0.0, batch_size=4, on_done=kill)) == expected

    def kill_always(index: int, completion: Completion) -> None:
        os.killpg(running._process.pid, signal.SIGKILL)

    with pytest.raises(PolicyError, match=r"vLLM ended twice .*; its log is /.*vllm_0.log"):
        _generate(backend, temperature=0.0, batch_size=2, on_done=kill_always)


def test_a_prompt_that_is_too_long(policy: Policy, backend: VllmBackend) -> None:
    backend.sync()
    with pytest.raises(PolicyError, match=r"raise rollout\.vllm_max_model_length"):
        _generate(backend, [tuple(range(3, 300)) * 20], temperature=0.0)


def test_a_server_by_url(tmp_path: Path, tiny_model: Path) -> None:
    """With the same model it is used; with another one it is refused."""
    root = tmp_path / "root"
    (root / "models").mkdir(parents=True)
    (root / "models" / "tiny").symlink_to(tiny_model)
    with _server_at_port(tiny_model, tmp_path) as url:
        config = _config("lora", vllm_urls=[url], vllm_shared_dir=str(tmp_path))
        policy = load_policy(config.model, root, CPU)
        _train(policy, 1)
        native = NativeBackend(policy.model, policy.tokenizer, STOP)
        backend = VllmBackend(policy, STOP, config)
        assert _said(_generate(backend, temperature=0.0)) == _said(_generate(native, temperature=0.0))
        with torch.no_grad():
            for parameter in policy.model.parameters():
                if not parameter.requires_grad:
                    parameter.mul_(1.1)
        with pytest.raises(PolicyError, match="its base model is another one than"):
            VllmBackend(policy, STOP, config)
    with pytest.raises(PolicyError, match="no longer answers"):
        backend.sync()
    vllm._servers.clear()


@pytest.mark.parametrize("ends", ["done", "killed"])
def test_a_run(ends: str, make_root: Callable[[], Path]) -> None:
    """Trains, and leaves nothing behind, also when it is killed."""
    root, before = make_root(), _servers()
    cfg = write_config(
        root, model__adapter="lora", rollout__backend="vllm", run__total_steps=3 if ends == "done" else 10_000
    )
    command = [*GRPO_TRAIN, "train", "--cfg", str(cfg), "--root", str(root), "--run-name", "by_vllm"]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    run = root / "training_runs" / "by_vllm"
    if ends == "done":
        output = child.communicate(timeout=600 * PATIENCE)[0].decode()
        assert child.returncode == 0, output
        assert "rollouts by vLLM 0." in output
        rows = [row for _, row in read_jsonl(run / "logs" / "train_log.jsonl")]
        assert [row["step"] for row in rows] == [1, 2, 3]
        assert all(abs(row["mismatch/kl"]) < 1e-6 and row["time/sync"] > 0 for row in rows)
        assert "Application startup complete" in (run / "logs" / "vllm_0.log").read_text()
    else:
        _wait(lambda: (run / "logs" / "train_log.jsonl").is_file())
        (trainer,) = [int(pid) for pid in _pids("grpo_train.train")][-1:]
        os.kill(trainer, signal.SIGKILL)
        assert child.wait(timeout=120 * PATIENCE) != 0
    _wait(lambda: _servers() == before)


def _config(adapter: str, **rollout: Any) -> Config:
    return Config.model_validate(
        {
            "model": {"backbone": "tiny", "adapter": adapter, "lora_rank": 4, "lora_alpha": 8},
            "rollout": {"backend": "vllm", **rollout},
        }
    )


def _generate(backend: RolloutBackend, prompts: Any = PROMPTS, **settings: Any) -> list[Completion]:
    settings = {"temperature": 1.0, "max_completion_length": 24, **settings}
    return backend.generate(prompts, seeds=[2**62 + number for number in range(len(prompts))], **settings)


def _said(completions: list[Completion]) -> list[tuple[tuple[int, ...], bool]]:
    return [(one.ids, one.finished) for one in completions]


def _train(policy: Policy, seed: int) -> None:
    """Move the trained weights, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable():
            scale = 0.1 * (parameter.std() if parameter.std() > 0 else torch.tensor(0.5))
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


@torch.no_grad()
def _logps(policy: Policy, one: Completion, temperature: float, top_k: int) -> list[float]:
    policy.model.eval()
    ids = torch.tensor([[*one.prompt_ids, *one.ids]])
    scores = policy.model(input_ids=ids).logits[0, len(one.prompt_ids) - 1 : -1].double() / temperature
    if top_k:
        scores[scores < scores.topk(top_k).values[:, -1:]] = -torch.inf
    found: list[float] = scores.log_softmax(-1).gather(1, torch.tensor(one.ids).unsqueeze(1)).squeeze(1).tolist()
    return found


@contextmanager
def _server_at_port(model: Path, folder: Path) -> Iterator[str]:
    """As docs/vllm.md starts one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = server._environment(folder / "gone", None)
    command = [
        str(server.python_of(_config("lora").rollout)), serve.__file__, "--model", str(model), "--host", "127.0.0.1",
        "--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", "auto",
        "--logprobs-mode", "processed_logprobs", "--enable-lora", "--generation-config", "vllm",
        "--gpu-memory-utilization", "0.3",
    ]  # fmt: skip
    with (folder / "server.log").open("wb") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            call_server(url, "/health")
        except ServerGoneError:
            return False
        return True

    try:
        _wait(answers)
        yield url
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _end_servers() -> None:
    for each in vllm._servers.values():
        if isinstance(each, server.LocalServer):
            each.close()
    vllm._servers.clear()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300 * PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _pids(text: str) -> list[str]:
    return subprocess.run(["pgrep", "-f", text], capture_output=True, text=True).stdout.split()


def _servers() -> set[str]:
    """Processes and directories of servers."""
    return {*_pids("vllm/serve.py"), *(path.name for path in Path("/dev/shm").glob("grpo-vllm-*"))}
