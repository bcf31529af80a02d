"""``grpo-train export --push``: the real client against a local hub that takes commits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_train.cli import app
from grpo_train.export.plan import ExportError, ExportRequest, plan_export
from grpo_train.run_dir import RunDir
from tests.support.engine import GRPO_TRAIN, REPOSITORY, environment, train_here, write_config
from tests.support.hub import commit_of
from tests.support.pushable_hub import PushableHub, serve_pushable_hub

TOKEN = "hf_" + "secretsecret" * 3
ANSWER = """
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer
for kind, name in ((AutoPeftModelForCausalLM, "acme/adapter"), (AutoModelForCausalLM, "acme/merged")):
    model, tokenizer = kind.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    messages = [{"role": "user", "content": "12+34"}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    print("ANSWER", output[0, inputs["input_ids"].shape[1]:].tolist())
"""
"""A user's program elsewhere: it has only the hub."""


@pytest.fixture(scope="module")
def trained(make_root: Callable[[], Path]) -> RunDir:
    root = make_root()
    return train_here(root, write_config(root, run__total_steps=2, model__adapter="lora"), "trained")


@pytest.fixture
def hub(trained: RunDir, tmp_path: Path) -> Iterator[PushableHub]:
    """A hub with the base model."""
    shutil.copytree(trained.root / "models" / "tiny", tmp_path / "hub" / "models" / "acme" / "tiny")
    with serve_pushable_hub(tmp_path / "hub", TOKEN) as served:
        yield served


def export(
    hub: PushableHub,
    patch: pytest.MonkeyPatch,
    run: RunDir,
    *options: object,
    status: int = 0,
    token: str = TOKEN,
) -> str:
    """``grpo-train export`` in this process; returns its output, which never has the token."""
    from huggingface_hub import constants

    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # read from the environment when it is imported
    words = ["export", "--training-run", run.name, "--root", str(run.root), *map(str, options)]
    done = CliRunner().invoke(app, words, env={"HF_ENDPOINT": hub.address, "HF_TOKEN": token})
    assert done.exit_code == status, done.output
    assert TOKEN not in done.output
    return done.output


def test_pushed_models_load_from_the_hub(
    trained: RunDir, hub: PushableHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = f"acme/tiny@{commit_of(hub.folder / 'models' / 'acme' / 'tiny')}"
    plain = {name: value for name, value in environment().items() if name not in ("HF_TOKEN", "HF_HOME")}
    there = {**plain, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    words = [*GRPO_TRAIN, "export", "--training-run", "trained", "--root", str(trained.root), "--base", base]
    words += ["--to", str(tmp_path / "adapter"), "--push", "acme/adapter"]
    done = subprocess.run(
        words, env={**there, "HF_TOKEN": TOKEN}, cwd=REPOSITORY, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pushed http" in done.stdout
    assert TOKEN not in done.stdout + done.stderr
    merged = ("--merge", "--to", tmp_path / "merged", "--push", "acme/merged", "--private", "--json")
    document = json.loads(export(hub, monkeypatch, trained, *merged))
    assert document["commit"].startswith(hub.address)
    assert hub.private == {"acme/merged"}
    for kind in ("adapter", "merged"):
        pushed = {path.name for path in (hub.folder / "models" / "acme" / kind).iterdir()}
        assert pushed - {".gitattributes"} == {path.name for path in (tmp_path / kind).iterdir()}
    done = subprocess.run([sys.executable, "-c", ANSWER], env=there, capture_output=True, text=True, timeout=240)
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER [")]
    assert len(answers) == 2, done.stderr
    assert answers[0] == answers[1]
    assert not [path for path in hub.paths if TOKEN in path]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


def test_other_weights_are_not_replaced(
    trained: RunDir, hub: PushableHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (hub, monkeypatch, trained, "--merge", "--to", tmp_path / "out", "--push")
    output = export(*options, "acme/tiny", status=1)
    assert "acme/tiny exists already and holds other weights (model.safetensors)" in output
    assert f"the export is kept in {tmp_path / 'out'}" in output
    assert not hub.commits
    assert "exported before" in export(*options, "acme/mine")
    # The same weights again: the card may change.
    repository = hub.folder / "models" / "acme" / "mine"
    (repository / "README.md").write_text("edited on the hub")
    export(*options, "acme/mine")
    assert (repository / "README.md").read_bytes() == (tmp_path / "out" / "README.md").read_bytes()
    assert "is public" in export(*options, "acme/mine", "--private", status=1)
    # Step 1 has other weights under the same file names.
    first = ("--merge", "--step", 1, "--to", tmp_path / "first", "--push", "acme/mine")
    assert "other weights" in export(hub, monkeypatch, trained, *first, status=1)
    (tmp_path / "out" / "README.md").write_text("edited here")
    assert "README.md was changed since" in export(*options, "acme/mine", status=1)


def test_a_token_is_needed_before_the_export(
    trained: RunDir, hub: PushableHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    file = tmp_path / "token"
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(file))
    options = (hub, monkeypatch, trained, "--merge", "--to", tmp_path / "out", "--push", "acme/mine")
    assert "set HF_TOKEN, or run 'hf auth login'" in export(*options, status=1, token="")
    assert "the hub refuses the token (HTTP 401)" in export(*options, status=1, token="hf_wrong")
    file.write_text(TOKEN)
    os.chmod(file, 0o644)
    assert f"chmod 600 {file}" in export(*options, status=1, token="")
    assert not (tmp_path / "out").exists()
    os.chmod(file, 0o600)
    assert "pushed http" in export(*options, token="")
    assert "use OWNER/NAME" in export(hub, monkeypatch, trained, "--push", "mine", "--merge", status=1)
    assert "--private needs --push" in export(hub, monkeypatch, trained, "--private", status=2)


def test_a_base_with_other_weights_is_refused(
    trained: RunDir, hub: PushableHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base of the run is a directory; the model that is named in its place must have its weights."""
    file = hub.folder / "models" / "acme" / "tiny" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    base = f"acme/tiny@{commit_of(file.parent)}"
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    request = ExportRequest("trained", base=base, root=trained.root)
    with pytest.raises(ExportError, match="has other weights"):
        plan_export(request)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ExportError, match="cannot be compared"):
        plan_export(request)
