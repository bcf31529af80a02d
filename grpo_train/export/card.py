"""The model card: README.md of an export, from the run's config, data, evaluations, versions and cost. Torch-free."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData

from grpo_train.config.schema import Config, TaskConfig
from grpo_train.evaluation.report.compare import stored_comparisons
from grpo_train.evaluation.results.stored import DamagedError, read_summary
from grpo_train.export.plan import ExportPlan
from grpo_train.history.cost import dollars
from grpo_train.rewards.signatures import TRL_PREFIX
from grpo_train.run_dir import RunDir, list_evaluations
from grpo_train.run_dir.display import duration, money, percent, setting
from grpo_train.run_dir.files import to_float
from grpo_train.run_dir.version import VERSION

SECTIONS = ("model", "task", "rollout", "algorithm", "optimizer", "train")
"""Sections of the config that the card shows."""
LIBRARIES = ("peft", "safetensors")


@dataclass(frozen=True)
class Result:
    """One evaluated step on one dataset."""

    dataset: str
    split: str
    step: int
    metrics: Mapping[str, Any]
    against_start: str
    """Paired comparison with step 0; "" without one."""


def model_card(plan: ExportPlan, notes: Sequence[str], price: float | None) -> str:
    """README.md with the hub's metadata.

    Args:
        notes: what a user must know about the export.
        price: dollars per hour; default: ``budget.price_per_hour``.
    """
    plan = replace(plan, config=Config.model_validate(_without_folders(plan.config.model_dump(mode="json"))))
    results = results_of(plan.run, plan.step)
    own = [each for each in results if each.step == plan.step]
    metadata = ModelCardData(
        base_model=plan.base_name or None,
        library_name="peft" if plan.is_adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["grpo", "reinforcement-learning", "grpo-tui"],
        datasets=[source for task in tasks_of(plan.config) if (source := hub_dataset(task))] or None,
        model_name=plan.run.name,
        eval_results=[_result_entry(each) for each in own] or None,
    )
    if plan.base_name:
        metadata["base_model_relation"] = "adapter" if plan.is_adapter else "finetune"
    sections = [
        f"# {plan.run.name}, step {plan.step}",
        _introduction(plan),
        *[f"> {note}" for note in notes],
        "## Use",
        _usage(plan),
        "## Training",
        "\n".join(_training(plan)),
        "## Data",
        "\n".join(map(_data, tasks_of(plan.config))),
        "## Evaluation",
        _table(results) if results else "This run was not evaluated.",
        "## Versions and cost",
        "\n".join(_versions(plan, price)),
        "## Configuration",
        f"Keys that differ from the defaults of grpo-tui {VERSION}:\n\n```yaml\n{config_text(plan.config)}```",
    ]
    return f"---\n{metadata.to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n"


def results_of(run: RunDir, step: int) -> list[Result]:
    """The complete evaluations of a step and of step 0, by dataset."""
    found = []
    for evaluation in list_evaluations(run.root, run.name):
        label = str(evaluation["status"].get("dataset"))
        for number in dict.fromkeys((0, step)):
            folder = run.root / "eval_runs" / evaluation["name"] / f"step_{number}_{label}"
            try:
                summary = read_summary(folder)
            except DamagedError:  # results that a crash cut off
                continue
            if summary:
                metrics = summary["metrics"]
                start = [each.text() for each in stored_comparisons(summary) if each.reference == "step_0"]
                found.append(Result(label, metrics.get("split", "test"), number, metrics, (start or [""])[0]))
    return found


def tasks_of(config: Config) -> list[TaskConfig]:
    """The task, or the parts of a mixture."""
    return config.task.parts or [config.task]


def hub_dataset(task: TaskConfig) -> str | None:
    """Hub ID of the data; None for files, whose place says nothing elsewhere, and generated tasks."""
    path = task.path
    if path and path.startswith("hf:"):
        return path.removeprefix("hf:").partition("@")[0].partition(":")[0]
    return "openai/gsm8k" if task.name.startswith("gsm8k") and not path else None


def config_text(config: Config) -> str:
    """The keys that make the model and differ from their defaults, as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json", include=set(SECTIONS), exclude_defaults=True), sort_keys=False)


def _without_folders(value: Any) -> Any:
    """A value of a config without directories of this machine; files keep their names."""
    if isinstance(value, dict):
        return {_without_folders(key): _without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    if not isinstance(value, str) or "\n" in value:
        return value
    prefix = TRL_PREFIX if value.startswith(TRL_PREFIX) else ""
    path = value.removeprefix(prefix)
    return prefix + os.path.basename(path.rstrip("/")) if path.startswith(("/", "~/", "./", "../")) else value


def _introduction(plan: ExportPlan) -> str:
    what = "A LoRA adapter for" if plan.is_adapter else "All weights of"
    at = f", commit `{plan.base_commit}`" if plan.base_commit else ""
    base = f"[{plan.base_name}](https://huggingface.co/{plan.base_name}){at}" if plan.base_name else "a local model"
    algorithm = f"reinforcement learning ({plan.config.algorithm.loss_type})"
    weights = "" if plan.is_adapter else f" Weights: {plan.dtype}."
    return f"{what} {base}, after training by {algorithm} on the task `{plan.config.task.name}` with grpo-tui.{weights}"


def _usage(plan: ExportPlan) -> str:
    load = (
        'model = AutoPeftModelForCausalLM.from_pretrained("THIS_MODEL")'
        if plan.is_adapter
        else 'model = AutoModelForCausalLM.from_pretrained("THIS_MODEL", dtype="auto")'
    )
    imports = "from transformers import AutoModelForCausalLM, AutoTokenizer"
    if plan.is_adapter:
        imports = "from peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer"
    budget = plan.config.rollout.max_completion_length
    return (
        "The chat template writes the prompts that the model was trained on: send the question as the user's message.\n"
        "\n```python\n"
        f"{imports}\n\n"
        f'{load}\ntokenizer = AutoTokenizer.from_pretrained("THIS_MODEL")\n'
        'messages = [{"role": "user", "content": "QUESTION"}]\n'
        'inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", '
        "return_dict=True)\n"
        f"output = model.generate(**inputs, max_new_tokens={budget}, do_sample=False)\n"
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :]))\n```'
    )


def _training(plan: ExportPlan) -> Iterator[str]:
    config = plan.config
    trained = "all weights"
    if config.model.adapter == "lora":
        trained = f"LoRA, rank {config.model.lora_rank}, alpha {config.model.lora_alpha}"
    yield f"- Step {plan.step} of {config.run.total_steps}; trained: {trained}"
    yield f"- Loss {config.algorithm.loss_type}, advantages scaled by: {config.algorithm.scale_rewards}"
    yield (
        f"- {config.rollout.buffer_size} prompts per buffer, {config.rollout.num_generations} completions per prompt, "
        f"at most {config.rollout.max_completion_length} tokens, temperature {config.rollout.temperature:g}"
    )
    yield f"- Learning rate {setting(config.optimizer.learning_rate)}, KL weight {setting(config.algorithm.beta)}"
    for task in tasks_of(config):
        of = f" ({task.part_label})" if config.task.parts else ""
        yield f"- Rewards{of}: {', '.join(task.rewards) or 'those of the task'}"
    yield f"- Seed {config.run.seed}; tokens seen: {int(plan.info.get('num_tokens') or 0):,}"


def _data(task: TaskConfig) -> str:
    if source := hub_dataset(task):
        commit = (task.path or "").partition("@")[2]
        at = f", commit `{commit}`" if commit else ""
        return f"Task `{task.name}` on [{source}](https://huggingface.co/datasets/{source}){at}."
    if task.path:
        return f"Task `{task.name}` on a local dataset, `{os.path.basename(task.path.rstrip('/'))}`."
    return f"Task `{task.name}`; its problems are generated."


def _table(results: Sequence[Result]) -> str:
    lines = [
        "| dataset | split | step | accuracy | 95% interval | problems | samples | temperature |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        metrics = each.metrics
        lines.append(
            f"| {each.dataset} | {each.split} | {each.step} | {_percent(metrics['accuracy'])} | "
            f"{_percent(metrics['ci_low'])} to {_percent(metrics['ci_high'])} | "
            f"{metrics.get('problems', metrics['n'])} | {metrics.get('num_samples', 1)} | "
            f"{metrics.get('temperature', 0):g} |"
        )
    pairs = [f"- {each.dataset}, step {each.step}: {each.against_start}" for each in results if each.against_start]
    legend = "Step 0 is the model that the run started from. An answer counts if it is correct and in the format."
    return "\n".join([*lines, "", legend, *([""] if pairs else []), *pairs])


def _percent(share: float) -> str:
    return percent(share, "", 1)


def _versions(plan: ExportPlan, price: float | None) -> Iterator[str]:
    versions = {"grpo-tui": VERSION, **(plan.info.get("versions") or {})}
    versions |= {name: importlib.metadata.version(name) for name in LIBRARIES}
    yield "- " + ", ".join(f"{name} {version}" for name, version in versions.items())
    status = plan.run.read_status() or {}
    yield f"- Device: {plan.info.get('device') or 'unknown'}, {plan.info.get('world_size') or 1} process(es)"
    seconds = to_float(status.get("run_seconds"))
    if seconds is None:
        return
    price = price if price is not None else plan.config.budget.price_per_hour
    cost = f", {money(dollars(price, seconds))} at {money(price)} per hour" if price is not None else ""
    yield f"- Run time: {duration(seconds)}{cost}"


def _result_entry(result: Result) -> EvalResult:
    return EvalResult(
        task_type="text-generation",
        dataset_type=result.dataset,
        dataset_name=result.dataset,
        dataset_split=result.split,
        metric_type="accuracy",
        metric_value=round(float(result.metrics["accuracy"]), 4),
        metric_name=f"accuracy ({result.metrics['n']} samples)",
    )
