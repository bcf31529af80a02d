"""The recipes: their arithmetic is that of the estimate, and each trains on a tiny model of its architecture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from grpo_train.config import load_config
from grpo_train.platforms.choices import MEMORY_SHARE
from grpo_train.platforms.memory import (
    QWEN2_5,
    Shape,
    rollout_bytes,
    state_bytes,
    training_bytes,
    update_bytes,
)
from grpo_train.policy.locate import BACKBONES
from grpo_train.tasks import Attempt, Verdict
from grpo_train.tiny.architectures import Architecture
from grpo_train.tiny.model import make_random_model
from tests.support.data import data_file
from tests.support.engine import REPOSITORY, rows, train_here

RECIPES = sorted((REPOSITORY / "config" / "recipes").glob("*.yaml"))
SHAPES = {
    **QWEN2_5,
    "Qwen/Qwen3-0.6B": Shape(1024, 3072, 28, 16, 8, 128, 151_936, True),
    "Qwen/Qwen3-1.7B-Base": Shape(2048, 6144, 28, 16, 8, 128, 151_936, True),
    "meta-llama/Llama-3.2-1B-Instruct": Shape(2048, 8192, 16, 32, 8, 64, 128_256, True),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": Shape(2048, 8192, 24, 32, 32, 64, 49_152, True),
    "google/gemma-3-1b-it": Shape(1152, 6912, 26, 4, 1, 256, 262_144, True),
}
"""From the models' ``config.json`` on the hub."""
ARCHITECTURES: dict[str, Architecture] = {
    "qwen2": "qwen2", "qwen3": "qwen3", "llama3": "llama", "smollm2": "smollm", "gemma3": "gemma3",
}  # fmt: skip
TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}:{% endif %}"
FEW = {
    "run": {"total_steps": 2, "save_every": 2, "nproc": 1, "eval_every": 0},
    "rollout": {"buffer_size": 2, "num_generations": 2, "max_completion_length": 8, "generation_batch_size": 0},
    "train": {"microbatch_size": 1},
    "tracking": {"tensorboard": False},
}
"""What makes a recipe small; the rest stays."""


def letters(attempt: Attempt, verdict: Verdict) -> float:
    """A reward that differs between completions of random weights."""
    return float(len(set(attempt.completion)))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_memory_is_as_estimated_and_fits(recipe: Path) -> None:
    text = recipe.read_text()
    config = load_config(text, source=recipe.name)
    shape = SHAPES[config.model.backbone.removesuffix("_instruct")]
    card = int(re.search(r"(\d+)gb$", recipe.stem)[1])  # type: ignore[index]
    prompts = config.microbatch_size
    parts = (
        state_bytes(shape, config, "bfloat16"),
        rollout_bytes(shape, config, "bfloat16"),
        update_bytes(shape, config, "bfloat16", prompts, card * 1e9),
    )
    total = training_bytes(shape, config, "bfloat16", prompts, card * 1e9)
    comment = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
    figures = [f"{part / 1e9:.1f} GB" for part in parts]
    assert [figure for figure in figures if figure not in comment] == []
    assert f"{total / 1e9:.1f} of {card} GB" in comment
    assert total < MEMORY_SHARE * card * 1e9


def test_every_recipe_says_what_is_known() -> None:
    for recipe in RECIPES:
        text = recipe.read_text()
        config = load_config(text, source=recipe.name)
        backbone = BACKBONES.get(config.model.backbone, config.model.backbone)
        model, task = backbone.rpartition("/")[2], config.task.name.upper()
        comment = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
        subject = rf"(?i:{re.escape(model)}) on {task}"
        figure = rf"Published accuracy of {subject}: (\d\d\.\d \(.+?\)|no figure .+? not measured yet\.)"
        assert re.search(rf"{subject}, .*Not measured yet: ", comment), recipe.name
        assert re.search(figure, comment), recipe.name
        assert re.search(r"Hyperparameters: learning rate 1\.0e-\d.*?: \S", comment), recipe.name
        assert "Memory per GPU, estimated: " in comment


@pytest.mark.official_data
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_trains_its_architecture(recipe: Path, tmp_path: Path, gsm8k_dir: Path) -> None:
    architecture = next(kind for name, kind in ARCHITECTURES.items() if recipe.stem.startswith(name))
    model = tmp_path / "model"
    make_random_model(model, architecture)
    (model / "chat_template.jinja").write_text(TURNS)
    document = yaml.safe_load(recipe.read_text())
    paths = {"gsm8k": gsm8k_dir, "math": data_file("math.jsonl"), "mbpp": data_file("mbpp.jsonl")}
    for section, keys in FEW.items():
        document.setdefault(section, {}).update(keys)
    document["model"]["backbone"] = str(model)
    task = document["task"]
    task["limit"] = 4
    task["path"] = str(paths[task["name"]])
    task["rewards"] = [*task.get("rewards", ["accuracy"]), f"{__name__}:letters"]
    cfg = tmp_path / "small.yaml"
    cfg.write_text(yaml.safe_dump(document))
    run = train_here(tmp_path, cfg, "small")
    logged = rows(run)
    assert [row["step"] for row in logged] == [1, 2]
    assert any(row["grad_norm"] > 0 for row in logged)
