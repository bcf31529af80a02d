"""Secrets in configs, overrides and shell snippets: found by look and by name, never repeated, no false hits."""

from __future__ import annotations

import pytest

from grpo_train.config import dump_config
from grpo_train.config.schema import Config
from grpo_train.run_dir.configs import list_configs, read_config
from grpo_train.run_dir.credentials import find_secret
from tests.support.engine import REPOSITORY

HUGGING_FACE, WANDB, AWS, GITHUB = "hf auth login", "wandb login", "~/.aws/credentials", "gh auth login"
HEX = "0123456789abcdef" * 2 + "01234567"
SECRETS = {
    # by look: any key, any position
    "model:\n  backbone: hf_" + "aB3" * 12: (2, "model.backbone", HUGGING_FACE),
    "# hf_" + "x" * 34 + "\n": (1, "", HUGGING_FACE),
    "run:\n  seed: 1\ntask:\n  template: |\n    {question}\n    ghp_" + "A1" * 18: (6, "", GITHUB),
    "task.path=github_pat_" + "A1_" * 12: (1, "task.path", GITHUB),
    "gho_" + "b" * 36: (1, "", GITHUB),
    "a: AKIAIOSFODNN7EXAMPLE": (1, "a", AWS),
    "a: 'ASIAIOSFODNN7EXAMPLE'": (1, "a", AWS),
    "a: wandb_v1_" + "Zz9" * 10: (1, "a", WANDB),
    f"tracking:\n  x: '{HEX}'": (2, "tracking.x", WANDB),
    f"tracking.x={HEX}": (1, "tracking.x", WANDB),
    "a: sk-proj-" + "a1B" * 12: (1, "a", ".env"),
    "a: sk-ant-api03-" + "a1B" * 12: (1, "a", ".env"),
    "export HTTPS_PROXY=http://me:pw@proxy:3128": (1, "HTTPS_PROXY", ".env"),
    "-----BEGIN OPENSSH PRIVATE KEY-----": (1, "", "~/.ssh"),
    # by name: any value
    "run:\n  hf_token: abc\n": (2, "run.hf_token", HUGGING_FACE),
    "run: {password: 1234}": (1, "run.password", ".env"),
    '{run: {"api_key": "x y"}}': (1, "run.api_key", ".env"),
    "wandb:\n  apiKey: abc": (2, "wandb.apiKey", WANDB),
    "aws_secret_access_key: a/b+c": (1, "aws_secret_access_key", AWS),
    "secrets:\n  - a": (1, "secrets", ".env"),
    "passphrase: >-\n  correct horse": (1, "passphrase", ".env"),
    "token:\n\n  # below\n  abc": (1, "token", ".env"),
    "- credentials: abc": (1, "credentials", ".env"),
    "run.token=abc": (1, "run.token", ".env"),
    "cd /x && A=1 GITHUB_TOKEN='abc' make": (1, "GITHUB_TOKEN", GITHUB),
}
NOT_SECRETS = [
    "rollout:\n  max_completion_length: 512\n  max_tokens: 3\n  tokenizer: x\ntrain: {token_budget: 100}",
    "pad_token: <pad>\neos_token: x\nstop_token: y\ntokens: [a]\ntoken: 151645\n",
    "token: null\npassword: ''\napi_key: ~\nuse_auth_token: true\nhf_token:\nseed: 3",
    "algorithm:\n  reward_weights: {token_count: 1.0, accuracy: 2}",
    "task:\n  prompt_field: password\n  template: |\n    password: {question}\n    token: x\nrun:\n  seed: 1",
    "task:\n  template: 'Question, password: yes {question}'",
    f"model:\n  backbone: Qwen/Qwen2.5-0.5B@{HEX}",
    f"model.backbone=Qwen/Qwen2.5-0.5B@{HEX}",
    f"# started from commit {HEX}\nrevision: {HEX}\ntask:\n  path: /hub/snapshots/{HEX}/train.jsonl",
    "model:\n  backbone: org/sk-learn-based-regression-model",
    "git@github.com:a/b https://host/x:y@z http://proxy:3128 ratio 3:4@5",
    "source ~/miniconda3/etc/profile.d/conda.sh && conda activate rl",
    "export HF_TOKEN=$(cat ~/.hf) WANDB_API_KEY=$KEY GH_TOKEN=${X} && source ~/.secrets",
    "export GOOGLE_APPLICATION_CREDENTIALS=/home/me/account.json HF_TOKEN_PATH=/x PYTHONPATH=/y",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_found(text: str) -> None:
    line, key, place = SECRETS[text]
    secret = find_secret(text)
    assert secret is not None
    assert (secret.line, secret.key) == (line, key)
    assert place in secret.explain("c.yaml")


def test_the_value_is_not_repeated() -> None:
    for text in SECRETS:
        secret = find_secret(text)
        assert secret is not None
        message = secret.explain("c.yaml")
        for value in ("aB3aB3", "x" * 10, "A1A1", "EXAMPLE", HEX, "Zz9", "a1B", "pw@", "abc", "1234", "correct"):
            assert value not in message, text


def test_a_key_that_is_a_token_is_not_repeated() -> None:
    secret = find_secret("run:\n  hf_" + "q" * 34 + ": 1")
    assert secret is not None
    assert secret.key == ""


@pytest.mark.parametrize("text", NOT_SECRETS)
def test_no_false_hits(text: str) -> None:
    assert find_secret(text) is None


def test_no_config_of_ours_is_refused() -> None:
    assert find_secret(dump_config(Config())) is None
    folder = REPOSITORY / "config"
    for config in list_configs(folder):
        assert find_secret(read_config(folder, config["name"])) is None, config


@pytest.mark.parametrize(
    "unit", ['"', "' ", "{", ", ", "- ", "a: ", "://", "://a:", "sk-", "hf_", "a=", "token:\n", "|"]
)
def test_patterns_do_not_backtrack(unit: str) -> None:
    find_secret(unit * 100_000)  # minutes, if a pattern backtracks
