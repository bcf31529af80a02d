"""Log-probabilities: equal whether packed or padded, chunked or whole; otherwise a fallback."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2ForCausalLM,
)

from grpo_train.policy import head, packing
from grpo_train.policy.loading import leave_casts_to_autocast
from grpo_train.policy.logprobs import pad_values, split_by_tokens
from grpo_train.rollout import Completion
from tests.policy.test_head import Largest
from tests.support.logprobs import (
    QWEN_WINDOW,
    SIZES,
    V,
    completions_of,
    forward_of,
    gpt2,
    gradients,
    largest_difference,
    lora,
    policy_of,
    qwen2,
    total,
    weights_of,
)

MODELS: dict[str, Callable[[], Any]] = {
    "qwen2, tied head": qwen2,
    "qwen2 with a sliding window": lambda: qwen2(**QWEN_WINDOW),
    "llama, untied head": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "mistral with a sliding window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=6)),
    "gpt2, learned positions": gpt2,
    "lora": lora,
}
MODES: dict[str, dict[str, bool]] = {
    "packed": {},
    "packed, separate prompts": {"share_prompts": False},
    "packed, whole logits": {"chunked": False},
    "padded": {"packing": False},
}


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    monkeypatch.setattr(head, "chunk_elements", lambda device: 20 * V)  # several chunks
    monkeypatch.setitem(packing.CALL_COST, "cpu", 200)  # several buckets


@pytest.mark.parametrize("kind", MODELS)
def test_every_mode_matches_single_completions(kind: str) -> None:
    policy, completions = policy_of(MODELS[kind]()), completions_of()
    whole = forward_of(policy, packing=False, chunked=False)
    reference = whole(completions, entropy_gradient=True)
    expected = gradients(policy, total(reference))
    assert all(expected[n].abs().max() > 1e-3 for n in expected if "bias" not in n), "gradients must not vanish"

    weights = weights_of(reference.logps)
    summed: dict[str, Tensor] = {}
    for row, completion in enumerate(completions):
        alone, length = whole([completion], entropy_gradient=True), len(completion.ids)
        for a, b in ((alone.logps, reference.logps), (alone.entropy, reference.entropy)):
            assert (a[0, :length] - b[row, :length]).abs().sum() <= 1e-11
        if length:
            value = (alone.logps[0] * weights[row, :length] + alone.entropy[0] * weights.flip(0)[row, :length]).sum()
            for name, grad in gradients(policy, value).items():
                summed[name] = summed.get(name, 0) + grad
    assert largest_difference(summed, expected) <= 1e-12

    for mode, options in MODES.items():
        forward = forward_of(policy, **options)
        assert (forward.packed, forward.chunked, forward.notes) == ("packed" in mode, "whole" not in mode, [])
        found = forward(completions, entropy_gradient=True)
        assert torch.equal(found.mask, reference.mask)
        assert (found.logps - reference.logps).abs().max() <= 1e-12, mode
        assert (found.entropy - reference.entropy).abs().max() <= 1e-12, mode
        assert largest_difference(gradients(policy, total(found)), expected) <= 1e-12, mode


def test_padding_is_zero_and_entropy_has_no_gradient() -> None:
    completions = completions_of()
    found = forward_of(policy_of(qwen2()))(completions)
    assert found.mask.sum(dim=1).tolist() == [len(c.ids) for c in completions]
    assert (found.logps[found.mask == 0] == 0).all()
    assert (found.entropy[found.mask == 0] == 0).all()
    assert (found.logps[found.mask == 1] < 0).all()
    assert found.logps.requires_grad
    assert not found.entropy.requires_grad


def test_float32_gradient_norms_agree() -> None:
    policy, completions = policy_of(qwen2(**QWEN_WINDOW), torch.float32), completions_of()
    norms = []
    for options in ({"packing": False, "chunked": False}, *MODES.values()):
        grads = gradients(policy, total(forward_of(policy, **options)(completions, entropy_gradient=True)))
        norms.append(torch.stack([grad.double().norm() for grad in grads.values()]).norm())
    for norm in norms[1:]:
        assert abs(norm / norms[0] - 1) <= 1e-5


@pytest.mark.parametrize("autocast", [True, False])
def test_bfloat16_is_close(autocast: bool) -> None:
    model, completions = qwen2(), completions_of()
    exact = forward_of(policy_of(copy.deepcopy(model)))(completions)
    if autocast:
        policy = policy_of(model, torch.float32, torch.bfloat16)
    else:
        policy = policy_of(model, torch.bfloat16)
    for options in MODES.values():
        forward = forward_of(policy, **options)
        slower = "CPU does not multiply bfloat16 matrices into float32 ones: "
        slower += "logits are computed by float32 products, slower"
        assert forward.notes == ([slower] if forward.chunked else [])
        found = forward(completions)
        assert found.logps.dtype == found.entropy.dtype == torch.float32
        assert (found.logps - exact.logps).abs().max() <= 0.15
        assert (found.logps - exact.logps).abs().sum() / exact.mask.sum() <= 0.02
        for name, grad in gradients(policy, total(found, entropy=False)).items():
            assert grad.dtype == (torch.float32 if autocast else torch.bfloat16), name
            assert torch.isfinite(grad).all()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_adapters_leave_casts_to_autocast(checkpointing: bool) -> None:
    """The same bits by fewer kernels."""

    class Casts(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func is torch.ops.aten._to_copy.default
            return func(*args, **(kwargs or {}))

    policy, completions = policy_of(lora(), torch.float32, torch.bfloat16), completions_of()
    if checkpointing:
        policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        policy.model.enable_input_require_grads()
    seen = []
    for _ in range(2):
        with Casts() as casts:
            found = forward_of(policy)(completions)
            grads = gradients(policy, total(found))
        seen.append((found.logps, grads, casts.count))
        leave_casts_to_autocast(policy.model)
    (logps, grads, casts), (fewer_logps, fewer_grads, fewer_casts) = seen
    assert torch.equal(logps, fewer_logps)
    assert all(torch.equal(grads[name], fewer_grads[name]) for name in grads)
    assert fewer_casts < casts


def test_gradient_checkpointing_changes_nothing() -> None:
    policy, completions = policy_of(qwen2(**QWEN_WINDOW)), completions_of()
    expected = gradients(policy, total(forward_of(policy)(completions)))
    policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    forward = forward_of(policy)
    assert forward.packed
    assert largest_difference(gradients(policy, total(forward(completions))), expected) <= 1e-12


def test_adapter_matches_the_merged_model() -> None:
    policy, completions = policy_of(lora()), completions_of()
    adapted = forward_of(policy)(completions)
    with policy.model.disable_adapter():
        bare = forward_of(policy)(completions)
    merged = forward_of(policy_of(copy.deepcopy(policy.model).merge_and_unload()))(completions)
    assert (adapted.logps - merged.logps).abs().max() <= 1e-10
    assert (adapted.logps - bare.logps).abs().max() > 0.1


def test_probes_leave_no_trace(tmp_path: Path) -> None:
    policy = policy_of(lora())
    policy.model.base_model.model.model.layers[1].eval()
    modes = [module.training for module in policy.model.modules()]
    before = torch.get_rng_state()
    forward_of(policy)
    assert torch.equal(before, torch.get_rng_state())
    assert modes == [module.training for module in policy.model.modules()]
    assert all(parameter.grad is None for parameter in policy.model.parameters())
    policy.model.get_base_model().save_pretrained(tmp_path)
    assert packing.ATTENTION not in (tmp_path / "config.json").read_text()


def test_generation_is_unchanged() -> None:
    policy = policy_of(qwen2(), torch.float32)
    inputs = torch.randint(1, V, (3, 6))
    mask = torch.ones_like(inputs)
    mask[0, :4] = 0
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    expected = policy.model.generate(inputs, **options)
    assert forward_of(policy).packed
    assert torch.equal(policy.model.generate(inputs, **options), expected)


@pytest.mark.parametrize(("vocabulary", "times"), [(30_000, 5), (V, 20)], ids=["logits", "mask"])
def test_no_whole_logits_and_no_full_mask(monkeypatch: pytest.MonkeyPatch, vocabulary: int, times: int) -> None:
    hidden = 16
    monkeypatch.setattr(head, "chunk_elements", lambda device: 2 * vocabulary)
    forward = forward_of(policy_of(qwen2(vocab_size=vocabulary, hidden_size=hidden), torch.float32))
    completions = completions_of() * times
    tokens = sum(len(c.ids) for c in completions)
    with Largest() as largest:
        total(forward(completions, entropy_gradient=True)).backward()
    weight = vocabulary * hidden  # the head's weight and its gradient
    assert largest.numel <= max(weight, 100 * tokens) < tokens * max(vocabulary, tokens) / 10


def lora_on_the_head() -> Any:
    model = get_peft_model(qwen2(tie_word_embeddings=False), LoraConfig(r=4, target_modules=["q_proj", "lm_head"]))
    torch.nn.init.normal_(model.base_model.model.lm_head.lora_B["default"].weight, std=0.2)
    return model


@pytest.mark.parametrize(
    ("make", "packed", "chunked", "notes"),
    [
        (lora_on_the_head, True, True, ["not a plain linear layer"]),
        (lambda: CohereForCausalLM(CohereConfig(**SIZES)), True, False, ["full logits"]),
        (lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8)), False, False, ["full logits", "with padding"]),
    ],
    ids=["adapter on the head", "scaled logits", "capped logits and attention"],
)
def test_other_heads_fall_back(make: Callable[[], Any], packed: bool, chunked: bool, notes: list[str]) -> None:
    policy, completions = policy_of(make(), torch.float32), completions_of()
    forward = forward_of(policy)
    assert (forward.packed, forward.chunked) == (packed, chunked)
    assert all(text in note for text, note in zip(notes, forward.notes, strict=True))
    reference = forward_of(policy, packing=False, chunked=False)(completions, entropy_gradient=True)
    found = forward(completions, entropy_gradient=True)
    torch.testing.assert_close(found.logps, reference.logps, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(found.entropy, reference.entropy, atol=2e-5, rtol=1e-5)
    expected = gradients(policy, total(reference))
    for name, grad in gradients(policy, total(found)).items():
        torch.testing.assert_close(grad, expected[name], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("fault", ["mixes sequences", "fails", "is not used"])
def test_wrong_packing_falls_back_to_padding(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def whole_row(rows: list[Tensor], *_: Any) -> Tensor:
        if fault == "fails":
            raise RuntimeError("no such kernel\nand more")
        heads = (x.transpose(0, 1).unsqueeze(0) for x in rows)
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(*heads, is_causal=True, enable_gqa=True).squeeze(0).transpose(0, 1)

    policy, completions = policy_of(qwen2()), completions_of()
    reference = forward_of(policy, packing=False)(completions)
    if fault == "is not used":
        monkeypatch.setattr(policy.model, "set_attn_implementation", lambda name: None)
    else:
        monkeypatch.setattr(packing, "_by_buckets", whole_row)
    forward = forward_of(policy)
    assert not forward.packed
    (note,) = forward.notes
    assert "computed with padding, because" in note
    assert "\n" not in note
    assert policy.model.config._attn_implementation == "sdpa"
    assert torch.equal(forward(completions).logps, reference.logps)


def test_missing_sliding_window_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe's short sequences cannot show it in the numbers."""
    policy = policy_of(qwen2(**{**QWEN_WINDOW, "sliding_window": 100}))
    for layer in policy.model.model.layers:
        layer.self_attn.sliding_window = None
    forward = forward_of(policy)
    assert "sliding window" in forward.notes[0]
    assert not forward.packed


def test_a_changed_attention_is_refused() -> None:
    """As by a second model that is made from the same config: the first one would see beyond its sequences."""
    policy = policy_of(qwen2())
    forward = forward_of(policy)
    assert forward.packed
    Qwen2ForCausalLM._from_config(policy.model.config, attn_implementation="sdpa")
    with pytest.raises(RuntimeError, match="was changed from 'sdpa_packed' to 'sdpa'"):
        forward(completions_of())


def test_eager_attention_pads() -> None:
    policy = policy_of(qwen2(), torch.float32)
    policy.model.set_attn_implementation("eager")
    forward = forward_of(policy)
    assert not forward.packed
    assert "eager" in forward.notes[0]


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_empty_completions_and_prompts(options: dict[str, bool]) -> None:
    forward = forward_of(policy_of(qwen2()), **options)
    empty = Completion((3, 4), (), (), True)
    found = forward([empty, empty])
    assert found.logps.shape == found.mask.shape == (2, 1)
    found.logps.sum().backward()
    beside = forward([empty, Completion((3,), (4, 5), (), True), empty])
    assert beside.mask.tolist() == [[0, 0], [1, 1], [0, 0]]
    with pytest.raises(ValueError, match="empty prompt"):
        forward([Completion((), (4, 5), (), True)])


@pytest.mark.parametrize("budget", [0, 30])
@pytest.mark.parametrize("batch_size", [0, 5])
def test_scores_are_log_probabilities_in_order(budget: int, batch_size: int) -> None:
    policy, completions = policy_of(qwen2()), completions_of()
    expected = forward_of(policy)(completions).logps
    scores = forward_of(policy, token_budget=budget).score(completions, batch_size)
    assert [len(s) for s in scores] == [len(c.ids) for c in completions]
    assert (pad_values(scores, expected.shape[1]) - expected).abs().max() <= 1e-12


def test_splitting_keeps_order_and_budget() -> None:
    completions = completions_of()
    sizes = [len(c.prompt_ids) + len(c.ids) for c in completions]
    for budget in (1, 20, 47, 60, 1000):
        parts = split_by_tokens(completions, budget)
        assert [row for part in parts for row in part] == list(range(len(completions)))
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            tokens = sum(sizes[row] for row in part)
            assert tokens <= budget or len(part) == 1
            assert following is None or tokens + sizes[following.start] > budget
    assert split_by_tokens(completions, 0) == [range(len(completions))]
    assert split_by_tokens([], 0) == []


def test_padding_values() -> None:
    padded = pad_values([(0.5, 1.5), (), torch.tensor([2.0])], 2)
    assert padded.tolist() == [[0.5, 1.5], [0.0, 0.0], [2.0, 0.0]]
    assert padded.dtype == torch.float32
    assert pad_values([torch.tensor([0.1], dtype=torch.float64)], 1).dtype == torch.float64


def test_loaded_adapter_is_packed(tmp_path: Path) -> None:
    made = lora()
    made.save_pretrained(tmp_path)
    torch.manual_seed(0)
    loaded = PeftModel.from_pretrained(qwen2(), str(tmp_path), is_trainable=True)
    forward = forward_of(policy_of(loaded))
    assert (forward.packed, forward.chunked, forward.notes) == (True, True, [])


def test_the_log_says_how_log_probabilities_are_computed() -> None:
    policy = policy_of(qwen2())
    found = forward_of(policy).description
    assert found == "log-probabilities: rows packed, attention by buckets, logits in chunks"
    plain = forward_of(policy_of(qwen2()), packing=False, chunked=False).description
    assert plain == "log-probabilities: rows padded, attention by sdpa, logits whole"
