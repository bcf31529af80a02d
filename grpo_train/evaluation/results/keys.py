"""Cache keys of evaluations: content hashes of everything the samples depend on. Torch-free.

Samples are reused or combined only under equal keys. A key has two parts. ``samples``: weights, tokenizer, problems
with their prompts, decoding parameters and :data:`SAMPLING`. ``grading``: the grader's source and the sandbox. If only
the second differs, completions are kept and judged again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpo_train
from grpo_train.evaluation.results.stored import digest
from grpo_train.rewards.user_code import files_of, folders_of, imported_names, load_function
from grpo_train.sandbox import isolation

if TYPE_CHECKING:
    from grpo_train.config.schema import Config
    from grpo_train.tasks import Task
from functools import lru_cache

from grpo_train.config.schema import Config
from grpo_train.evaluation.opponents import opponent_checkpoints, opponents_of
from grpo_train.evaluation.plan import EvalPlan, temperature_of
from grpo_train.evaluation.targets import Target
from grpo_train.policy.locate import adapter_of, base_of_checkpoint, hub_commit, hub_id, model_folder, resolve_backbone
from grpo_train.run_dir import sha256
from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.manifest import MANIFEST
from grpo_train.tasks import Problem, Task
from grpo_train.tasks.shared.base import plain_data
from grpo_train.tasks.shared.self_play import SelfPlayTask

# the part of grading: source of the grader, versions of its libraries, the sandbox -------------------------

PACKAGE = Path(grpo_train.__file__).parent if grpo_train.__file__ else Path(grpo_train.__path__[0])
INSTALLED = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")]
GRADING_ROOMS = ("rewards", "sandbox", "tasks", "games")
"""Packages whose modules are part of a grader that imports them."""


def grading_key(task: Task, config: Config) -> dict[str, Any]:
    """Source of everything that judges; for tasks that run programs also the sandbox and its isolation level.

    Raises SandboxError if the sandbox is unavailable or too weak.
    """
    key: dict[str, Any] = {"grader": grader_key(task, config)}
    if task.slow:
        key["sandbox"] = config.sandbox.model_dump(exclude={"workers", "allow_weak"})
        key["problem_seconds"] = config.eval.problem_seconds
        key["isolation"] = isolation().level
    return key


def grader_key(task: Task, config: Config) -> str:
    """Hash over the source of the task and the graders it imports, and the versions of third-party libraries."""
    files: dict[Path, None] = {}
    libraries: set[str] = set()
    functions = [name for name in (config.task.grader, config.task.name) if ":" in name]
    for judge in [inspect.getsourcefile(type(task)), *(file for name in functions for file in _files_of(name))]:
        if judge:
            _gather(Path(judge), files, libraries)
    sources: dict[str, str] = {}
    for file in files:
        sources[_name(file)] = sources.get(_name(file), "") + hashlib.sha256(file.read_bytes()).hexdigest()
    return digest({"sources": sources, "libraries": {name: _version(name) for name in sorted(libraries)}})


def _files_of(name: str) -> list[str | None]:
    """The source files of a user's function, which may be any object that can be called, and of its module."""
    function, source = load_function(name, "task.grader"), name.rpartition(":")[0]
    if source.endswith(".py"):
        return [str(Path(source).expanduser().absolute())]
    is_defined = inspect.isroutine(function) or inspect.isclass(function)
    return [sys.modules[source].__file__, inspect.getsourcefile(function) if is_defined else None]


def _gather(file: Path, files: dict[Path, None], libraries: set[str], folders: Sequence[Path] | None = None) -> None:
    """Add a source file and, recursively, its imports: files that grade, names of third-party libraries.

    ``folders``: where files of the user are looked up; None = those of this file.
    """
    if file in files:
        return
    files[file] = None
    if folders is None:
        is_own = not any(file.is_relative_to(path) for path in (PACKAGE, *INSTALLED))
        folders = folders_of(file) if is_own else []
    for module in imported_names(file, folders[-1] if folders else PACKAGE.parent):
        top, *rest = module.split(".")
        if top != "grpo_train":
            beside = files_of(module, folders)
            for each in beside:
                _gather(each, files, libraries, folders)
            if not beside and top not in sys.stdlib_module_names:
                libraries.add(top)
            continue
        if not rest or rest[0] not in GRADING_ROOMS:
            continue
        path = PACKAGE.joinpath(*rest)
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            # The list of all tasks is not part of any one task.
            if candidate.is_file() and candidate != PACKAGE / "tasks" / "__init__.py":
                _gather(candidate, files, libraries)


def _name(file: Path) -> str:
    return str(file.relative_to(PACKAGE)) if file.is_relative_to(PACKAGE) else file.name


def _version(library: str) -> str:
    """Version of the distribution that a top-level module most likely comes from."""
    try:
        return importlib.metadata.version(library.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:  # a distribution of another name
        return "unknown"


SAMPLING = 2
"""Version of how prompts are tokenized, where completions end, and how tokens become text. Raise it when one changes:
results of another version are evaluated again."""
TOKENIZER_FILES = (".jinja", ".json", ".txt", ".model")
"""Suffixes of the files beside the weights that determine a prompt's tokens: tokenizer and chat template."""


def key_of(plan: EvalPlan, target: Target, config: Config, task: Task, problems: Sequence[Problem]) -> dict[str, Any]:
    """Cache key of one checkpoint's evaluation. Raises PolicyError or OSError for missing weights, SandboxError."""
    samples = {
        "version": SAMPLING,
        "weights": weights_key(plan, target, config),
        "problems": problems_key(problems),
        "split": config.eval.split,
        "decoding": decoding(config, task),
        "seed": config.run.seed,
        "label": plan.label,
    }
    if isinstance(task, SelfPlayTask):
        paths = opponent_checkpoints(config, Path(plan.root))
        weights = [weights_key(plan, Target(path.name, 0, str(path)), config) for path in paths]
        samples |= {"opponents": opponents_of(task, config), "opponent_weights": weights}
    return {"samples": samples, "grading": grading_key(task, config)}


def decoding(config: Config, task: Task) -> dict[str, Any]:
    """Decoding parameters. The batch size is not one of them: every sample has its own seed."""
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
    """Fingerprint of the data: every problem with its templated prompt and its gold answer."""
    return digest(
        [
            [p.index, p.prompt, p.answer, p.question, list(p.messages), plain_data(p.data)]
            + ([plain_data(p.template_arguments)] if p.template_arguments else [])
            for p in problems
        ]
    )


def weights_key(plan: EvalPlan, target: Target, config: Config) -> dict[str, Any]:
    """Content hashes of weights and tokenizer, from the checkpoint's manifest if it has one.

    The manifest itself is verified when the weights are loaded.
    """
    root, path = Path(plan.root), Path(target.path)
    backbone = plan.base or base_of_checkpoint(path, root) or config.model.backbone
    if plan.is_backbone(target):
        return {"model": folder_key(resolve_backbone(backbone, root))}
    folder = model_folder(path)
    found = {"model": _manifest_key(folder) or folder_key(str(folder))}
    if adapter_of(folder) == "lora":
        found["base"] = folder_key(resolve_backbone(backbone, root))
    return found


@lru_cache(maxsize=8)
def folder_key(source: str) -> str:
    """Key of a model: the content of its directory's files, or the commit of a hub model."""
    folder = Path(source)
    if not folder.is_dir():
        name, commit = hub_id(source)
        return f"{name}@{commit or hub_commit(name) or 'unknown'}"
    files = [file for file in sorted(folder.iterdir()) if file.suffix in (".safetensors", ".bin", *TOKENIZER_FILES)]
    return digest({file.name: sha256(file) for file in files if file.name != MANIFEST})


def _manifest_key(folder: Path) -> str:
    """Key of a checkpoint's model, from the hashes in its manifest; "" without a manifest."""
    checkpoint = folder.parent if folder.name == "model" else folder
    inner = "" if checkpoint == folder else "model/"
    files = (read_json(checkpoint / MANIFEST) or {}).get("files")
    if not isinstance(files, dict):
        return ""
    return digest({name: entry["sha256"] for name, entry in sorted(files.items()) if name.startswith(inner)})
