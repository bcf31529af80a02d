"""Tiny model: Hugging Face files, tokenizer, determinism."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_train.config.schema import TaskConfig
from grpo_train.tasks import Attempt, TaskError, load_task
from grpo_train.tasks.addition import worked_example
from grpo_train.tiny.architectures import ARCHITECTURES
from grpo_train.tiny.model import WarmStart, make_random_model, make_tiny_model

SHORT = WarmStart(steps=12, batch_size=8)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[float, str]]]:
    """A model with a short warm start, and its progress messages."""
    out = tmp_path_factory.mktemp("models") / "deep" / "tiny"
    progress: list[tuple[float, str]] = []
    make_tiny_model(out, 0, lambda fraction, message: progress.append((fraction, message)), SHORT)
    return out, progress


def test_progress_rises_to_one(made: tuple[Path, list[tuple[float, str]]]) -> None:
    fractions = [fraction for fraction, _ in made[1]]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert any("loss" in message for _, message in made[1])


def test_qwen2_of_about_a_million_parameters(made: tuple[Path, list[tuple[float, str]]]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(made[0])
    assert model.config.model_type == "qwen2"
    assert model.config.max_position_embeddings >= 2048
    assert 0.7e6 < sum(parameter.numel() for parameter in model.parameters()) < 1.2e6
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    generation = model.generation_config
    assert (generation.top_p, generation.top_k, generation.temperature) == (None, None, None)


def test_tokenizer_handles_any_text_and_keeps_tags(made: tuple[Path, list[tuple[float, str]]]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made[0])
    text = "1234+5=<think>naïve ½ 日本 \n\t x</think> <answer>46</answer>"
    ids = tokenizer(text)["input_ids"]
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokens[:6] == ["1", "2", "3", "4", "+", "5"]
    assert [token for token in tokens if "<" in token] == ["<think>", "</think>", "<answer>", "</answer>"]
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text
    assert tokenizer.eos_token_id != tokenizer.pad_token_id


def test_autotokenizer_matches_the_warm_start(made: tuple[Path, list[tuple[float, str]]], gsm8k_dir: Path) -> None:
    from transformers import AutoTokenizer

    from grpo_train.tiny.tokenizer import make_tokenizer

    loaded, made_now = AutoTokenizer.from_pretrained(made[0]), make_tokenizer()
    gsm8k, addition = load_task(TaskConfig(path=str(gsm8k_dir))), load_task(TaskConfig(name="addition"))
    prompts = [gsm8k.problem("test", index).prompt for index in range(gsm8k.size("test"))]
    prompts += [addition.problem("test", index).prompt + worked_example(47, 85) for index in range(50)]
    ids = loaded(prompts)["input_ids"]
    assert ids == made_now(prompts)["input_ids"]
    assert max(map(len, ids)) < 2048
    assert loaded.batch_decode(ids, skip_special_tokens=True) == prompts


def test_same_seed_gives_the_same_files(made: tuple[Path, list[tuple[float, str]]], tmp_path: Path) -> None:
    import torch

    state = torch.get_rng_state()
    threads = torch.get_num_threads()
    make_tiny_model(tmp_path / "again", 0, warm_start=SHORT)
    make_tiny_model(tmp_path / "other", 1, warm_start=SHORT)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    files = {file.name: file.read_bytes() for file in made[0].iterdir()}
    assert {file.name: file.read_bytes() for file in (tmp_path / "again").iterdir()} == files
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != files["model.safetensors"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["again", "other"]  # no temporary directory remains


def test_only_a_model_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "tiny"
    for _ in range(2):
        make_tiny_model(out, 0, warm_start=WarmStart(steps=1, batch_size=2))
    (out / "my_notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not a model directory"):
        make_tiny_model(out, 0, warm_start=SHORT)
    assert (out / "my_notes.txt").read_text() == "mine"


def test_worked_example_without_mistakes_is_correct() -> None:
    task = load_task(TaskConfig(name="addition"))
    for index in range(200):
        problem = task.problem("test", index)
        a, b = map(int, problem.question.split("+"))
        assert task.judge(Attempt(problem, worked_example(a, b))).correct
        carries = a % 10 + b % 10 >= 10
        assert task.judge(Attempt(problem, worked_example(a, b, forget_carry=True))).correct is not carries
        assert not task.judge(Attempt(problem, worked_example(a, b, miscount=1))).correct
        assert task.judge(Attempt(problem, worked_example(a, b, miscount=1))).formatted


def test_another_task_gives_another_model(made: tuple[Path, list[tuple[float, str]]], tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "echo", 0, warm_start=SHORT, task=TaskConfig(name="echo"))
    files = [(folder / "model.safetensors").read_bytes() for folder in (made[0], tmp_path / "echo")]
    assert files[0] != files[1]
    assert (tmp_path / "echo" / "tokenizer.json").read_bytes() == (made[0] / "tokenizer.json").read_bytes()


def test_task_without_worked_examples_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="'gsm8k' has no worked examples"):
        make_tiny_model(tmp_path / "tiny", task=TaskConfig(name="gsm8k"))
    assert not list(tmp_path.iterdir())


def test_a_random_model_of_every_architecture(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = "1234+5=<think>naïve ½ 日本 \n\t x</think> <answer>46</answer>"
    for architecture in ARCHITECTURES:
        make_random_model(tmp_path / architecture, architecture)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / architecture)
        tokens = tokenizer(text, return_tensors="pt")["input_ids"]
        assert tokenizer.decode(tokens[0]) == text
        model = AutoModelForCausalLM.from_pretrained(tmp_path / architecture)
        assert model.dtype == torch.float32
        assert model(tokens).logits.isfinite().all()
    types = {AutoModelForCausalLM.from_pretrained(tmp_path / each).config.model_type for each in ARCHITECTURES}
    assert types == {"qwen2", "qwen3", "llama", "gemma3_text"}
