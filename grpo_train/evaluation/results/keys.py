"""What the samples of an evaluation depend on, by content: only under equal keys are they reused or mixed. Torch-free.

A key has two parts. ``samples``: weights, tokenizer, problems with their prompts, decoding parameters. ``grading``:
the grader's source and the sandbox. Where only the second differs, completions are kept and judged again.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpo_train
from grpo_train.config.schema import Config
from grpo_train.evaluation.opponents import checkpoints_of, opponents_of
from grpo_train.evaluation.plan import EvalPlan, Target, temperature_of
from grpo_train.policy.locate import adapter_of, base_of_checkpoint, hub_commit, hub_id, model_folder, resolve_backbone
from grpo_train.rewards.user_code import load_function
from grpo_train.run_dir import sha256
from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.manifest import MANIFEST
from grpo_train.sandbox import isolation
from grpo_train.tasks import Problem, Task
from grpo_train.tasks.shared.self_play import SelfPlayTask

PACKAGE = Path(grpo_train.__file__).parent if grpo_train.__file__ else Path(grpo_train.__path__[0])
GRADING = ("rewards", "sandbox", "tasks", "games")
"""Rooms of this package whose source is part of a grader where the task uses it."""
NO_WEIGHTS = (".jinja", ".json", ".txt", ".model")
"""Files beside the weights that make a prompt's tokens: the tokenizer, its chat template."""


def key_of(plan: EvalPlan, target: Target, config: Config, task: Task, problems: Sequence[Problem]) -> dict[str, Any]:
    """The key of one checkpoint's evaluation. Raises PolicyError, OSError where the weights are not there."""
    samples = {
        "weights": weights_key(plan, target, config),
        "problems": problems_key(problems),
        "split": config.eval.split,
        "decoding": decoding(config, task),
        "seed": config.run.seed,
        "label": plan.label,
    }
    if isinstance(task, SelfPlayTask):
        places = checkpoints_of(config, Path(plan.root))
        against = [weights_key(plan, Target(place.name, 0, str(place)), config) for place in places]
        samples |= {"opponents": opponents_of(task, config), "opponent_weights": against}
    return {"samples": samples, "grading": grading_key(task, config)}


def digest(value: Any) -> str:
    """SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def decoding(config: Config, task: Task) -> dict[str, Any]:
    """What is generated with. Not the batch size: samples have seeds of their own."""
    return {
        "temperature": temperature_of(config, task),
        "top_p": config.eval.top_p,
        "num_samples": config.eval.num_samples,
        "max_completion_length": config.eval.max_completion_length or config.rollout.max_completion_length,
        "stop": list(task.stop),
        "dtype": config.model.dtype,
        "attention": config.model.attention,
    }


def problems_key(problems: Sequence[Problem]) -> str:
    """The data's fingerprint: every problem that is asked, its prompt with the template applied, what is right."""
    return digest([[p.index, p.prompt, p.answer, p.question, list(p.messages), _plain(p.data)] for p in problems])


def _plain(data: Any) -> Any:
    """A task's own data as JSON that is the same in every process (sets are ordered by hashes that are not)."""
    if isinstance(data, (str, int, float, bool, type(None))):
        return data
    if is_dataclass(data) and not isinstance(data, type):
        return {each.name: _plain(getattr(data, each.name)) for each in fields(data)}
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    if isinstance(data, (set, frozenset)):
        return sorted(map(repr, data))
    return type(data).__qualname__


def weights_key(plan: EvalPlan, target: Target, config: Config) -> dict[str, Any]:
    """Content hashes of the weights and the tokenizer: from the checkpoint's manifest where it has one.

    The manifest's word is verified when the weights are loaded.
    """
    root, path = Path(plan.root), Path(target.path)
    backbone = plan.base or base_of_checkpoint(path, root) or config.model.backbone
    if path == root:
        return {"model": folder_key(resolve_backbone(backbone, root))}
    folder = model_folder(path)
    own = {"model": _manifest_key(folder) or folder_key(str(folder))}
    if adapter_of(folder) == "lora":
        own["base"] = folder_key(resolve_backbone(backbone, root))
    return own


@lru_cache(maxsize=8)
def folder_key(source: str) -> str:
    """A model's directory by its files' content, or a hub model by its commit."""
    folder = Path(source)
    if not folder.is_dir():
        name, commit = hub_id(source)
        return f"{name}@{commit or hub_commit(name) or 'unknown'}"
    files = [file for file in sorted(folder.iterdir()) if file.suffix in (".safetensors", ".bin", *NO_WEIGHTS)]
    return digest({file.name: sha256(file) for file in files if file.name != MANIFEST})


def _manifest_key(folder: Path) -> str:
    """The same of a checkpoint, whose manifest has the hashes; "" without one."""
    checkpoint = folder.parent if folder.name == "model" else folder
    inner = "" if checkpoint == folder else "model/"
    files = (read_json(checkpoint / MANIFEST) or {}).get("files")
    if not isinstance(files, dict):
        return ""
    return digest({name: facts["sha256"] for name, facts in sorted(files.items()) if name.startswith(inner)})


# ------------------------------------------------------------------------------------------------------- grading


def grading_key(task: Task, config: Config) -> dict[str, Any]:
    """The source of all that judges, and for tasks that run programs the sandbox and how strong it is here.

    Raises SandboxError where the sandbox is too weak, or does not work at all.
    """
    key: dict[str, Any] = {"grader": grader_key(task, config)}
    if task.slow:
        key["sandbox"] = config.sandbox.model_dump(exclude={"workers", "allow_weak"})
        key["problem_seconds"] = config.eval.problem_seconds
        key["isolation"] = isolation().level
    return key


def grader_key(task: Task, config: Config) -> str:
    """A hash over the source of the task, of the graders it imports, and the versions of other libraries."""
    files: dict[Path, None] = {}
    libraries: set[str] = set()
    functions = [config.task.grader] if ":" in config.task.grader else []
    judges: list[Any] = [type(task), *(load_function(name, "task.grader") for name in functions)]
    for judge in judges:
        if file := inspect.getsourcefile(judge):
            _gather(Path(file), files, libraries)
    sources = {_name(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return digest({"sources": sources, "libraries": {name: _version(name) for name in sorted(libraries)}})


def _gather(file: Path, files: dict[Path, None], libraries: set[str]) -> None:
    """Add a source file and what it imports, wherever in it: files of the grading rooms, names of other libraries."""
    if file in files:
        return
    files[file] = None
    for module in _imports(file):
        top, *rest = module.split(".")
        if top != "grpo_train":
            if top not in sys.stdlib_module_names:
                libraries.add(top)
            continue
        if not rest or rest[0] not in GRADING:
            continue
        place = PACKAGE.joinpath(*rest)
        for candidate in (place.with_suffix(".py"), place / "__init__.py"):
            # The list of all tasks is no part of one.
            if candidate.is_file() and candidate != PACKAGE / "tasks" / "__init__.py":
                _gather(candidate, files, libraries)


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _name(file: Path) -> str:
    return str(file.relative_to(PACKAGE)) if file.is_relative_to(PACKAGE) else file.name


def _version(library: str) -> str:
    """The version of the distribution that a top-level module most likely comes from."""
    try:
        return importlib.metadata.version(library.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
