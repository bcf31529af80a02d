"""Broken files for every command: what a crash, a full disk, another program or a slip of the hand leaves behind.

A *world* is a home, a working directory, a root with runs and a disk with backups. An *input* is one file of it and a
way to break it; the seed decides everything else. :data:`COMMANDS` has the commands of both programs with the kinds of
files that each one reads, :data:`READ_NOTHING` the others with the reason.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import yaml

from grpo_train.run_dir import RunDir
from tests.support.engine import MICRO, REPOSITORY, config_text, environment
from tests.support.forked import run_forked
from tests.support.patience import PATIENCE
from tests.support.sshd import Sshd
from tests.support.stores import other_disk

SEED = 35
WITHOUT_TORCH = forkserver.ForkServer()
"""Its forks are small: of a command that does not load torch, most of the time is the fork of a server that has it."""
WITHOUT_TORCH.set_forkserver_preload(
    [
        *(f"grpo_train.cli.{name}" for name in ("backup", "data", "history", "look", "plan", "report", "tidy")),
        "grpo_tui.shell.commands", "remote.client", "boto3", "pyarrow.parquet", "tests.support.forked",
    ]
)  # fmt: skip
LIMIT_S = 60.0
"""A command that takes longer, times ``PATIENCE``, hangs."""
DEPTH = 5_000
RUN, RESULTS = "root/training_runs/first", "root/eval_runs/first_addition"
STEP, LORA = f"{RUN}/training_state/step_2", "root/training_runs/lora/training_state/step_6"
USER = "home/.config/grpo-tui"
FILES: dict[str, list[str]] = {
    "config": ["work/cfg.yaml"],
    "foreign": ["work/trl.yaml", "work/verl.sh"],
    "code": ["work/reward.py"],
    "data": ["work/data.jsonl"],
    "table": ["work/data.csv"],
    "document": ["work/data.json"],
    "archive": ["work/data.jsonl.gz"],
    "parquet": ["work/data.parquet"],
    "variables": ["work/.env", "home/.grpo/.env"],
    "destinations": [f"{USER}/backup.yaml"],
    "bucket": ["home/.lambda_s3.env", "home/.aws/credentials", "home/.aws/config"],
    "tokens": ["home/.netrc", "home/.config/wandb/settings", "home/.cache/huggingface/token"],
    "boxes": [f"{USER}/boxes.yaml"],
    "ssh": ["home/.ssh/config", f"{USER}/known_hosts"],
    "app": [f"{USER}/{name}.yaml" for name in ("keymap", "columns", "alarms")],
    "app state": ["home/.local/state/grpo-tui/preferences.json"],
    "records": ["home/.local/share/grpo-tui/history.sqlite"],
    "launch": ["root/training_runs/waiting/launch.json"],
    "run": [f"{RUN}/{name}" for name in ("launch.json", "status.json", "config.yaml", ".backup.json")],
    "logs": [
        f"{RUN}/logs/{name}.jsonl"
        for name in ("train_log", "events", "rollouts", "ratios", "tokens", "eval_log", "gpu")
    ],
    "checkpoint": [
        f"{STEP}/{name}"
        for name in ("MANIFEST.json", "training_info.json", "optimizer.pt", "rng.pt", "scheduler.pt", "probes.pt")
    ],
    "weights": [
        f"{STEP}/model/{name}"
        for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    ],
    "adapter": [f"{LORA}/model/{name}" for name in ("adapter_config.json", "adapter_model.safetensors")],
    "model": [
        f"root/models/tiny/{name}"
        for name in ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json")
    ],
    "evaluation": [f"{RESULTS}/{name}" for name in ("status.json", "eval_config.yaml", "consolidated_metrics.csv")],
    "results": [
        f"{RESULTS}/step_2_addition/{name}"
        for name in ("metrics.csv", "summary.json", "completions.jsonl", "timing.json")
    ],
    "snapshot": ["disk/MANIFEST"],
    "sweep": ["root/sweeps/grid/sweep.json"],
    "questions": ["work/questions.txt"],
    "request": ["work/request.json"],
    "secrets": ["work/secrets.env"],
}
"""The files that are broken, by kind. ``disk/MANIFEST`` stands for the newest snapshot's file in the backup."""
OF_A_RUN = ("run", "logs", "checkpoint")
OF_RESULTS = ("evaluation", "results")


@dataclass(frozen=True)
class Command:
    """A command line, the kinds of files that it reads, and the one on its standard input."""

    words: tuple[str, ...]
    kinds: tuple[str, ...]
    stdin: str = ""
    is_heavy: bool = False
    """It loads a model or trains, if nothing refuses the input."""
    whole: int = 0
    """Exit code where nothing is broken."""

    @property
    def name(self) -> str:
        """The program and its command."""
        return " ".join(word for word in self.words[:2] if not word.startswith("-"))


def _command(line: str, *kinds: str, stdin: str = "", is_heavy: bool = False, whole: int = 0) -> Command:
    return Command(tuple(line.split()), kinds, stdin, is_heavy, whole)


COMMANDS = [
    _command("grpo-train plan --cfg cfg.yaml", "config", "variables", "logs"),
    _command("grpo-train plan --training-run first", "run", "logs"),
    _command(
        "grpo-train train --cfg cfg.yaml --run-name new", "config", "code", "data", "model", "destinations",
        is_heavy=True,
    ),
    _command("grpo-train train --cfg lora.yaml --ckpt $LORA --run-name new", "adapter", "model", is_heavy=True),
    _command("grpo-train resume --training-run first --additional-steps 1 --dry-run --json", *OF_A_RUN, "weights"),
    _command(
        "grpo-train resume --training-run first --additional-steps 1",
        "run", "checkpoint", "weights", is_heavy=True,
    ),
    _command("grpo-train resume --training-run lora --additional-steps 1", "adapter", "model", is_heavy=True),
    _command("grpo-train stop --training-run first", "run", whole=1),
    _command("grpo-train stop --training-run first --now", "run", whole=1),
    _command("grpo-train sweep cfg.yaml --name grid", "config", "sweep", "data", is_heavy=True),
    _command("grpo-train keeper --once", "run", "launch"),
    _command("grpo-train supervise waiting", "launch", "data", "code", is_heavy=True),
    _command("grpo-train check-launch --json", "request", stdin="work/request.json"),
    _command(
        "grpo-train eval --training-run first --num-problems 4",
        "run", "checkpoint", "weights", *OF_RESULTS, is_heavy=True,
    ),
    _command("grpo-train eval --model tiny --cfg cfg.yaml --num-problems 4", "config", "data", "model", is_heavy=True),
    _command(
        "grpo-train generate - --training-run first",
        "questions", "run", "weights", stdin="work/questions.txt", is_heavy=True,
    ),
    _command("grpo-train generate --training-run lora --index 0", "adapter", "model", is_heavy=True),
    _command("grpo-train regrade --training-run first", "run", *OF_RESULTS),
    _command("grpo-train compare --training-run first --steps 0,2", "run", *OF_RESULTS),
    _command("grpo-train compare --training-run first --with second", "run", *OF_RESULTS),
    _command("grpo-train runs", "run", "launch", "logs", *OF_RESULTS),
    _command("grpo-train runs --json", "run", "launch", "logs", *OF_RESULTS),
    _command("grpo-train show first", *OF_A_RUN, *OF_RESULTS),
    _command("grpo-train report first second -o out.html", *OF_A_RUN, *OF_RESULTS),
    _command("grpo-train history show first", *OF_A_RUN, *OF_RESULTS),
    _command("grpo-train history --json", "launch", *OF_A_RUN, *OF_RESULTS),
    _command("grpo-train history --from disk", "destinations", "snapshot"),
    _command("grpo-train usage first", "run", "logs", *OF_RESULTS),
    _command("grpo-train track --training-run first --mode offline", "run", "logs", "tokens", is_heavy=True),
    _command("grpo-train platform --cfg cfg.yaml --json", "config", "variables", "tokens", "model"),
    _command("grpo-train env", "variables"),
    _command("grpo-train fit --cfg cfg.yaml", "config", "model", is_heavy=True),
    _command("grpo-train selftest --cfg cfg.yaml", "config", is_heavy=True),
    _command("grpo-train backup --training-run first --to disk", "destinations", *OF_A_RUN, *OF_RESULTS, "snapshot"),
    _command("grpo-train backup --training-run first --to s3", "destinations", "bucket", whole=2),
    _command("grpo-train backup-all --to disk --dry-run", "destinations", "launch", *OF_A_RUN, *OF_RESULTS, "snapshot"),
    _command("grpo-train list-backups --from disk", "destinations", "run", "snapshot"),
    _command("grpo-train list-backups --from s3 --json", "destinations", "bucket", whole=2),
    _command("grpo-train destinations", "destinations"),
    _command("grpo-train verify-backup --to disk", "destinations", "snapshot", "run"),
    _command("grpo-train restore --training-run first --from disk --as again", "destinations", "snapshot"),
    _command(
        "grpo-train cleanup --training-run first --to disk --keep-latest --yes",
        "destinations", *OF_A_RUN, "snapshot",
    ),
    _command("grpo-train archive first --to disk", "destinations", *OF_A_RUN, *OF_RESULTS, "snapshot"),
    _command("grpo-train clean --yes", "run", "launch"),
    _command("grpo-train prune-backups --to disk --yes", "destinations", "snapshot"),
    _command(
        "grpo-train safe-to-terminate --to disk --json",
        "destinations", *OF_A_RUN, *OF_RESULTS, "snapshot", whole=1,
    ),
    _command("grpo-train fetch $TINY --to fetched", "model"),
    _command("grpo-train fetch s3://bucket/model/ --from s3 --to fetched", "destinations", "bucket", whole=2),
    _command("grpo-train check-dataset --cfg cfg.yaml", "config", "data", "code", "model"),
    _command("grpo-train check-dataset data.jsonl --reward reward.py:length", "data", "code", "variables"),
    _command("grpo-train check-dataset data.csv --json", "table"),
    _command("grpo-train check-dataset data.json", "document"),
    _command("grpo-train check-dataset data.jsonl.gz", "archive"),
    _command("grpo-train check-dataset data.parquet", "parquet"),
    _command("grpo-train import-config trl.yaml", "foreign"),
    _command("grpo-train import-config verl.sh", "foreign", whole=3),
    _command("grpo-train export --training-run first", "run", "checkpoint", "weights", *OF_RESULTS, is_heavy=True),
    _command("grpo-train export --training-run lora --merge", "adapter", "model", is_heavy=True),
    _command("grpo-tui --root $ROOT", "boxes", "app", "app state", whole=2),
    _command("grpo-tui boxes --json", "boxes", "ssh", whole=1),
    _command("grpo-tui instances", "boxes", whole=2),
    _command("grpo-tui doctor --box far", "boxes", "ssh", whole=2),
    _command(
        "grpo-tui doctor --root $ROOT --cfg cfg.yaml --json", "config", "run", "variables", is_heavy=True, whole=1,
    ),
    _command("grpo-tui up cfg.yaml --box far --with-changes", "boxes", "config", whole=1),
    _command("grpo-tui env put secrets.env --root $ROOT --dry-run", "boxes", "secrets"),
    _command("grpo-tui sync --box far --with-changes", "boxes", "ssh", whole=1),
    _command("grpo-tui runs --root $ROOT", "boxes", "run", "logs", *OF_RESULTS),
    _command("grpo-tui show first --root $ROOT", "boxes", *OF_A_RUN, *OF_RESULTS),
    _command("grpo-tui tail first train_log --root $ROOT", "boxes", "run", "logs"),
    _command("grpo-tui gpu --root $ROOT", "boxes"),
    _command("grpo-tui sessions --root $ROOT", "boxes"),
    _command("grpo-tui capture first --root $ROOT", "boxes", "run", whole=2),
    _command("grpo-tui attach first --root $ROOT", "boxes", "run", whole=2),
    _command("grpo-tui launch cfg.yaml --root $ROOT --dry-run", "boxes", "config", "data", "code", is_heavy=True),
    _command("grpo-tui resume first --additional-steps 1 --root $ROOT --dry-run", "boxes", "run", "checkpoint"),
    _command("grpo-tui eval first --root $ROOT --dry-run", "boxes", "run", "checkpoint"),
    _command("grpo-tui stop first --root $ROOT", "boxes", "run", whole=1),
    _command("grpo-tui kill first --yes --root $ROOT", "boxes", "run", whole=1),
    _command("grpo-tui history", "records"),
    _command("grpo-tui mcp --box far", "boxes"),
    _command(
        "grpo-tui history rebuild --root $ROOT",
        "records", "boxes", "destinations", "launch", *OF_A_RUN, *OF_RESULTS,
    ),
    _command("grpo-tui cost --json", "records", "boxes"),
    _command("grpo-tui get first copied --root $ROOT", "boxes", *OF_A_RUN, *OF_RESULTS),
    _command("grpo-tui put data.jsonl datasets/new.jsonl --root $ROOT", "boxes", "data"),
]  # fmt: skip
READ_NOTHING = {
    "grpo-train tensorboard": "serves tensorboard/ to TensorBoard, which reads it, until nobody is connected",
    "grpo-train join": "waits for a run that another machine supervises",
    "grpo-train tasks": "prints a table of the program",
    "grpo-train device": "asks torch",
    "grpo-train bench": "measures random weights",
    "grpo-train tiny-model": "writes a model",
    "grpo-train fetch-model": "reads the hub",
    "grpo-train init": "writes the program's own examples",
    "grpo-train schema": "prints what the program contains",
    "grpo-train completion": "prints a script of the program",
    "grpo-tui completion": "prints a script of the program",
    "grpo-tui skill": "writes what the program contains",
    "grpo-tui tensorboard": "waits until Ctrl-C",
}
"""Commands that are not fed, and why."""


# ---------------------------------------------------------------------------------------------------------- the world


def _texts(endpoint: str, work: Path, sshd: Sshd) -> dict[str, str]:
    """The files of a world that no command wrote; ``work``: its working directory; ``sshd``: lets nobody in."""
    config = config_text(
        MICRO, run__total_steps=1, task__name="data", task__path=f"{work}/data.jsonl",
        task__rewards=[f"{work}/reward.py:length"], rollout__max_prompt_length=160,
    )  # fmt: skip
    request = {"config_text": config_text(MICRO), "config_name": "cfg.yaml", "overrides": [], "nproc": 1, "ckpt": ""}
    box = {"name": "far", "host": "127.0.0.1", "port": sshd.port, "user": "nobody", "price_per_hour": 2.49}
    rows = [{"question": f"{n}+{n}", "answer": str(2 * n)} for n in range(8)]
    return {
        "work/cfg.yaml": config,
        "work/lora.yaml": config_text(MICRO, model__adapter="lora", run__total_steps=1),
        "work/trl.yaml": yaml.safe_dump(
            {
                "model_name_or_path": "tiny",
                "dataset_name": "a/b",
                "max_steps": 10,
                "num_generations": 4,
                "reward_funcs": ["accuracy_reward", "get_soft_overlong_punishment"],
                "reward_weights": [1.0, 0.5],
                "max_completion_length": 1280,
                "use_peft": True,
                "lora_target_modules": ["q_proj"],
                "top_p": 0.9,
                "lr_scheduler_type": "cosine_with_min_lr",
                "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
                "scale_rewards": False,
                "report_to": ["wandb"],
                "eval_strategy": "steps",
                "eval_steps": 0.5,
            }
        ),
        "work/verl.sh": "#!/bin/bash\npython3 -m verl.trainer.main_ppo \\\n  algorithm.adv_estimator=grpo \\\n"
        "  actor_rollout_ref.rollout.n=4 trainer.total_epochs=2 data.train_files=\"['a.parquet']\"\n",
        "work/reward.py": "def length(completions, **rows):\n    return [0.5 for _ in completions]\n",
        "work/data.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "work/data.csv": "question,answer\n1+1,2\n2+2,4\n",
        "work/data.json": json.dumps(rows, indent=1),
        "work/questions.txt": "1+1\n2+2\n",
        "work/request.json": json.dumps(request, indent=1),
        "work/.env": "WANDB_ENTITY=team\nNOTIFY_URL=https://example.com/x\n",
        "work/secrets.env": "HF_TOKEN=hf_not_real\n",
        "home/.grpo/.env": "HF_TOKEN=hf_not_real\nexport WANDB_PROJECT='grpo'\n",
        "home/.lambda_s3.env": (
            f"export AWS_ACCESS_KEY_ID=ABC\nAWS_SECRET_ACCESS_KEY='def'\nAWS_ENDPOINT_URL={endpoint}\n"
        ),
        "home/.aws/credentials": "[default]\naws_access_key_id = ABC\naws_secret_access_key = def\n",
        "home/.aws/config": f"[default]\nregion = us-east-1\nendpoint_url = {endpoint}\n",
        "home/.netrc": f"machine 127.0.0.1\n  login user\n  password {'0' * 40}\n",
        "home/.config/wandb/settings": "[default]\nentity = team\nproject = grpo\n",
        "home/.cache/huggingface/token": "hf_not_real\n",
        "home/.ssh/config": f"Host far\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User nobody\n",
        f"{USER}/known_hosts": f"far {Path(f'{sshd.host_key}.pub').read_text()}",
        f"{USER}/boxes.yaml": yaml.safe_dump({"boxes": [box]}),
        f"{USER}/keymap.yaml": "launch: N\nstop: s\n",
        f"{USER}/columns.yaml": "columns: [step, reward]\n",
        f"{USER}/alarms.yaml": "alarms:\n  - grad_norm > 10\n",
        "home/.local/state/grpo-tui/preferences.json": json.dumps({"box": "local", "runs": {"local": "first"}}),
        "root/sweeps/grid/sweep.json": json.dumps({"runs": {"grid_cfg": "cfg.yaml"}, "overrides": []}),
        f"{RUN}/logs/gpu.jsonl": json.dumps({"time": "2026-11-22T08:00:00.000Z", "gpus": [{"use": 50}]}) + "\n",
        "root/training_runs/waiting/launch.json": json.dumps(
            {"run_id": "waiting-1", "config_text": config, "config_name": "cfg.yaml", "overrides": []}, indent=1
        ),
    }


class World:
    """Whole files in ``kept``, from which ``here`` is made anew before each command."""

    def __init__(self, folder: Path, disk: Path, endpoint: str, sshd: Sshd, first: Path, lora: Path) -> None:
        """``first``, ``lora``: roots with the golden runs. ``disk``: an empty directory on another disk."""
        self.here, self._kept = folder / "world", folder / "kept"
        self._disk, self._disk_kept = disk / "here", disk / "kept"
        self._kept.mkdir()
        shutil.copytree(first, self._kept / "root", symlinks=True)
        shutil.copytree(lora / "training_runs/lora", self._kept / LORA.partition("/training_state")[0], symlinks=True)
        for place, text in _texts(endpoint, self.here / "work", sshd).items():
            (self._kept / place).parent.mkdir(parents=True, exist_ok=True)
            (self._kept / place).write_text(text)
        for name in (".lambda_s3.env", ".grpo/.env", ".netrc"):
            (self._kept / "home" / name).chmod(0o600)
        (self._kept / "work/data.jsonl.gz").write_bytes(gzip.compress((self._kept / "work/data.jsonl").read_bytes()))
        _write_parquet(self._kept / "work/data.parquet")
        destinations = [
            {"name": "disk", "folder": str(self._disk)},
            {"name": "s3", "bucket": "bucket", "endpoint": endpoint, "credentials": "~/.lambda_s3.env"},
        ]
        (self._kept / USER / "backup.yaml").write_text(yaml.safe_dump({"destinations": destinations}))
        self._disk_kept.mkdir()
        self.renew()
        for line in (
            "grpo-train backup --training-run first --to disk",
            "grpo-train history",
            "grpo-tui history rebuild --root $ROOT",
        ):
            done = self.run(_command(line))
            assert done.returncode == 0, done
        shutil.rmtree(self._kept)
        shutil.rmtree(self._disk_kept)
        shutil.copytree(self.here, self._kept, symlinks=True)
        shutil.copytree(self._disk, self._disk_kept, symlinks=True)

    def renew(self) -> None:
        """Make every file whole again, once no process of the last command can write one: an agent ends later."""
        left = [process for process in psutil.process_iter() if _home_of(process) == str(self.here / "home")]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left)
        for here, kept in ((self.here, self._kept), (self._disk, self._disk_kept)):
            shutil.rmtree(here, ignore_errors=True)
            shutil.copytree(kept, here, symlinks=True)

    def run_whole(self, command: Command) -> tuple[subprocess.CompletedProcess[str], set[str]]:
        """Run a command on whole files: how it ends, and the places of :data:`FILES` that it reads."""
        self.renew()
        paths = {place: path for places in FILES.values() for place in places if (path := self.path(place)).exists()}
        for path in paths.values():
            os.utime(path, ns=(0, path.stat().st_mtime_ns))  # older than its change: Linux notes the next read
        done = self.run(command)
        return done, {place for place, path in paths.items() if path.exists() and path.stat().st_atime_ns > 0}

    def path(self, place: str) -> Path:
        """Where a place of :data:`FILES` is."""
        if place == "disk/MANIFEST":
            return max(path for path in self._disk.rglob("*.json") if "snapshots" in str(path))
        return self.here / place

    def run(self, command: Command) -> subprocess.CompletedProcess[str]:
        """Run a command as its program does. Raises TimeoutExpired where it hangs."""
        places = {
            "$ROOT": self.here / "root",
            "$LORA": self.here / LORA / "model",
            "$TINY": self.here / "root/models/tiny",
        }
        words = [str(places.get(word, word)) for word in command.words]
        module = {"grpo-train": "grpo_train.cli", "grpo-tui": "grpo_tui.cli"}[words[0]]
        stdin = str(self.path(command.stdin)) if command.stdin else os.devnull
        home = self.here / "home"
        variables = {
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "XDG_STATE_HOME": str(home / ".local/state"),
            "XDG_DATA_HOME": str(home / ".local/share"),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "HF_HOME": str(home / ".cache/huggingface"),
            "HF_HUB_OFFLINE": "1",
            "WANDB_BASE_URL": "http://127.0.0.1:9",
            "AWS_EC2_METADATA_DISABLED": "true",
            "PYTHONPATH": str(REPOSITORY),
        }
        usual = {
            k: v for k, v in environment(self.here / "root").items() if not k.startswith(("AWS_", "HF_", "WANDB_"))
        }
        words = ["tests.support.broken_inputs", stdin, module, *words[1:]]
        server = None if command.is_heavy else WITHOUT_TORCH
        return run_forked(words, {**usual, **variables}, self.here / "work", PATIENCE * LIMIT_S, server=server)


def _home_of(process: psutil.Process) -> str:
    """``HOME`` of a process; "" of one that has ended or is another user's."""
    try:
        return process.environ().get("HOME", "")
    except (psutil.Error, OSError):
        return ""


class _Refuses(BaseHTTPRequestHandler):
    """A store that has no right for anybody."""

    def do_GET(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *about: object) -> None:
        pass


@contextmanager
def new_world(folder: Path, golden: Callable[[str], RunDir]) -> Iterator[World]:
    """A world in an empty directory."""
    store = ThreadingHTTPServer(("127.0.0.1", 0), _Refuses)
    with other_disk(folder) as disk, store, Sshd(folder) as sshd:
        threading.Thread(target=store.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{store.server_port}"
        yield World(folder, disk, endpoint, sshd, golden("first").root, golden("lora").root)
        store.shutdown()


def _write_parquet(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"question": ["1+1", "2+2"], "answer": ["2", "4"]}), path)


# -------------------------------------------------------------------------------------------------------- the damages


@dataclass(frozen=True)
class Input:
    """A file of the world and how it is broken."""

    place: str
    how: str

    def __str__(self) -> str:
        return f"{self.place} {self.how}"

    def reaches_a_box(self, command: Command) -> bool:
        """Whether a command of the app may start an agent with this input."""
        return command.words[0] == "grpo-tui" and "$ROOT" in command.words and not self.place.startswith(USER)

    def put_into(self, world: World) -> None:
        """Break the file."""
        path = world.path(self.place)
        draw = random.Random(f"{SEED} {self}")
        if self.how in PATHS:
            if path.exists():
                path.unlink()
            path.parent.mkdir(parents=True, exist_ok=True)
            PATHS[self.how](path)
            return
        whole = path.read_bytes() if path.exists() else b""
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.how in ALIASES:
            path.write_bytes(ALIASES[self.how])
            return
        change = BYTES.get(self.how)
        path.write_bytes(change(whole, draw) if change else _changed(path, whole, self.how, draw))


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


PATHS: dict[str, Callable[[Path], object]] = {
    "directory": lambda path: path.mkdir(),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to itself": _loop,
}
BYTES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "empty": lambda data, draw: b"",
    "cut": lambda data, draw: data[: draw.randrange(len(data) or 1)],
    "binary": lambda data, draw: draw.randbytes(3_000),
    "utf-16": lambda data, draw: data.decode(errors="replace").encode("utf-16"),
    "bom": lambda data, draw: b"\xef\xbb\xbf" + data,
    "not utf-8": lambda data, draw: _inserted(data, b"\xff\xfe\xe9", draw),
    "null bytes": lambda data, draw: _inserted(data, bytes(8), draw),
    "crlf": lambda data, draw: data.replace(b"\n", b"\r\n"),
    "only spaces": lambda data, draw: b" \n\t\n",
    "long line": lambda data, draw: data + b"x" * 3_000_000 + b"\n",
    "nested": lambda data, draw: b"[" * DEPTH + b"]" * DEPTH + b"\n",
    "nested maps": lambda data, draw: b'{"a":' * DEPTH + b"1" + b"}" * DEPTH + b"\n",
    "list": lambda data, draw: b"[1, 2]\n",
    "text": lambda data, draw: b'"text"\n',
    "number": lambda data, draw: b"17\n",
    "null": lambda data, draw: b"null\n",
    "doubled": lambda data, draw: data + data,
}
ALIASES: dict[str, bytes] = {
    "alias of itself": b"run: &a [*a]\n",
    "aliases of aliases": b"a: &a [x, x, x, x, x, x, x, x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (98 + n, 98 + n, b", ".join([b"*%c" % (97 + n)] * 8)) for n in range(12)),
    "a date that is none": b"run: 2026-13-45\n",
}
"""Of YAML."""
VALUES: dict[str, Any] = {
    "as null": None,
    "as text": "text",
    "as empty text": "",
    "as number": 17,
    "as negative number": -1,
    "as list": [1, [2]],
    "as map": {"a": {"b": 1}},
    "as true": True,
    "as nan": float("nan"),
    "as infinity": float("inf"),
    "as huge number": 10**400,
    "as half a character": "a\ud800b",
    "as control characters": "\x1b[31m\x00\x07",
}
"""What one value of a document becomes."""
DOCUMENTS = (".json", ".jsonl", ".yaml", ".yml")
LINES = (".env", ".csv", ".txt", "credentials", "config", "settings", ".netrc", "known_hosts")


def ways(place: str) -> list[str]:
    """How a file can be broken."""
    suffix = Path(place).suffix or Path(place).name
    if place == "disk/MANIFEST":
        suffix = ".json"
    document = [*VALUES, "as nested", "without a key", "with a key twice", "every value as text"]
    aliases = ALIASES if suffix in (".yaml", ".yml") else ()
    return [*PATHS, *BYTES, *aliases, *(document if suffix in DOCUMENTS else [])]


def _inserted(data: bytes, piece: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + piece + data[at:]


def _changed(path: Path, data: bytes, how: str, draw: random.Random) -> bytes:
    """A document with one value changed, in a line of its own in a log."""
    if path.suffix == ".jsonl":
        lines = data.splitlines() or [b"{}"]
        at = draw.randrange(len(lines))
        lines[at] = _changed_json(lines[at], how, draw)
        return b"\n".join(lines) + b"\n"
    if path.suffix in (".yaml", ".yml"):
        document = yaml.safe_load(data)
        if how == "with a key twice":
            return data + data.splitlines()[0] + b" 1\n"
        return yaml.safe_dump(_altered(document, how, draw), allow_unicode=False, sort_keys=False).encode()
    return _changed_json(data or b"{}", how, draw)


def _changed_json(data: bytes, how: str, draw: random.Random) -> bytes:
    document = json.loads(data)
    if how == "with a key twice":
        text = json.dumps(document)
        return text.replace("{", '{"run": 1, "step": "x", "state": 2, ', 1).encode()
    return json.dumps(_altered(document, how, draw)).encode()


def _altered(document: Any, how: str, draw: random.Random) -> Any:
    if how == "every value as text":
        return _all_text(document)
    places = list(_places(document))
    if not places:
        return document
    holder, key = draw.choice(places)
    if how == "without a key":
        del holder[key]
    elif how == "as nested":
        value: Any = 1
        for _ in range(100):  # deeper ones are written as text: "nested"
            value = [value]
        holder[key] = value
    else:
        holder[key] = VALUES[how]
    return document


def _all_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _all_text(item) for key, item in value.items()}
    return [_all_text(item) for item in value] if isinstance(value, list) else "text"


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a document with each of its keys or positions."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield document, key
        yield from _places(value)


WRITTEN_BY_HAND = (
    "config", "foreign", "code", "data", "table", "document", "variables", "secrets", "destinations", "bucket", "boxes",
    "ssh", "app", "request", "questions",
)  # fmt: skip
DRAWN = 8
"""Ways in which each file of a program is broken. Those that people write are broken in every way."""


def inputs_of(kind: str) -> list[Input]:
    """The inputs of a kind of files."""
    found = []
    for place in FILES[kind]:
        every = ways(place)
        drawn = every if kind in WRITTEN_BY_HAND else random.Random(f"{SEED} {place}").sample(every, DRAWN)
        found += [Input(place, how) for how in drawn]
    return found


def inputs() -> list[Input]:
    """The corpus."""
    return [each for kind in FILES for each in inputs_of(kind)]


def pairs() -> list[tuple[Command, Input]]:
    """Every command with every input of the kinds that it reads."""
    return [(command, each) for command in COMMANDS for kind in command.kinds for each in inputs_of(kind)]


def fed_to(command: Command, reads: Collection[str]) -> list[tuple[Command, Input]]:
    """A command with the inputs of its kinds, and with every file that it reads as an unreadable one.

    Of a file that it does not read only whether it is there, and what, can matter. All commands read the variables by
    the same function.
    """
    of_kinds = [each for kind in command.kinds for each in inputs_of(kind)]
    fed = [each for each in of_kinds if each.place in reads or each.how in PATHS]
    places = sorted(set(reads) - {*FILES["variables"]} | {each.place for each in of_kinds if each.place in reads})
    unreadable = [Input(place, how) for place in places for how in ("binary", "directory")]
    return [(command, each) for each in dict.fromkeys([*fed, *unreadable])]


def some_pairs(count: int) -> list[tuple[Command, Input]]:
    """Pairs of commands that load no model and start no agent, each command in turn, drawn by the seed."""
    draw = random.Random(SEED)
    light = [(command, each) for command, each in pairs() if not command.is_heavy and not each.reaches_a_box(command)]
    draw.shuffle(light)
    by_command: dict[Command, list[tuple[Command, Input]]] = {}
    for pair in light:
        by_command.setdefault(pair[0], []).append(pair)
    rounds = itertools.zip_longest(*by_command.values())
    return [pair for one in rounds for pair in one if pair is not None][:count]


RAW = re.compile(
    r"Traceback \(most recent|internal error|\b(?:Key|Type|Attribute|Index|Value|Recursion|Assertion|Overflow)Error\b|"
    r"\bobject has no attribute\b|\bobject is not (?:subscriptable|iterable|callable)\b|NoneType|maximum recursion|"
    r"not supported between instances|unhashable type",
    re.IGNORECASE,
)
"""What only Python says."""


CARRIED = ("checkpoint", "weights", "model", "logs", "evaluation", "results", "config")
SILENT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ["grpo-train backup", "grpo-train backup-all", "grpo-train list-backups"],
        (*CARRIED, "run", "launch", "sweep"),  # copied or compared byte for byte, whatever they say
    ),
    **dict.fromkeys(["grpo-train cleanup", "grpo-train archive"], CARRIED),
    "grpo-tui get": (*CARRIED, "run", "launch"),
    "grpo-tui show": ("launch",),  # of another run
    **dict.fromkeys(["grpo-tui put", "grpo-train fetch"], (*CARRIED, "data")),
    **dict.fromkeys(
        ["grpo-tui tail", "grpo-tui gpu", "grpo-tui sessions", "grpo-tui launch", "grpo-tui resume", "grpo-tui eval"],
        ("run", "launch", *OF_RESULTS, "logs"),  # they show nothing of the runs beside the one that they name
    ),
}
"""By command the kinds of files that it reads and need not name: it does not use what they say."""
UNREADABLE = ("binary", "utf-16", "directory", "link to itself")
"""Ways to break a file after which nothing of it can be used: a command that reads it fails or names it."""


def problem_of(done: subprocess.CompletedProcess[str], unused: str = "") -> str:
    """What is wrong with how a command took an input; "" if nothing is. ``unused``: a file that it cannot have used."""
    text = re.sub("cannot load the .*", "", f"{done.stdout}\n{done.stderr}")  # with a library's own words
    if found := RAW.search(text):
        return f"says {found[0]!r}"
    if done.returncode not in (0, 1, 2, 3):
        return f"exit code {done.returncode}"
    if done.returncode and not text.strip():
        return f"exit code {done.returncode} without a word"
    if not done.returncode and unused not in text:
        return f"does not name {unused}"
    return ""


def failures(
    world: World, fed: Sequence[tuple[Command, Input]], exits: Counter[int] | None = None, reads: Collection[str] = ()
) -> list[tuple[str, str, str]]:
    """Command, input and defect of each pair that ends in another way than with a sentence; counts exit codes.

    ``reads``: places that the command reads, so that it must name an unreadable one, unless it replaces it.
    """
    found = []
    for command, broken in fed:
        world.renew()
        path = world.path(broken.place)
        broken.put_into(world)
        before = _state(path)
        try:
            done = world.run(command)
        except subprocess.TimeoutExpired as expired:
            problem, code = f"hangs: {(expired.stderr or b'')[-4000:].decode(errors='replace')}", -1
        else:
            silent = {place for kind in SILENT.get(command.name, ()) for place in FILES[kind]}
            must_name = broken.how in UNREADABLE and broken.place in {*reads} - silent
            is_left = must_name and _state(path) == before
            name = path.name
            if broken.place == command.stdin:  # a shell opens it, and a command cannot know its name
                name = "" if broken.how == "link to itself" else "standard input"
            problem, code = problem_of(done, name if is_left else ""), done.returncode
            problem += f": {done.stderr[-2000:]}" if problem else ""
        if exits is not None:
            exits[code] += 1
        if problem:
            found.append((" ".join(command.words), str(broken), problem))
    return found


def _state(path: Path) -> tuple[int, int]:
    """Differs once a file was replaced or written."""
    facts = path.lstat() if os.path.lexists(path) else None
    return (facts.st_ino, facts.st_mtime_ns) if facts else (0, 0)


def main() -> None:
    """``python -m tests.support.broken_inputs FILE MODULE ARGUMENTS``: a module with this file as standard input."""
    try:
        stdin = os.open(sys.argv[1], os.O_RDONLY)
        os.dup2(stdin, 0)
    except OSError:  # a dangling link: the shell would not start the command
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
