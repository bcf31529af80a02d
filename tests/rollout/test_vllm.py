"""What rollouts by vLLM refuse before a server starts; tests/soak/test_vllm.py has the servers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from grpo_train.config import ConfigError, load_config
from grpo_train.config.schema import Config, Rollout
from grpo_train.policy.locate import PolicyError
from grpo_train.rollout.vllm.server import _environment, check_servers
from grpo_train.train.preflight import check_start

NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vllm_python": "/nowhere/python"}, "needs an environment with vLLM, and /nowhere/python is none; make setup"),
        ({"vllm_python": sys.executable}, "is none; make setup-vllm makes one"),
        ({"vllm_urls": [NOWHERE], "vllm_shared_dir": "/tmp"}, f"no vLLM server answers at {NOWHERE}: "),
    ],
)
def test_a_run_without_a_server_is_not_made(settings: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=message):
        check_servers(Rollout(**settings))  # type: ignore[arg-type]
    config = Config.model_validate({"rollout": {"backend": "vllm", **settings}, "model": {"device": "cpu"}})
    with pytest.raises(PolicyError, match=message):
        check_start(config, tmp_path, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"rollout: {{backend: vllm, vllm_urls: ['{NOWHERE}']}}", "rollout.vllm_shared_dir"),
        ("rollout: {backend: vllm}\nrun: {deterministic: true}", "does not repeat bit for bit"),
    ],
)
def test_settings_that_contradict(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(text)


def test_a_server_gets_no_secret_and_its_own_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {
        "HF_TOKEN": "s", "AWS_SECRET_ACCESS_KEY": "s", "WANDB_API_KEY": "s", "RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "PYTHONPATH": "/x", "CUDA_VISIBLE_DEVICES": "4,6",
        "HF_HOME": "/h",
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = _environment(tmp_path, 1)
    assert {name: found[name] for name in given if name in found} == {"CUDA_VISIBLE_DEVICES": "6", "HF_HOME": "/h"}
