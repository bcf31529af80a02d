"""Generation: the same as transformers' where nothing is drawn, exactly what was asked for where something is."""

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
from grpo_train.rollout.transformers_backend import TransformersBackend, _Draw
from tests.support.engine import REPOSITORY

PROMPTS = ["12+34=", "7+85=", "60+1=", "99+99=", "5+5=", "31+41="]


@pytest.fixture(scope="module")
def parts(tiny_model: Path) -> tuple[Any, Any]:
    """In float64: what the shape of a batch changes is then far below what decides between two tokens."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64).eval()
    return model, AutoTokenizer.from_pretrained(tiny_model)


def ids(tokenizer: Any, prompts: list[str]) -> list[list[int]]:
    return tokenizer(prompts)["input_ids"]


def decode(parts: tuple[Any, Any], prompts: list[str], **changes: Any) -> list[tuple[int, ...]]:
    model, tokenizer = parts
    asked: dict[str, Any] = {
        "seeds": [100 + PROMPTS.index(prompt) for prompt in prompts], "max_completion_length": 40, "temperature": 1.0,
    }  # fmt: skip
    backend = TransformersBackend(model, tokenizer, ["</answer>"])
    found = backend.generate(ids(tokenizer, prompts), **{**asked, **changes})
    return [one.ids for one in found]


def test_greedy_is_what_transformers_generates(parts: tuple[Any, Any]) -> None:
    model, tokenizer = parts
    prompts = ids(tokenizer, PROMPTS)
    theirs = []
    for prompt in prompts:
        said = model.generate(
            torch.tensor([prompt]), max_new_tokens=40, do_sample=False, stop_strings=["</answer>"], tokenizer=tokenizer
        )
        theirs.append(tuple(said[0, len(prompt) :].tolist()))
    ours = TransformersBackend(model, tokenizer, ["</answer>"]).generate(
        prompts, seeds=[0] * 6, max_completion_length=40, temperature=0.0
    )
    assert [one.ids for one in ours] == theirs
    assert [one.finished for one in ours] == [len(said) < 40 for said in theirs]
    assert len({len(one.ids) for one in ours}) > 1, "rows must leave at different times"


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1.5])
def test_a_sample_does_not_depend_on_what_is_beside_it(parts: tuple[Any, Any], temperature: float) -> None:
    together = decode(parts, PROMPTS, temperature=temperature)
    alone = [decode(parts, [prompt], temperature=temperature)[0] for prompt in PROMPTS]
    backwards = decode(parts, PROMPTS[::-1], temperature=temperature)[::-1]
    assert together == alone == backwards


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
def test_rows_that_join_later_say_the_same(parts: tuple[Any, Any], batch_size: int) -> None:
    """Prompts of several lengths, joining at widths smaller and larger than their own."""
    prompts = [PROMPTS[number % 6] for number in range(18)]
    together = decode(parts, prompts, temperature=1.2, seeds=list(range(18)))
    assert decode(parts, prompts, temperature=1.2, seeds=list(range(18)), batch_size=batch_size) == together
    assert len({len(one) for one in together}) > 3


def test_a_cache_that_slides_is_refilled_only_when_empty(parts: tuple[Any, Any]) -> None:
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
def test_a_cache_of_states_is_kept_by_rows_too(parts: tuple[Any, Any], kind: str) -> None:
    """A hybrid (Lfm2: states beside keys and values) and Mamba, which has states alone under a name of their own."""
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
    asked: dict[str, Any] = {"seeds": range(12), "max_completion_length": 12, "temperature": 1.0}
    together = backend.generate(prompts, **asked)
    assert [one.ids for one in together] == [one.ids for one in backend.generate(prompts, batch_size=5, **asked)]
    for one in together:
        with torch.no_grad():
            logps = model(torch.tensor([one.prompt_ids + one.ids]), use_cache=False).logits[0].log_softmax(-1)
        at = torch.arange(len(one.prompt_ids) - 1, len(one.prompt_ids) + len(one.ids) - 1)
        assert one.logps == pytest.approx(logps[at, list(one.ids)].tolist(), abs=1e-5)


def test_every_end_that_the_model_knows_ends(parts: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma's and Llama's turns end otherwise than their tokenizers' texts do."""
    model, tokenizer = parts
    first = decode(parts, PROMPTS, temperature=0.0, max_completion_length=3)
    ends = sorted({said[1] for said in first})
    monkeypatch.setattr(model.generation_config, "eos_token_id", [*ends, tokenizer.eos_token_id])
    found = TransformersBackend(model, tokenizer).generate(
        ids(tokenizer, PROMPTS), seeds=[0] * 6, max_completion_length=9, temperature=0.0
    )
    assert all(one.finished and one.ids[-1] in ends and not set(ends) & set(one.ids[:-1]) for one in found)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_an_error(
    parts: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    forward = type(parts[0]).forward

    def broken(self: Any, **inputs: Any) -> Any:
        said = forward(self, **inputs)
        said.logits[-1] = math.nan
        return said

    monkeypatch.setattr(type(parts[0]), "forward", broken)
    with pytest.raises(PolicyError, match="the model's logits are no numbers"):
        decode(parts, PROMPTS, temperature=temperature)


class Casts(TorchDispatchMode):
    """Counts what is cast to another type, by number of values."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            self.counts[args[0].numel()] += 1
        return func(*args, **(kwargs or {}))


def test_under_autocast_weights_are_cast_once_and_never_remembered(tiny_model: Path) -> None:
    """They may be swapped for an opponent's, and are trained, while the same context is open."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model).train()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    backend = TransformersBackend(model, tokenizer)
    asked: dict[str, Any] = {"seeds": range(6), "max_completion_length": 9, "temperature": 1.0}
    weight = model.model.layers[0].mlp.gate_proj.weight
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with Casts() as casts:
            own = backend.generate(ids(tokenizer, PROMPTS), **asked)
        alike = sum(each.numel() == weight.numel() for each in model.parameters() if each.dim() == 2)
        assert casts.counts[weight.numel()] == alike
        kept = [parameter.data for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.data = parameter.data * 0.5
        others = backend.generate(ids(tokenizer, PROMPTS), **asked)
        for parameter, data in zip(model.parameters(), kept, strict=True):
            parameter.data = data
        assert backend.generate(ids(tokenizer, PROMPTS), **asked) == own != others
        model(torch.tensor(ids(tokenizer, PROMPTS[:1]))).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_seed_is_a_sample(parts: tuple[Any, Any]) -> None:
    same = decode(parts, ["12+34="] * 8, seeds=[5] * 8)
    other = decode(parts, ["12+34="] * 8, seeds=list(range(8)), temperature=1.5)
    assert len(set(same)) == 1
    assert len(set(other)) > 1


def test_what_is_drawn_follows_the_distribution(parts: tuple[Any, Any]) -> None:
    """The first token of 4,000 samples, and of the cut distribution."""
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


def test_a_token_of_no_probability_is_never_drawn() -> None:
    logits = torch.tensor([[-math.inf, 1.0, -math.inf, 1.0, -math.inf]])
    for uniform, token in ((0.0, 1), (0.4999, 1), (0.5, 3), (1 - 2**-53, 3)):
        drawn, logp = _Draw(1.0)(logits, torch.tensor([uniform], dtype=torch.float64))
        assert drawn.tolist() == [token]
        assert logp is not None
        assert logp.tolist() == pytest.approx([math.log(0.5)])


def test_the_budget_cuts(parts: tuple[Any, Any]) -> None:
    model, tokenizer = parts
    found = TransformersBackend(model, tokenizer, ["</answer>"]).generate(
        ids(tokenizer, PROMPTS), seeds=[0] * 6, max_completion_length=3, temperature=0.0
    )
    assert [len(one.ids) for one in found] == [3] * 6
    assert not any(one.finished for one in found)


def test_a_stop_string_in_the_prompt_ends_nothing(parts: tuple[Any, Any]) -> None:
    _, tokenizer = parts
    (found,) = decode(parts, ["12+34="], temperature=0.0)
    text = tokenizer.decode(found)
    assert text.endswith("</answer>") or found[-1] == tokenizer.eos_token_id
    assert text.count("</answer>") <= 1


def test_an_adapter_decodes_like_its_merged_weights(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)).eval()
    with_adapter = decode((adapted, tokenizer), PROMPTS, temperature=0.7)
    assert with_adapter == decode((adapted.merge_and_unload(), tokenizer), PROMPTS, temperature=0.7)


def test_a_prompt_is_read_once_however_often_it_is_asked(
    parts: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = parts
    read: list[int] = []
    forward = type(model).forward

    def watched(self: Any, input_ids: torch.Tensor, **inputs: Any) -> Any:
        read.append(input_ids.numel() if input_ids.shape[1] > 1 else 0)
        return forward(self, input_ids=input_ids, **inputs)

    alone = decode(parts, PROMPTS * 4, temperature=1.3, seeds=list(range(24)), batch_size=1)
    monkeypatch.setattr(type(model), "forward", watched)
    assert decode(parts, PROMPTS * 4, temperature=1.3, seeds=list(range(24))) == alone
    assert sum(read) == 6 * max(map(len, ids(tokenizer, PROMPTS)))


def test_each_completion_is_handed_over_when_it_ends(parts: tuple[Any, Any]) -> None:
    model, tokenizer = parts
    told: list[tuple[int, Completion]] = []
    found = TransformersBackend(model, tokenizer, ["</answer>"]).generate(
        ids(tokenizer, PROMPTS), seeds=range(6), max_completion_length=40, temperature=1.0,
        on_done=lambda place, completion: told.append((place, completion)),
    )  # fmt: skip
    assert sorted(told, key=lambda one: one[0]) == list(enumerate(found))
    lengths = [len(completion.ids) for _, completion in told]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 1


def test_memory_that_runs_out_costs_nothing_that_is_done(
    parts: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The batch is halved until it fits, stays so, and who was done is neither asked nor handed over again."""
    model, tokenizer = parts
    expected = decode(parts, PROMPTS * 2, seeds=list(range(12)))
    forward, sizes = type(model).forward, list[int]()

    def small(self: Any, input_ids: torch.Tensor, **inputs: Any) -> Any:
        sizes.append(len(input_ids))
        if len(input_ids) > 3 and len(sizes) > 12:  # some have ended by then
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, input_ids=input_ids, **inputs)

    monkeypatch.setattr(type(model), "forward", small)
    backend, places = TransformersBackend(model, tokenizer, ["</answer>"]), list[int]()
    asked: dict[str, Any] = {"max_completion_length": 40, "temperature": 1.0}
    found = backend.generate(
        ids(tokenizer, PROMPTS * 2), seeds=range(12), on_done=lambda place, _: places.append(place), **asked
    )
    assert [one.ids for one in found] == expected
    assert sorted(places) == list(range(12))
    assert sizes[:2] == [6, 12]
    assert "out of memory: going on with" in capsys.readouterr().out
    del sizes[13:]
    backend.generate(ids(tokenizer, PROMPTS * 2), seeds=range(12), **asked)
    assert max(sizes[13:]) <= 3

    def none(self: Any, **inputs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(type(model), "forward", none)
    with pytest.raises(PolicyError, match="one completion alone does not fit into memory: set max_completion_length"):
        backend.generate(ids(tokenizer, PROMPTS), seeds=range(6), **asked)


def test_who_is_told_may_fail_and_is_not_taken_for_the_model(parts: tuple[Any, Any]) -> None:
    """Its lack of memory is its own: nothing is generated anew, and each module is left as it was."""
    model, tokenizer = parts
    told: list[int] = []

    def fail(place: int, completion: Completion) -> None:
        told.append(place)
        raise torch.OutOfMemoryError("CUDA out of memory, says a judge")

    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    with pytest.raises(torch.OutOfMemoryError, match="says a judge"):
        TransformersBackend(model, tokenizer).generate(
            ids(tokenizer, PROMPTS), seeds=range(6), max_completion_length=40, temperature=1.0, on_done=fail
        )
    assert len(told) == 1
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
if len(sys.argv) > 2:
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]) * 2**20,) * 2)
print([one.ids for one in generate(256, 16)])
"""


def test_a_machine_that_has_no_more_memory(tiny_model: Path) -> None:
    """Not a simulation: the allocator is refused, and what is generated in smaller batches is what would have been."""

    def said(*limit: str) -> list[str]:
        command = [sys.executable, "-c", LIMITED, str(tiny_model), *limit]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=REPOSITORY)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    (expected,) = said()
    *told, found = said("100")
    assert told, "100 MiB must not be enough for the test to mean anything"
    assert all("out of memory: going on with" in line for line in told)
    assert found == expected


def test_another_error_is_not_taken_for_a_lack_of_memory(
    parts: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, **inputs: Any) -> Any:
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(type(parts[0]), "forward", broken)
    with pytest.raises(RuntimeError, match="a kernel failed"):
        decode(parts, PROMPTS)
