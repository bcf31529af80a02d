"""Models and datasets from a hub: the real clients over HTTP, with a local server behind HF_ENDPOINT.

The clients read the hub's address when they are imported: a command with another one imports them anew.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from multiprocessing.forkserver import ForkServer
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from grpo_train.config import load_config
from grpo_train.policy.locate import at_commit, hub_id, hub_source
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import read_json, read_jsonl
from tests.support import micro
from tests.support.data import data_file
from tests.support.engine import (
    REPOSITORY,
    at_start,
    environment,
    rows,
    run_of,
    train_here,
    weights_hash,
    write_config,
)
from tests.support.forked import ONLY_TORCH, run_forked, server_with
from tests.support.hub import commit_of, publish_dataset, serve_hub
from tests.support.network import needs_root
from tests.support.patience import PATIENCE

make_root, tiny_model = micro.make_root, micro.tiny_model
HUB = "https://huggingface.co"
NOBODY = "http://127.0.0.1:9"
"""A hub that is down."""
WITHOUT_A_ROUTE = (
    "import os\nif 'HAS_NO_ROUTE' not in os.environ:\n    os.environ['HAS_NO_ROUTE'] = '1'\n"
    "    from tests.support.network import own_network\n    own_network().__enter__()"
)
"""For :func:`at_start`: a network of loopback only, shared by all processes of a command."""


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hub's content: GSM8K and MBPP under their names, and a model."""
    hub = tmp_path_factory.mktemp("hub")
    gsm8k = {split: [row for _, row in read_jsonl(data_file(f"gsm8k_{split}.jsonl"))] for split in ("train", "test")}
    publish_dataset(hub / "datasets" / "openai" / "gsm8k", {"main": gsm8k})
    mbpp = [row for _, row in read_jsonl(data_file("mbpp.jsonl"))][:40]
    half = len(mbpp) // 2
    full = {"test": mbpp[:half], "train": mbpp[half:]}
    publish_dataset(hub / "datasets" / "google-research-datasets" / "mbpp", {"full": full})
    shutil.copytree(tiny_model, hub / "models" / "acme" / "tiny")
    return hub


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[str]:
    with serve_hub(folder) as address:
        yield address


Command = Callable[..., str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf")


@pytest.fixture(scope="module")
def server(endpoint: str, home: Path) -> Iterator[ForkServer]:
    with server_with(HF_ENDPOINT=endpoint, HF_HOME=str(home)) as running:
        yield running


@pytest.fixture
def command(endpoint: str, home: Path, server: ForkServer, tmp_path: Path) -> Command:
    """Runs ``grpo-train …`` on a box whose hub cache starts empty; returns its output."""
    for path in home.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def run(*arguments: object, status: int = 0, **extra: str) -> str:
        variables = environment(tmp_path, **{"HF_ENDPOINT": endpoint, "HF_HOME": str(home), **extra})
        words = ["grpo_train.cli", *map(str, arguments)]
        done = run_forked(words, variables, REPOSITORY, PATIENCE * 120, server=ONLY_TORCH if extra else server)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.mark.official_data
def test_datasets_come_from_the_hub(command: Command) -> None:
    count = sum(len(data_file(f"gsm8k_{split}.jsonl").read_text().splitlines()) for split in ("train", "test"))
    assert f"\n{count}/{count}\n" in command("check-dataset", "gsm8k")
    rows = min(40, len(data_file("mbpp.jsonl").read_text().splitlines()))
    assert f"{rows}/{rows}" in command("check-dataset", "mbpp")
    output = command("check-dataset", "gsm8k", HF_ENDPOINT=NOBODY)
    assert f"\n{count}/{count}\n" in output
    assert "Retrying" not in output, "the cache is used without waiting for the hub"


@pytest.mark.parametrize(("adapter", "nproc"), [("lora", 2), ("none", 1)])
def test_a_resume_keeps_the_commit(command: Command, folder: Path, tmp_path: Path, adapter: str, nproc: int) -> None:
    """The owners publish another model and other data under the same names after the first step."""
    model = folder / "models" / "acme" / "tiny"
    data = folder / "datasets" / "openai" / "gsm8k"
    path = "hf:openai/gsm8k" if adapter == "lora" else None  # None is the same dataset
    first, pinned = commit_of(model), f"hf:openai/gsm8k:main@{commit_of(data)}"
    config = write_config(
        tmp_path, model__backbone="acme/tiny", model__adapter=adapter, run__total_steps=1, algorithm__beta=0.02,
        task__name="gsm8k", task__path=path, task__limit=8, rollout__max_prompt_length=2048,
        rollout__max_completion_length=8,
    )  # fmt: skip
    output = command("train", "--cfg", config, "--run-name", "hub", "--nproc", nproc)
    assert "downloaded first if it is not in the cache" in output
    run = run_of(tmp_path, "hub")
    assert recorded_base(run, 1) == f"acme/tiny@{first}"
    if adapter == "lora":
        saved = json.loads((run.training_state / "step_1" / "model" / "adapter_config.json").read_text())
        assert (saved["base_model_name_or_path"], saved["revision"]) == ("acme/tiny", first)

    assert load_config(run.config_file.read_text()).task.path == pinned

    card, data_card = model / "README.md", data / "README.md"
    card.write_text("another model")
    old_card = data_card.read_text()
    data_card.write_text(old_card + "and other data")
    shutil.copytree(run.path, tmp_path / "training_runs" / "other", symlinks=True)
    try:
        assert commit_of(model) != first
        more = ("--nproc", "1", "--additional-steps", "1")
        command("resume", "--training-run", "hub", *more)
        command("eval", "--training-run", "hub", "--steps", "0", "--num-problems", "2", "--max-completion-length", "4")
        is_down = {"HF_ENDPOINT": NOBODY} if adapter == "lora" else {"HF_HUB_OFFLINE": "1"}
        output = command("resume", "--training-run", "other", *more, **is_down)
        assert "Retrying" not in output, "the cache is used without waiting for the hub"
    finally:
        card.unlink()
        data_card.write_text(old_card)
    assert recorded_base(run, 2) == f"acme/tiny@{first}"
    assert [row["step"] for row in rows(run)] == [1, 2]
    assert weights_hash(run, 2) == weights_hash(run_of(tmp_path, "other"), 2), "the same with and without the hub"
    (summary,) = (tmp_path / "eval_runs").glob("hub_*/step_0_*/summary.json")
    assert (read_json(summary) or {})["checkpoint"] == f"acme/tiny@{first}"


def recorded_base(run: RunDir, step: int) -> str:
    """The base model named by a checkpoint."""
    info = read_json(run.training_state / f"step_{step}" / "training_info.json") or {}
    return str(info["base_model"]["name"])


def test_offline_names_the_model_before_a_run_is_made(command: Command, folder: Path, tmp_path: Path) -> None:
    """On a machine without a network; a model that was fetched elsewhere trains there."""
    config = write_config(tmp_path, model__backbone="acme/tiny", run__total_steps=1)
    output = command("train", "--cfg", config, "--run-name", "early", status=2, HF_ENDPOINT=NOBODY)
    assert "grpo-train fetch-model acme/tiny --to DIR" in output
    assert not (tmp_path / "training_runs" / "early").exists()
    command("fetch-model", "acme/tiny", "--to", tmp_path / "carried")
    assert not (tmp_path / "carried" / ".cache").exists()
    commit = commit_of(folder / "models" / "acme" / "tiny")
    assert hub_source(tmp_path / "carried") == f"acme/tiny@{commit}", "an export names the base by it"
    assert "exists already" in command("fetch-model", "acme/tiny", "--to", tmp_path / "carried", status=1)
    there = ("--set", f"model.backbone={tmp_path / 'carried'}")
    command("train", "--cfg", config, *there, "--run-name", "carried", HF_ENDPOINT=NOBODY)
    assert [row["step"] for row in rows(run_of(tmp_path, "carried"))] == [1]


@needs_root
def test_training_starts_without_a_route(
    command: Command, endpoint: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub and W&B have their usual addresses; the cache has the model from the second start on."""
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    there = at_start(tmp_path / "start", WITHOUT_A_ROUTE) | {"HF_ENDPOINT": HUB, "WANDB_API_KEY": "0" * 40}
    config = write_config(tmp_path, model__backbone="acme/tiny", run__total_steps=1, tracking__wandb="auto")
    start = ("train", "--cfg", config, "--run-name", "offline")
    assert "grpo-train fetch-model acme/tiny --to DIR" in command(*start, status=2, **there)
    assert not (tmp_path / "training_runs").exists()
    snapshot_download("acme/tiny", endpoint=endpoint, cache_dir=home / "hub")
    output = command(*start, **there)
    assert "tracking.wandb: auto -> offline (https://api.wandb.ai cannot be reached)" in output
    assert "Retrying" not in output, "the cache is used without waiting for the hub"
    run = run_of(tmp_path, "offline")
    assert [row["step"] for row in rows(run)] == [1]


def test_a_hub_model_is_evaluated_without_a_run(command: Command, folder: Path, tmp_path: Path) -> None:
    small = ("--dataset", "addition", "--num-problems", 2, "--max-completion-length", 4)
    output = command("eval", "--model", "acme/tiny", *small)
    (status,) = tmp_path.glob("eval_runs/@acme--tiny_addition/status.json")
    pinned = f"acme/tiny@{commit_of(folder / 'models' / 'acme' / 'tiny')}"
    assert (read_json(status) or {})["model"] == pinned
    assert "model: accuracy" in output
    assert "the hub has no such model" in command("eval", "--model", "acme/large", *small, status=2)
    assert "already complete" in command("eval", "--model", pinned, *small, HF_ENDPOINT=NOBODY)


def test_a_model_that_cannot_be_fetched(command: Command, tmp_path: Path) -> None:
    assert "cannot fetch acme/large" in command("fetch-model", "acme/large", "--to", tmp_path / "large", status=1)
    output = command("fetch-model", "acme/tiny", "--to", tmp_path / "tiny", status=1, HF_ENDPOINT=NOBODY)
    assert "cannot fetch acme/tiny" in output
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize("backbone", ["acme/large", f"acme/tiny@{'0' * 40}"], ids=["model", "commit"])
def test_unknown_on_the_hub(command: Command, tmp_path: Path, backbone: str) -> None:
    config = write_config(tmp_path, model__backbone=backbone, run__total_steps=1)
    output = command("train", "--cfg", config, "--run-name", "unknown", status=1)
    assert f"cannot load the model '{backbone}'" in output
    assert "Retrying" not in output


def test_only_a_commit_is_split_off(root: Path) -> None:
    commit = "0123456789" * 4
    assert hub_id(f"acme/tiny@{commit}") == ("acme/tiny", commit)
    for name in ("acme/tiny", "acme/tiny@main", f"models/acme/tiny@{commit}", f"/data/tiny@{commit}"):
        assert hub_id(name) == (name, None)
    assert at_commit("acme/tiny", f"acme/tiny@{commit}") == f"acme/tiny@{commit}"
    assert at_commit("acme/tiny", f"acme/other@{commit}") == at_commit("acme/tiny", None) == "acme/tiny"
    assert at_commit("tiny", "models/tiny") == "tiny"

    (root / "models" / "tiny").rename(root / "models" / "tiny@2")
    config = write_config(root, model__backbone="models/tiny@2", model__adapter="lora", run__total_steps=1)
    run = train_here(root, config, "at")
    saved = read_json(run.training_state / "step_1" / "model" / "adapter_config.json") or {}
    assert (saved["base_model_name_or_path"], saved["revision"]) == ("models/tiny@2", None)
