"""Generation: greedy decoding equals transformers', sampling follows the requested distribution."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, AutoTokenizer, Lfm2Config, MambaConfig

from grpo_train.policy.locate import PolicyError
from grpo_train.rollout import Completion
from grpo_train.rollout.transformers_backend import TransformersBackend
from tests.support.engine import REPOSITORY

PROMPTS = ["12+34=", "7+85=", "60+1=", "99+99=", "5+5=", "31+41="]


@pytest.fixture(scope="module")
def parts(tiny_model: Path) -> tuple[Any, Any]:
    """In float64, rounding by the batch shape is far too small to change a token."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64).eval()
    return model, AutoTokenizer.from_pretrained(tiny_model)


def ids(tokenizer: Any, prompts: list[str]) -> list[list[int]]:
    return tokenizer(prompts)["input_ids"]


def decode(parts: tuple[Any, Any], prompts: list[str], **changes: Any) -> list[tuple[int, ...]]:
    model, tokenizer = parts
    options: dict[str, Any] = {
        "seeds": [100 + PROMPTS.index(prompt) for prompt in prompts], "max_completion_length": 40, "temperature": 1.0,
    }  # fmt: skip
    backend = TransformersBackend(model, tokenizer, ["</answer>"])
    found = backend.generate(ids(tokenizer, prompts), **{**options, **changes})
    return [one.ids for one in found]


def test_greedy_equals_transformers(parts: tuple[Any, Any]) -> None:
    model, tokenizer = parts
    prompts = ids(tokenizer, PROMPTS)
    theirs = []
    for prompt in prompts:
        ids_T = model.generate(
            torch.tensor([prompt]), max_new_tokens=40, do_sample=False, stop_strings=["</answer>"], tokenizer=tokenizer
        )
        theirs.append(tuple(ids_T[0, len(prompt) :].tolist()))
    ours = TransformersBackend(model, tokenizer, ["</answer>"]).generate(
        prompts, seeds=[0] * 6, max_completion_length=40, temperature=0.0
    )
    assert [one.ids for one in ours] == theirs
    assert [one.finished for one in ours] == [len(found) < 40 for found in theirs]
    assert len({len(one.ids) for one in ours}) > 1, "rows must leave at different times"


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1.5])
def test_samples_do_not_depend_on_the_batch(parts: tuple[Any, Any], temperature: float) -> None:
    together = decode(parts, PROMPTS, temperature=temperature)
    alone = [decode(parts, [prompt], temperature=temperature)[0] for prompt in PROMPTS]
    backwards = decode(parts, PROMPTS[::-1], temperature=temperature)[::-1]
    assert together == alone == backwards


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
def test_samples_do_not_depend_on_the_batch_size(parts: tuple[Any, Any], batch_size: int) -> None:
    """Prompts of several lengths, joining at widths smaller and larger than their own."""
    prompts = [PROMPTS[number % 6] for number in range(18)]
    together = decode(parts, prompts, temperature=1.2, seeds=list(range(18)))
    assert decode(parts, prompts, temperature=1.2, seeds=list(range(18)), batch_size=batch_size) == together
    assert len({len(one) for one in together}) > 3


def test_sliding_caches_are_refilled_only_when_empty(parts: tuple[Any, Any]) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    _, tokenizer = parts
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_sliding_window=True, sliding_window=6, max_window_layers=1,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).double().eval()
    together = decode((model, tokenizer), PROMPTS, max_completion_length=12)
    assert decode((model, tokenizer), PROMPTS, max_completion_length=12, batch_size=2) == together


@pytest.mark.parametrize("kind", ["conv", "mamba"])
def test_state_caches(parts: tuple[Any, Any], kind: str) -> None:
    """A hybrid (Lfm2: states, keys and values), and Mamba, which has only states under another argument name."""
    _, tokenizer = parts
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
    }
    heads: dict[str, Any] = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "layer_types": ["conv", "full_attention"],
    }
    torch.manual_seed(0)
    config = Lfm2Config(**sizes, **heads) if kind == "conv" else MambaConfig(**sizes, state_size=8)
    model = AutoModelForCausalLM.from_config(config).double().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    prompts = ids(tokenizer, [PROMPTS[number % 6] for number in range(12)])
    backend = TransformersBackend(model, tokenizer)
    options: dict[str, Any] = {"seeds": range(12), "max_completion_length": 12, "temperature": 1.0}
    together = backend.generate(prompts, **options)
    assert [one.ids for one in together] == [one.ids for one in backend.generate(prompts, batch_size=5, **options)]
    for one in together:
        with torch.no_grad():
            logps = model(torch.tensor([one.prompt_ids + one.ids]), use_cache=False).logits[0].log_softmax(-1)
        at = torch.arange(len(one.prompt_ids) - 1, len(one.prompt_ids) + len(one.ids) - 1)
        assert one.logps == pytest.approx(logps[at, list(one.ids)].tolist(), abs=1e-5)


def test_all_eos_tokens_of_the_model_end_completions(parts: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma's and Llama's turns end with another token than their tokenizers' eos token."""
    model, tokenizer = parts
    first = decode(parts, PROMPTS, temperature=0.0, max_completion_length=3)
    ends = sorted({ids_T[1] for ids_T in first})
    monkeypatch.setattr(model.generation_config, "eos_token_id", [*ends, tokenizer.eos_token_id])
    found = TransformersBackend(model, tokenizer).generate(
        ids(tokenizer, PROMPTS), seeds=[0] * 6, max_completion_length=9, temperature=0.0
    )
    assert all(one.finished and one.ids[-1] in ends and not set(ends) & set(one.ids[:-1]) for one in found)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_logits_are_an_error(parts: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    forward = type(parts[0]).forward

    def broken(self: Any, **inputs: Any) -> Any:
        output = forward(self, **inputs)
        output.logits[-1] = math.nan
        return output

    monkeypatch.setattr(type(parts[0]), "forward", broken)
    with pytest.raises(PolicyError, match="logits contain NaN or Inf"):
        decode(parts, PROMPTS, temperature=temperature)


class Casts(TorchDispatchMode):
    """Counts casts to another dtype by number of values."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            self.counts[args[0].numel()] += 1
        return func(*args, **(kwargs or {}))


def test_autocast_casts_weights_once_without_caching(tiny_model: Path) -> None:
    """Weights may be trained, or swapped for an opponent's, while the same context is open."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model).train()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    backend = TransformersBackend(model, tokenizer)
    options: dict[str, Any] = {"seeds": range(6), "max_completion_length": 9, "temperature": 1.0}
    weight = model.model.layers[0].mlp.gate_proj.weight
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with Casts() as casts:
            own = backend.generate(ids(tokenizer, PROMPTS), **options)
        same_size = sum(each.numel() == weight.numel() for each in model.parameters() if each.dim() == 2)
        assert casts.counts[weight.numel()] == same_size
        kept = [parameter.data for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.data = parameter.data * 0.5
        others = backend.generate(ids(tokenizer, PROMPTS), **options)
        for parameter, data in zip(model.parameters(), kept, strict=True):
            parameter.data = data
        assert backend.generate(ids(tokenizer, PROMPTS), **options) == own != others
        model(torch.tensor(ids(tokenizer, PROMPTS[:1]))).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_seed_determines_the_sample(parts: tuple[Any, Any]) -> None:
    same = decode(parts, ["12+34="] * 8, seeds=[5] * 8)
    other = decode(parts, ["12+34="] * 8, seeds=list(range(8)), temperature=1.5)
    assert len(set(same)) == 1
    assert len(set(other)) > 1


def test_samples_follow_the_distribution(parts: tuple[Any, Any]) -> None:
    """The first token of 4,000 samples, also with top-p."""
    model, tokenizer = parts
    (prompt,) = ids(tokenizer, ["12+34="])
    with torch.no_grad():
        expected = (model(torch.tensor([prompt])).logits[0, -1] / 2).softmax(0)
    count = 4000
    for top_p in (1.0, 0.6):
        drawn = TransformersBackend(model, tokenizer).generate(
            [prompt] * count, seeds=list(range(count)), max_completion_length=1, temperature=2.0, top_p=top_p
        )
        counts = Counter(one.ids[0] for one in drawn)
        probabilities = expected.clone()
        if top_p < 1:
            order = expected.argsort(descending=True)
            kept = int((expected[order].cumsum(0) < top_p).sum()) + 1
            probabilities[order[kept:]] = 0
            probabilities /= probabilities.sum()
        for token, p in enumerate(probabilities.tolist()):
            spread = math.sqrt(p * (1 - p) / count)
            assert abs(counts[token] / count - p) <= 5 * spread + 1e-12, (token, p)


def test_budget_truncates(parts: tuple[Any, Any]) -> None:
    model, tokenizer = parts
    found = TransformersBackend(model, tokenizer, ["</answer>"]).generate(
        ids(tokenizer, PROMPTS), seeds=[0] * 6, max_completion_length=3, temperature=0.0
    )
    assert [len(one.ids) for one in found] == [3] * 6
    assert not any(one.finished for one in found)


def test_stop_string_in_the_prompt_is_ignored(parts: tuple[Any, Any]) -> None:
    _, tokenizer = parts
    (found,) = decode(parts, ["12+34="], temperature=0.0)
    text = tokenizer.decode(found)
    assert text.endswith("</answer>") or found[-1] == tokenizer.eos_token_id
    assert text.count("</answer>") <= 1


def test_adapter_equals_merged_weights(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)).eval()
    with_adapter = decode((adapted, tokenizer), PROMPTS, temperature=0.7)
    assert with_adapter == decode((adapted.merge_and_unload(), tokenizer), PROMPTS, temperature=0.7)


def test_repeated_prompts_are_prefilled_once(parts: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = parts
    prefilled: list[int] = []
    forward = type(model).forward

    def watched(self: Any, input_ids: torch.Tensor, **inputs: Any) -> Any:
        prefilled.append(input_ids.numel() if input_ids.shape[1] > 1 else 0)
        return forward(self, input_ids=input_ids, **inputs)

    alone = decode(parts, PROMPTS * 4, temperature=1.3, seeds=list(range(24)), batch_size=1)
    monkeypatch.setattr(type(model), "forward", watched)
    assert decode(parts, PROMPTS * 4, temperature=1.3, seeds=list(range(24))) == alone
    assert sum(prefilled) == 6 * max(map(len, ids(tokenizer, PROMPTS)))


def test_completions_are_handed_over_when_they_end(parts: tuple[Any, Any]) -> None:
    model, tokenizer = parts
    handed: list[tuple[int, Completion]] = []
    found = TransformersBackend(model, tokenizer, ["</answer>"]).generate(
        ids(tokenizer, PROMPTS), seeds=range(6), max_completion_length=40, temperature=1.0,
        on_done=lambda index, completion: handed.append((index, completion)),
    )  # fmt: skip
    assert sorted(handed, key=lambda pair: pair[0]) == list(enumerate(found))
    lengths = [len(completion.ids) for _, completion in handed]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 1


def test_out_of_memory_halves_the_batch(
    parts: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The batch is halved until it fits and stays small; finished completions are not generated again."""
    model, tokenizer = parts
    expected = decode(parts, PROMPTS * 2, seeds=list(range(12)))
    forward, sizes = type(model).forward, list[int]()

    def small(self: Any, input_ids: torch.Tensor, **inputs: Any) -> Any:
        sizes.append(len(input_ids))
        if len(input_ids) > 3 and len(sizes) > 12:  # some have ended by then
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, input_ids=input_ids, **inputs)

    monkeypatch.setattr(type(model), "forward", small)
    backend, indices = TransformersBackend(model, tokenizer, ["</answer>"]), list[int]()
    options: dict[str, Any] = {"max_completion_length": 40, "temperature": 1.0}
    found = backend.generate(
        ids(tokenizer, PROMPTS * 2), seeds=range(12), on_done=lambda index, _: indices.append(index), **options
    )
    assert [one.ids for one in found] == expected
    assert sorted(indices) == list(range(12))
    assert sizes[:2] == [6, 12]
    assert "out of memory: continuing with" in capsys.readouterr().out
    del sizes[13:]
    backend.generate(ids(tokenizer, PROMPTS * 2), seeds=range(12), **options)
    assert max(sizes[13:]) <= 3

    def none(self: Any, **inputs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(type(model), "forward", none)
    with pytest.raises(PolicyError, match="one completion does not fit into memory; lower max_completion_length"):
        backend.generate(ids(tokenizer, PROMPTS), seeds=range(6), **options)


def test_callback_errors_are_not_retried(parts: tuple[Any, Any]) -> None:
    """A callback's out-of-memory error repeats no generation, and each module keeps its mode."""
    model, tokenizer = parts
    calls: list[int] = []

    def fail(index: int, completion: Completion) -> None:
        calls.append(index)
        raise torch.OutOfMemoryError("CUDA out of memory in a judge")

    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    with pytest.raises(torch.OutOfMemoryError, match="in a judge"):
        TransformersBackend(model, tokenizer).generate(
            ids(tokenizer, PROMPTS), seeds=range(6), max_completion_length=40, temperature=1.0, on_done=fail
        )
    assert len(calls) == 1
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    model.eval()


LIMITED = """
import resource, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from grpo_train.rollout.transformers_backend import TransformersBackend

torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float64).eval()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
backend = TransformersBackend(model, tokenizer)
(prompt,) = tokenizer(["12+34=" * 60])["input_ids"]

def generate(rows, budget):
    return backend.generate([prompt] * rows, seeds=range(rows), max_completion_length=budget, temperature=1.0)

generate(2, 2)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
unlimited = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + 50 * 2**20, unlimited[1]))
print([one.ids for one in generate(128, 16)])
resource.setrlimit(resource.RLIMIT_AS, unlimited)
print([one.ids for one in generate(128, 16)])
"""


def test_real_memory_limit_halves_the_batch(tiny_model: Path) -> None:
    """The allocator really fails, and the completions of the smaller batches are the same."""
    command = [sys.executable, "-c", LIMITED, str(tiny_model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    *messages, found, expected = done.stdout.splitlines()
    assert messages, "50 MiB must not be enough"
    assert all("out of memory: continuing with" in line for line in messages)
    assert found == expected


def test_other_errors_are_not_retried(parts: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, **inputs: Any) -> Any:
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(type(parts[0]), "forward", broken)
    with pytest.raises(RuntimeError, match="a kernel failed"):
        decode(parts, PROMPTS)
