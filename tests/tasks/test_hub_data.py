"""Datasets of the hub as ``task.path``: splits, commits, the cache, refusals.

The hub's clients read its address when they are imported, so every group of calls is a fresh process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir.files import read_jsonl
from grpo_train.tasks import TaskError
from grpo_train.tasks.shared.hub_data import HubDataset, parse_hub_path
from tests.support.data import FIXTURES
from tests.support.engine import REPOSITORY, environment
from tests.support.hub import commit_of, publish_dataset, serve_hub

NOBODY = "http://127.0.0.1:9"
"""A hub that is down."""
PROGRAM = """
import json, sys
from grpo_train.config.schema import TaskConfig
from grpo_train.run_dir.errors import UserError
from grpo_train.tasks import load_task
from grpo_train.tasks.shared.hub_data import pinned_path
for keys in json.loads(sys.argv[1]):
    found = {}
    try:
        if keys.pop("pin", False):
            found["path"] = keys["path"] = pinned_path(keys["path"])
        task = load_task(TaskConfig(**{"name": "data", **keys}))
        found["sizes"] = [task.size("train"), task.size("test")]
        found["first"] = task.problem("train", 0).question
        found |= {"label": task.label, "notes": list(task.notes)}
    except UserError as error:
        found |= {"error": str(error), "code": error.code}
    print("FOUND", json.dumps(found))
"""
Ask = Callable[..., list[dict[str, Any]]]


def rows_of(split: str, count: int) -> list[dict[str, Any]]:
    return [{"question": f"{split} {n}?", "answer": f"#### {n}", "level": n} for n in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    hub = tmp_path_factory.mktemp("hub")
    owner = hub / "datasets" / "acme"
    main = {"train": rows_of("train", 20), "validation": rows_of("validation", 5)}
    publish_dataset(owner / "MySums", {"main": main, "socratic": {"test": rows_of("socratic", 3)}})
    publish_dataset(owner / "parts", {"default": {"easy": rows_of("easy", 9), "hard": rows_of("hard", 4)}})
    publish_dataset(owner / "secret", {"default": {"train": rows_of("secret", 9)}})
    mbpp = [record for _, record in read_jsonl(FIXTURES / "mbpp.jsonl")]
    publish_dataset(owner / "mbpp", {"full": {"test": mbpp[:5], "train": mbpp[5:]}})
    (owner / "bare").mkdir()
    (owner / "bare" / "all.csv").write_text("prompt,answer\n" + "".join(f"{n}?,{n}\n" for n in range(40)))
    return hub


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[str]:
    with serve_hub(folder, gated=frozenset({"acme/secret"})) as address:
        yield address


@pytest.fixture
def ask(endpoint: str, tmp_path: Path) -> Ask:
    """Loads tasks in a process whose hub cache is below ``tmp_path``; returns what it found."""

    def run(*tasks: dict[str, Any], **extra: str) -> list[dict[str, Any]]:
        variables = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "", **extra}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(tasks)],
            env=environment(tmp_path, **variables), cwd=REPOSITORY, capture_output=True, text=True, timeout=250,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        lines = [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]
        return [json.loads(line) for line in lines]

    return run


def test_splits_configs_and_cuts(ask: Ask, folder: Path) -> None:
    sums, parts, bare = "hf:acme/MySums:main", "hf:acme/parts", "hf:acme/bare"
    commit = commit_of(folder / "datasets" / "acme" / "MySums")
    cut, mapped, part, sliced, one_file, gsm8k, unknown, several = ask(
        {"path": sums, "pin": True},
        {"path": sums, "splits": {"train": "train", "test": "validation"}},
        {"path": parts, "splits": {"train": "easy", "test": "hard"}},
        {"path": parts, "splits": {"train": "easy[:3]", "test": "easy[3:]"}},
        {"path": bare, "pin": True},
        {"path": "hf:acme/MySums:main", "name": "gsm8k", "splits": {}},
        {"path": parts, "splits": {"test": "hrad"}},
        {"path": parts},
    )
    assert cut["path"] == f"{sums}@{commit}"
    assert sum(cut["sizes"]) == 20
    assert cut["label"] == "data_acme_MySums"
    (note,) = cut["notes"]
    assert note.startswith(f"no test split: {cut['sizes'][1]} of 20 problems are held out, by a hash of their text")
    assert note.endswith("task.splits can name the validation split instead")
    assert (mapped["sizes"], mapped["notes"]) == ([20, 5], [])
    assert (part["sizes"], sliced["sizes"]) == ([9, 4], [3, 6])
    assert one_file["path"].startswith("hf:acme/bare:default@")
    assert sum(one_file["sizes"]) == 40
    assert gsm8k["error"] == "task.path: hf:acme/MySums:main has no test split; it has train, validation"
    assert "has no split 'hrad'; did you mean hard?" in unknown["error"]
    assert "has the splits easy, hard: set task.splits, as in {train: easy}" in several["error"]


def test_offline_errors_say_what_to_do(ask: Ask) -> None:
    """Of the tasks whose data is downloaded by default."""
    gsm8k, mbpp = ask({"name": "gsm8k"}, {"name": "mbpp"}, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in gsm8k["error"]
    assert "set task.path to their directory" in gsm8k["error"]
    assert "HF_HUB_OFFLINE is set" in mbpp["error"]
    assert "set task.path (or MBPP_DATASET_PATH) to it" in mbpp["error"]


def test_mbpp_from_the_hub_is_that_of_the_file(ask: Ask) -> None:
    file, hub = ask({"path": str(FIXTURES / "mbpp.jsonl"), "name": "mbpp"}, {"path": "hf:acme/mbpp", "name": "mbpp"})
    assert file == hub
    assert min(hub["sizes"]) > 0


def test_a_pinned_commit_comes_from_the_cache(ask: Ask, folder: Path) -> None:
    """The owner publishes another version; a run keeps its own, also where the hub is down."""
    repository = folder / "datasets" / "acme" / "MySums"
    path, card = "hf:acme/MySums:main", (repository / "README.md").read_text()
    (before,) = ask({"path": path, "pin": True})
    try:
        (repository / "README.md").write_text(card + "new")
        publish = repository / "main" / "train-00000-of-00001.parquet"
        old = publish.read_bytes()
        publish_dataset(repository, {"main": {"train": rows_of("newer", 30), "validation": rows_of("validation", 5)}})
        newest, pinned = ask({"path": path, "pin": True}, {"path": before["path"]})
        offline, down = (
            ask({"path": before["path"]}, {"path": path, "pin": True}, {"path": "hf:acme/parts"}, **extra)
            for extra in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": NOBODY})
        )
        (gone,) = ask({"path": before["path"]}, HF_HOME=str(folder / "empty"))
    finally:
        publish.write_bytes(old)
        publish_dataset(repository, {"socratic": {"test": rows_of("socratic", 3)}})
        (repository / "README.md").write_text(card)
    assert (pinned["first"], newest["first"]) == ("train 0?", "newer 0?")
    for kept, latest, missing in (offline, down):
        assert (kept["first"], kept["sizes"]) == ("train 0?", before["sizes"])
        assert (latest["path"], latest["first"]) == (newest["path"], "newer 0?")
        assert "hf:acme/parts is not in this machine's cache, and the hub does not answer" in missing["error"]
        assert missing["code"] == "no_dataset"
    commit = before["path"].partition("@")[2]
    assert gone["error"].startswith(f"task.path: acme/MySums has no commit '{commit}' (mistyped, or removed")


def test_what_the_hub_refuses_is_named(ask: Ask) -> None:
    found = ask(
        {"path": "hf:acme/MySums:mian"},
        {"path": "hf:acme/MySums"},
        {"path": "hf:acme/none"},
        {"path": "hf:acme/MySums:main@v9"},
        {"path": "hf:acme/secret"},
        {"path": "hf:acme"},
        {"path": "hf:acme/parts", "name": "code_execution"},
    )
    messages = [
        "task.path: acme/MySums has no config 'mian'; did you mean main?",
        "task.path: acme/MySums has several configs, main, socratic: name one, as in hf:acme/MySums:main",
        "task.path: the hub has no dataset acme/none, or it is private: check the name, or set HF_TOKEN",
        "task.path: acme/MySums has no commit 'v9' (mistyped, or removed by its owner): remove @v9",
        "task.path: acme/secret is gated: accept its terms at ",
        "task.path: 'hf:acme': expected hf:OWNER/NAME",
        "task.path: 'hf:acme/parts': this task reads files; use task.name data",
    ]
    for each, message in zip(found, messages, strict=True):
        assert each["error"].startswith(message)
        assert "\n" not in each["error"]
    assert found[4]["code"] == "gated"
    (opened,) = ask({"path": "hf:acme/secret"}, HF_TOKEN="hf_" + "q" * 34)
    assert sum(opened["sizes"]) == 9


def test_paths_of_the_hub() -> None:
    commit = "0123456789" * 4
    assert parse_hub_path(f"hf:a/b:c@{commit}") == HubDataset("a/b", "c", commit)
    assert parse_hub_path("hf:a/b.c_d-e@main").commit is None
    for path in (f"hf:a/b:c@{commit}", "hf:a/b", "hf:a/b:c", f"hf:a/b@{commit}"):
        assert str(parse_hub_path(path)) == path
    for path in ("hf:", "hf:a", "hf:a/b/c", "hf:a/b@", "hf:a/b:", "hf:a/b:c@x@y", "hf: a/b"):
        with pytest.raises(TaskError, match="expected hf:OWNER/NAME"):
            parse_hub_path(path)
