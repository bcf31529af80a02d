"""Merging an adapter on tied embeddings: the merged model computes what the adapter did, as written to disk."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_train.config.schema import Model
from grpo_train.export import weights
from grpo_train.export.plan import ExportError, ExportRequest, plan_export
from grpo_train.export.write import write_export
from grpo_train.policy.loading import load_policy
from tests.support.engine import train_here, write_micro

IDS = torch.arange(3, 40).unsqueeze(0)
TIED = [
    ({"target_modules": ["lm_head", "q_proj"]}, False),
    ({"target_modules": ["embed_tokens"]}, False),
    ({"target_modules": ["embed_tokens", "lm_head"]}, False),
    ({"target_modules": ["lm_head"], "ensure_weight_tying": True}, False),
    ({"target_modules": ["lm_head"], "use_dora": True}, False),
    ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, False),
    ({"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, False),
    ({"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}, True),
    ({"target_modules": ["q_proj"], "trainable_token_indices": [5, 6]}, False),
    ({"target_modules": ["q_proj"]}, True),
]


def adapted(folder: Path, settings: dict[str, Any]) -> Any:
    """The micro model, whose embeddings are tied, with an adapter of random weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(r=4, init_lora_weights=False, task_type="CAUSAL_LM", **settings))
    for name, weight in model.named_parameters():
        if "modules_to_save" in name or "trainable_tokens" in name:
            weight.data.add_(0.1 * torch.randn_like(weight))
    return SimpleNamespace(model=model.eval(), tokenizer=AutoTokenizer.from_pretrained(folder))


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=IDS).logits
    return found


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize(("settings", "is_tied"), TIED, ids=str)
def test_a_merge_keeps_what_the_adapter_computes(
    tiny_model: Path, tmp_path: Path, settings: dict[str, Any], is_tied: bool
) -> None:
    policy = adapted(tiny_model, settings)
    expected = logits(policy.model)
    merged = weights._merged(policy)
    merged.save_pretrained(tmp_path)
    for model in (merged, AutoModelForCausalLM.from_pretrained(tmp_path)):
        assert model.config.tie_word_embeddings == is_tied
        torch.testing.assert_close(logits(model), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_a_trained_output_layer_is_exported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two steps the adapter has moved the logits by less than a hundredth."""
    options = {"model__adapter": "lora", "model__lora_targets": ["lm_head"], "run__total_steps": 2}
    run = train_here(root, write_micro(root, **options), "run")
    plan = plan_export(ExportRequest("run", merge=True, root=root, to=root / "merged"))
    with monkeypatch.context() as patch:
        patch.setattr(weights, "_untie", lambda model: None)
        with pytest.raises(ExportError, match=r"where the adapter changes them by 0\.00"):
            write_export(plan)
    write_export(plan)
    settings = Model.model_validate({"backbone": "tiny", "device": "cpu"})
    folder = run.training_state / "step_2" / "model"
    policy = load_policy(settings, root, torch.device("cpu"), weights=folder, trainable=False)
    expected = logits(policy.model)
    with policy.model.disable_adapter():
        assert 1e-4 < float((logits(policy.model) - expected).abs().max()) < 1e-2
    merged = AutoModelForCausalLM.from_pretrained(root / "merged")
    assert float((logits(merged) - expected).abs().max()) <= 1e-5
