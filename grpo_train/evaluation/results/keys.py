"""Cache keys of evaluations: content hashes of everything the samples depend on. Torch-free.

Samples are reused or combined only under equal keys. A key has two parts. ``samples``: weights, tokenizer, problems
with their prompts, decoding parameters and :data:`SAMPLING`. ``grading``: the grader's source and the sandbox. If only
the second differs, completions are kept and judged again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.evaluation.opponents import opponent_checkpoints, opponents_of
from grpo_train.evaluation.plan import EvalPlan, temperature_of
from grpo_train.evaluation.results.grading_key import grading_key
from grpo_train.evaluation.results.stored import digest
from grpo_train.evaluation.targets import Target
from grpo_train.policy.locate import adapter_of, base_of_checkpoint, hub_commit, hub_id, model_folder, resolve_backbone
from grpo_train.run_dir import sha256
from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.manifest import MANIFEST
from grpo_train.tasks import Problem, Task
from grpo_train.tasks.shared.base import plain_data
from grpo_train.tasks.shared.self_play import SelfPlayTask

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
