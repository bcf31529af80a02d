"""Models of other kinds: without sdpa, and with dropout of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from grpo_train.config.schema import Config
from grpo_train.policy.loading import Policy, load_policy
from grpo_train.policy.locate import PolicyError
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.rollout.backends import make_backend
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.tiny.tokenizer import make_tokenizer
from tests.support.engine import train_here, write_micro
from tests.support.evaluating import evaluate_here

GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4}
OF_32: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDE: dict[str, Any] = {**OF_32, "intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
WITHOUT_SDPA = {
    "Gemma2": WIDE | {"sliding_window": 4},
    "GptOss": WIDE | EXPERTS | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4},
    "Bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "Mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
}
WITHOUT_SLOTS = {"Falcon": OF_32, "StableLm": {**OF_32, "intermediate_size": 64, "num_key_value_heads": 2}}
"""They have sdpa, in a way that native cannot replace."""
WITH_DROPOUT = {
    "GPT2": {**GPT, "attn_pdrop": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5},
    "OPT": {**OF_32, "ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.5, "layerdrop": 0.5},
    "Phi": {**OF_32, "intermediate_size": 64, "attention_dropout": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5},
    "Bloom": WITHOUT_SDPA["Bloom"] | {"hidden_dropout": 0.5, "attention_dropout": 0.5},
    "Mixtral": WIDE | EXPERTS | {"router_jitter_noise": 0.5},
}


def save(folder: Path, kind: str, settings: dict[str, Any]) -> None:
    """A model with random weights and the tokenizer of the tiny model."""
    tokenizer = make_tokenizer()
    ids = {"vocab_size": len(tokenizer), "eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 1}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**settings, **ids)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(folder: Path, **settings: Any) -> Policy:
    model = Config.model_validate({"model": {"backbone": str(folder), "device": "cpu", "adapter": "none", **settings}})
    return load_policy(model.model, folder, torch.device("cpu"))


@pytest.mark.parametrize("kind", [*WITHOUT_SDPA, *WITHOUT_SLOTS])
def test_models_without_sdpa_are_generated_by_transformers(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, kind, (WITHOUT_SDPA | WITHOUT_SLOTS)[kind])
    policy = load(tmp_path)
    backend = make_backend(Config(), policy)
    assert isinstance(backend, TransformersBackend)
    said = capsys.readouterr().out
    assert "rollouts by transformers, as native cannot run this model: " in said
    has_sdpa = getattr(transformers, f"{kind}ForCausalLM")._supports_sdpa  # Gemma2 in some versions of transformers
    assert (f"model.attention: eager, as {kind}ForCausalLM has no sdpa" in said) == (not has_sdpa)
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14]]
    completions = backend.generate(prompts, seeds=[0, 1], max_completion_length=6, temperature=1.0)
    for scored, completion in zip(LogprobForward(policy, temperature=1.0).score(completions), completions, strict=True):
        torch.testing.assert_close(scored, torch.tensor(completion.logps), atol=1e-4, rtol=1e-4)


def test_a_missing_attention_kernel_is_an_error(tmp_path: Path) -> None:
    save(tmp_path, "GPT2", GPT)
    with pytest.raises(PolicyError, match=r"FlashAttention2 .* \(set model\.attention: sdpa\)"):
        load(tmp_path, attention="flash_attention_2")


@pytest.mark.parametrize("kind", WITH_DROPOUT)
def test_dropout_of_the_model_is_off(tmp_path: Path, kind: str) -> None:
    save(tmp_path, kind, WITH_DROPOUT[kind])
    model, ids = load(tmp_path).model, torch.arange(3, 35).unsqueeze(0)
    assert model.training
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


def test_dropout_of_the_adapter_stays(tmp_path: Path) -> None:
    save(tmp_path, "GPT2", WITH_DROPOUT["GPT2"])
    model = load(tmp_path, adapter="lora", lora_dropout=0.25).model
    shares = {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
    assert {share for name, share in shares.items() if "lora_dropout" in name} == {0.25}
    assert {share for name, share in shares.items() if "lora_dropout" not in name} == {0.0}


@pytest.mark.parametrize("kind", ["GPT2", "Bloom"])
def test_a_run_of_a_model_with_dropout_starts_where_its_reference_is(tmp_path: Path, kind: str) -> None:
    save(tmp_path / "models" / "tiny", kind, WITH_DROPOUT[kind])
    changes: dict[str, Any] = {"run__total_steps": 1, "algorithm__num_iterations": 2, "algorithm__beta": 0.01}
    run = train_here(tmp_path, write_micro(tmp_path, **changes), "run")
    (row, *_) = map(json.loads, (run.logs / "train_log.jsonl").read_text().splitlines())
    assert max(row["kl"], row["clip_ratio/region_mean"]) < 1e-9
    assert row["mismatch/kl"] < 1e-9
    assert evaluate_here(tmp_path, "run", steps="1", num_problems=2) == 0
