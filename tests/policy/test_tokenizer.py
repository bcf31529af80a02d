"""Tokenizers of users: their special tokens and what they append change neither prompts nor grades."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from grpo_train.policy.locate import PolicyError
from grpo_train.policy.tokenizer import TokenTexts, load_tokenizer, special_start, text_of
from grpo_train.rollout.prompts import encode_prompts
from grpo_train.run_dir import RunDir
from grpo_train.tasks import Problem
from grpo_train.tiny.tokenizer import TAGS, make_tokenizer
from tests.support.engine import command_here, train_here, write_micro
from tests.support.evaluating import evaluate_here

EVAL: dict[str, Any] = {"steps": "1", "num_problems": 16, "num_samples": 2, "temperature": 1.0}


def special_tags(tokenizer: Any) -> None:
    tokenizer.add_special_tokens({"extra_special_tokens": list(TAGS)})


def appended_eos(tokenizer: Any) -> None:
    tokens = [(tokenizer.eos_token, tokenizer.eos_token_id)]
    post_processor = TemplateProcessing(single=f"$A {tokenizer.eos_token}", special_tokens=tokens)
    tokenizer.backend_tokenizer.post_processor = post_processor


def results(root: Path) -> tuple[Any, ...]:
    """What a step, an evaluation and a question give."""
    run: RunDir = train_here(root, write_micro(root, run__total_steps=1), "run")
    assert evaluate_here(root, "run", **EVAL) == 0
    rows = [json.loads(line) for line in (run.logs / "rollouts.jsonl").read_text().splitlines()]
    (file,) = (root / "eval_runs").glob("*/step_1_addition/completions.jsonl")
    evaluated = [json.loads(line) for line in file.read_text().splitlines()]
    asked = command_here("generate", "--training-run", "run", "--index", 1, "--json", root=root)
    kept = [[(row["completion"], row["correct"]) for row in each] for each in (rows, evaluated)]
    return *kept, asked.returncode, asked.stdout


@pytest.fixture(scope="module")
def plain(make_root: Callable[[], Path]) -> tuple[Any, ...]:
    return results(make_root())


@pytest.mark.parametrize("change", [special_tags, appended_eos])
def test_habits_of_a_tokenizer_change_no_result(
    make_root: Callable[[], Path], plain: tuple[Any, ...], change: Callable[[Any], None]
) -> None:
    root = make_root()
    tokenizer = AutoTokenizer.from_pretrained(root / "models" / "tiny")
    change(tokenizer)
    tokenizer.save_pretrained(root / "models" / "tiny")
    assert any(correct for _, correct in plain[0])
    assert results(root) == plain


@pytest.mark.parametrize(
    ("processor", "start"), [("$A", 0), ("{} $A", 1), ("$A {}", 0), ("{} $A {}", 1), ("{} {} $A {}", 2)]
)
def test_only_what_a_tokenizer_puts_first_is_kept(tiny_model: Path, processor: str, start: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    ids = tuple(tokenizer("7+5=")["input_ids"])
    eos = tokenizer.eos_token
    single = processor.replace("{}", eos)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=[(eos, 0)])
    assert encode_prompts([Problem(0, "7+5=", "12", "7+5")], tokenizer) == [(0,) * start + ids]
    assert special_start(tokenizer) == (0,) * start


@pytest.mark.parametrize("change", [special_tags, lambda tokenizer: None], ids=["special", "plain"])
def test_only_the_token_that_ends_a_completion_is_dropped(tiny_model: Path, change: Callable[[Any], None]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    change(tokenizer)
    text = "<think>a</think> <answer>7</answer>"
    ids, (eos, pad) = tokenizer(text)["input_ids"], (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert text_of([*ids, eos], tokenizer, [eos]) == text == text_of(tuple(ids), tokenizer, [eos])
    assert text_of([pad, *ids, pad], tokenizer, [eos, pad]) == tokenizer.pad_token + text
    assert text_of([], tokenizer, [eos]) == ""


def test_a_tokenizer_without_a_vocabulary_is_refused(micro_root: Path) -> None:
    """Transformers makes an empty one where the file cannot be opened."""
    file = micro_root / "models" / "tiny" / "tokenizer.json"
    file.unlink()
    file.symlink_to("tokenizer.json")
    with pytest.raises(PolicyError, match="cannot load the tokenizer"):
        load_tokenizer("tiny", micro_root)


# the characters of each token -----------------------------------------------------------------------------------------


def byte_fallback() -> Any:
    """A tokenizer like Llama 2's: spaces are marked, the first one is stripped, other characters are bytes."""
    pieces = [
        "<s>",
        "</s>",
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        "▁a",
        "ab",
        "▁ab",
        "中",
    ]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("a", "b"), ("▁", "ab")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>", clean_up_tokenization_spaces=False
    )


TOKENIZERS = {"byte level": make_tokenizer(), "byte fallback": byte_fallback()}


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(st.data())
def test_texts_of_tokens_add_up(kind: str, data: st.DataObject) -> None:
    """Each token's characters are complete once it is written; together they are the text, special tokens included."""
    tokenizer = TOKENIZERS[kind]
    ends = [tokenizer.eos_token_id]
    if data.draw(st.booleans()):
        ids = tokenizer(data.draw(st.text(max_size=30)), add_special_tokens=False)["input_ids"]
    else:
        ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=40))
    ids = [*ids, *data.draw(st.sampled_from([[], ends]))]
    text, lengths = text_of(ids, tokenizer, ends), TokenTexts(tokenizer, ends).lengths(ids)
    assert lengths is not None
    assert (len(lengths), sum(lengths)) == (len(ids), len(text))
    if kind == "byte level":
        for count in range(len(ids)):
            assert text_of(ids[:count], tokenizer, ()).startswith(text[: sum(lengths[:count])])


class Tidy:
    """A tokenizer that decodes "a ." as "a."."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._tokenizer(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def decode(self, *arguments: Any, **named: Any) -> str:
        return str(self._tokenizer.decode(*arguments, **named)).replace(" .", ".")


def test_a_tokenizer_whose_texts_do_not_add_up() -> None:
    tokenizer = Tidy(TOKENIZERS["byte level"])
    ids = tokenizer("a . a", add_special_tokens=False)["input_ids"]
    assert text_of(ids, tokenizer, ()) == "a. a"
    assert TokenTexts(tokenizer, ()).lengths(ids) is None
