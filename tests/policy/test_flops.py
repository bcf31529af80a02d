"""Model FLOPs: counted from the weights, the same for a packed row and a padded batch."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from grpo_train.policy.completion import Completion
from grpo_train.policy.flops import ModelSize, model_size, product_rate
from grpo_train.policy.loading import Policy
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.tiny.architectures import Architecture, random_model
from grpo_train.tiny.tokenizer import make_tokenizer

TOKENIZER = make_tokenizer()


def with_adapter(model: torch.nn.Module) -> torch.nn.Module:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))  # type: ignore[arg-type]


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_formula_agrees_with_counted_products(architecture: Architecture, adapter: bool) -> None:
    """torch counts the products of the layers and the head, forward and backward. With an adapter it counts less: the
    first layer's inputs need no gradient."""
    model = random_model(architecture, TOKENIZER)
    trained = with_adapter(model) if adapter else model
    size = model_size(trained)
    assert size is not None
    tokens = 16
    counter = FlopCounterMode(display=False)
    ids = torch.arange(tokens).view(1, tokens)
    with counter:
        trained(input_ids=ids, use_cache=False).logits.sum().backward()
    by_kind = counter.get_flop_counts()["Global"]
    products = sum(count for kind, count in by_kind.items() if kind in (torch.ops.aten.mm, torch.ops.aten.addmm))
    assert products == pytest.approx(size.training_flops(tokens, tokens), rel=0.12 if adapter else 0.01)


def test_sizes_of_a_tied_and_an_untied_head() -> None:
    tied = random_model("qwen2", TOKENIZER)
    width, vocabulary = tied.config.hidden_size, tied.config.vocab_size
    assert model_size(tied) == ModelSize(tied.num_parameters() - width * vocabulary, width * vocabulary, 0)
    tied.config.tie_word_embeddings = False
    untied = type(tied)(tied.config)
    assert model_size(untied) == model_size(tied)


def test_experts_have_no_size() -> None:
    model = random_model("qwen2", TOKENIZER)
    model.config.num_experts = 8
    assert model_size(model) is None


@pytest.mark.parametrize("packing", [True, False])
def test_computed_tokens_leave_padding_out(packing: bool) -> None:
    model = random_model("qwen2", TOKENIZER)
    forward = LogprobForward(Policy(model, TOKENIZER, torch.device("cpu"), ""), temperature=1.0, packing=packing)
    assert forward.packed == packing
    prompt, other = (5, 6, 7), (9,)
    given = [
        Completion(prompt, (1, 2, 3, 4), (0.0,) * 4, False),
        Completion(prompt, (1, 2), (0.0,) * 2, False),
        Completion(other, (8,), (0.0,), False),
    ]
    found = forward(given)
    assert found.predicted == 7
    # The last token of each predicts nothing. Packed, the shared prompt counts once.
    assert found.computed == (3 + 3 + 1 + 1 if packing else 6 + 4 + 1)


def test_product_rate_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    assert product_rate(torch.device("cpu"), torch.float32) > 1e8
    assert torch.equal(torch.get_rng_state(), before)
