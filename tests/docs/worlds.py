"""What the pages take for granted: a clone, models, runs, data and boxes by the names that they use."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.forkserver import ForkServer
from pathlib import Path

import yaml

from grpo_train.policy.locate import HUB_SOURCE
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import read_jsonl
from remote.boxes import Box, Provider, add_box
from tests.docs.pages import Reader
from tests.support.data import data_file
from tests.support.engine import MICRO, REPOSITORY, config_text
from tests.support.forked import server_with
from tests.support.hub import publish_dataset, serve_hub
from tests.support.lambda_api import LambdaApi, instance
from tests.support.stores import other_disk
from tests.support.terminal import unlink_socket
from tests.support.wandb_server import wandb_server

FAKE_ENGINE = REPOSITORY / "tests" / "support" / "fake_engine.py"
MODELS = ["Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-1.5B", "models/mine"]
"""The micro model under the names of the pages; ``models`` are below the home, others below the root."""


@dataclass
class World:
    """Made once for all pages."""

    folder: Path
    golden: Callable[[str], RunDir]
    model: Path
    clone: Path
    server: ForkServer

    @contextmanager
    def reader(self, page: str) -> Iterator[Reader]:
        """A reader in a home of its own."""
        home = self.folder / Path(page).stem
        home.mkdir()
        reader = Reader(home, self.model, self.server)
        with ExitStack() as stack:
            PREPARED.get(page, prepare)(self, reader, stack)
            yield reader


@contextmanager
def world(golden: Callable[[str], RunDir], model: Path, folder: Path) -> Iterator[World]:
    """A clone of this checkout whose configs are small, and a hub."""
    clone = folder / "source"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
    for config in sorted((clone / "config" / "overfit").glob("*.yaml"))[2:]:
        config.unlink()
    for config in [*(clone / "config").glob("*.yaml"), *(clone / "config" / "overfit").glob("*.yaml")]:
        make_small(config)
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org", "commit", "--quiet", "-am", "small configs"]
    subprocess.run(git, cwd=clone, check=True)
    gsm8k = {split: [row for _, row in read_jsonl(data_file(f"gsm8k_{split}.jsonl"))] for split in ("train", "test")}
    gsm8k = {split: rows[:13] for split, rows in gsm8k.items()}
    for split, rows in gsm8k.items():
        (file := folder / "gsm8k" / f"{split}.jsonl").parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    test = [row for _, row in read_jsonl(data_file("mbpp.jsonl")) if 11 <= row["task_id"] <= 12]
    publish_dataset(folder / "hub" / "datasets" / "google-research-datasets" / "mbpp", {"full": {"test": test}})
    publish_dataset(folder / "hub" / "datasets" / "openai" / "gsm8k", {"main": gsm8k})
    with serve_hub(folder / "hub") as address, server_with(HF_ENDPOINT=address, HF_HOME=str(folder / "hf")) as server:
        yield World(folder, golden, model, clone, server)


def make_small(config: Path) -> None:
    """Give a config the micro model and its task, and two steps."""
    document = yaml.safe_load(config.read_text())
    if not isinstance(document, dict) or "model" not in document:
        return
    config.write_text(config_text(MICRO, run__total_steps=2))


def prepare(world: World, reader: Reader, stack: ExitStack) -> None:
    """A root with RUN and OTHER, models, data and questions, and a clone as the working directory."""
    root = world.golden("documented").root
    reader.variables["LOCALFS_ROOT"] = str(root)
    for name in MODELS:
        copy = shutil.copytree(world.model, (reader.folder if name.startswith("models") else root) / name)
        if name.endswith("Instruct"):
            (copy / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    reader.home = reader.folder / "grpo-tui"
    shutil.copytree(world.clone, reader.home, symlinks=True)
    (reader.home / "questions.txt").write_text("12+34=\n5+6=\n")
    sums = [f"{a}+{b},{a + b}" for a in range(10, 60) for b in range(10, 14)]
    (reader.home / "problems.csv").write_text("\n".join(["prompt,answer", *sums]) + "\n")
    reader.replaced = {"/data/gsm8k": str(world.folder / "gsm8k")}


def destination(reader: Reader, stack: ExitStack, name: str) -> None:
    """A folder on another disk as the first destination of backups."""
    stored = stack.enter_context(other_disk(reader.folder))
    file = reader.folder / ".config" / "grpo-tui" / "backup.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump({"destinations": [{"name": name, "folder": str(stored)}]}))


def boxes(reader: Reader, stack: ExitStack, *names: str, **root_of: str) -> list[Box]:
    """Boxes on this machine with the fake engine, each with a root and a tmux server of its own."""
    made = []
    file = reader.folder / ".config" / "grpo-tui" / "boxes.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        socket = f"grpo-docs-{secrets.token_hex(4)}"
        root = Path(root_of.get(name.replace("-", "_")) or reader.folder / f"root-{name}")
        root.mkdir(exist_ok=True)
        made.append(Box(name, kind="local", root=str(root), engine=[str(FAKE_ENGINE)], tmux_socket=socket))
        stack.callback(unlink_socket, socket)
        stack.callback(subprocess.run, ["tmux", "-L", socket, "kill-server"], capture_output=True)
        add_box(file, made[-1])
    return made


def readme(world: World, reader: Reader, stack: ExitStack) -> None:
    """No clone yet: the page makes it. uv installs from its cache, in the versions of these tests."""
    boxes(reader, stack, "h200-a")
    reader.home = reader.folder
    uv = shutil.which("uv") or str(REPOSITORY / ".uv" / "bin" / "uv")
    frozen = output_of(uv, "pip", "freeze", "--exclude-editable", "--python", sys.executable)
    (reader.folder / "versions.txt").write_text(frozen)
    reader.variables |= {
        "PATH": f"{Path(uv).parent}:{os.environ['PATH']}",
        "UV_CACHE_DIR": output_of(uv, "cache", "dir").strip(),
        "UV_CONSTRAINT": str(reader.folder / "versions.txt"),
    }
    reader.replaced = {"<this repository>": str(world.clone)}
    shutil.copytree(world.model, reader.folder / ".local/share/grpo-tui/demo/models/tiny")
    reader.variables["GRPO_TUI_TMUX_SOCKET"] = socket = f"grpo-docs-{secrets.token_hex(4)}"
    stack.callback(unlink_socket, socket)
    stack.callback(subprocess.run, ["tmux", "-L", socket, "kill-server"], capture_output=True)
    reader.screen = "press n"


def in_a_shell(world: World, reader: Reader, stack: ExitStack) -> None:
    """Runs, and a disk for backups."""
    prepare(world, reader, stack)
    destination(reader, stack, "disk")
    reader.outcomes = {"grpo-train stop --training-run RUN": (1, "is not running (finished)")}


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def tutorial(world: World, reader: Reader, stack: ExitStack) -> None:
    """Nothing: the page makes all that it needs."""


def after_the_tutorial(world: World, reader: Reader, stack: ExitStack) -> None:
    """The model and the run of the tutorial, and a config for the reader's own data."""
    prepare(world, reader, stack)
    root = world.golden("first").root
    reader.variables["LOCALFS_ROOT"] = str(root)
    task = {"task__name": "data", "task__path": "problems.csv", "task__template": "{question}="}
    (reader.home / "config.yaml").write_text(config_text(MICRO, run__total_steps=1, **task))
    shutil.copytree(world.model, root / "Qwen" / "Qwen2.5-0.5B")


def box_page(world: World, reader: Reader, stack: ExitStack) -> None:
    """Boxes by all names of the page; RUN is in the root of the first, which is asked without ``--box``."""
    prepare(world, reader, stack)
    root = reader.variables.pop("LOCALFS_ROOT")
    # The app is opened on h100, which is then the box without --box, once the app has noted it.
    first, *_ = boxes(reader, stack, "h200-a", "NAME", "server", "h100", "cluster", h200_a=root, h100=root)
    subprocess.run(["tmux", "-L", first.tmux_socket, "new-session", "-d", "-s", "SESSION"], check=True)
    for name in (".env", "my.env"):
        (reader.home / name).write_text("HF_TOKEN=hf_x\n")
    (reader.home / "train.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n')
    (reader.home / "my-clone-of-grpo-tui").symlink_to(".")
    (reader.home / ".git" / "info" / "exclude").write_text("my*\n.env\n*.csv\n*.txt\n*.jsonl\n")
    api = stack.enter_context(LambdaApi(reader.folder))
    api.instances = [instance("gh200", None)]
    rented = Box("gh200", provider=Provider("lambda", str(api.key_file), url=api.url), root="/data")
    add_box(reader.folder / ".config" / "grpo-tui" / "boxes.yaml", rented)
    reader.variables["SSL_CERT_FILE"] = str(api.certificate)
    reader.screen = "h100"
    reader.outcomes = {
        "grpo-tui boxes": (1, "gh200"),  # it has no address yet
        "grpo-tui gpu; grpo-tui sessions; grpo-tui capture SESSION; grpo-tui attach SESSION": (2, "needs a terminal"),
    }


def backups(world: World, reader: Reader, stack: ExitStack) -> None:
    """Box A has RUN, box B nothing but the model."""
    prepare(world, reader, stack)
    for folder in ("training_runs/OTHER", "eval_runs/OTHER_addition"):
        shutil.rmtree(Path(reader.variables["LOCALFS_ROOT"]) / folder)
    destination(reader, stack, "disk")
    other = reader.folder / "root-b"
    shutil.copytree(world.model, other / "models" / "tiny")
    reader.machines = {"box A": {}, "box B": {"LOCALFS_ROOT": str(other)}}


def histories(world: World, reader: Reader, stack: ExitStack) -> None:
    """A laptop that knows the runs, which are in a store, too."""
    stored(world, reader, stack)
    (reader.folder / "runs").symlink_to(reader.variables["LOCALFS_ROOT"])
    reader.run_words(["grpo-tui", "history", "rebuild", "--root", "~/runs"], {})


def stored(world: World, reader: Reader, stack: ExitStack) -> None:
    """Runs with a backup in ``s3``."""
    prepare(world, reader, stack)
    destination(reader, stack, "s3")
    code, output = reader.run_words(["grpo-train", "backup", "--training-run", "RUN"], {})
    assert code == 0, output


def tracked(world: World, reader: Reader, stack: ExitStack) -> None:
    """With a server of Weights & Biases, and a laptop that knows the runs."""
    histories(world, reader, stack)
    reader.variables |= stack.enter_context(wandb_server()).environment


def exported(world: World, reader: Reader, stack: ExitStack) -> None:
    """The base is a model of the hub; nothing is where the page exports to."""
    prepare(world, reader, stack)
    shutil.rmtree(reader.folder / "models")
    tiny = Path(reader.variables["LOCALFS_ROOT"]) / "models" / "tiny"
    (tiny / HUB_SOURCE).write_text(json.dumps({"model": "Qwen/Qwen2.5-0.5B@" + 40 * "a"}))


def with_cron(world: World, reader: Reader, stack: ExitStack) -> None:
    """A machine without systemd, whose crontab is a file."""
    prepare(world, reader, stack)
    (programs := reader.folder / "bin").mkdir()
    for name, text in (("systemctl", "exit 1"), ("crontab", "case $1 in -l) cat ~/tab ;; *) cat >~/tab ;; esac")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (reader.folder / "tab").touch()
    reader.variables["PATH"] = f"{programs}:{os.environ['PATH']}"


PREPARED: dict[str, Callable[[World, Reader, ExitStack], None]] = {
    "README.md": readme,
    "docs/backup.md": backups,
    "docs/boxes.md": box_page,
    "docs/export.md": exported,
    "docs/history.md": histories,
    "docs/runs.md": in_a_shell,
    "docs/own-task.md": after_the_tutorial,
    "docs/tracking.md": tracked,
    "docs/troubleshooting.md": after_the_tutorial,
    "docs/tutorial.md": tutorial,
    "docs/workflows.md": with_cron,
}
