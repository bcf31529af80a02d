"""A model's tokenizer without its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_train.policy.locate import PolicyError, hub_id, resolve_backbone
from grpo_train.tasks.shared.hub import hub_answers


def load_tokenizer(backbone: str, root: Path) -> Any:
    """The tokenizer of a ``model.backbone``, from the cache where the hub does not answer. Raises PolicyError."""
    from transformers import AutoTokenizer  # takes seconds to import

    source = resolve_backbone(backbone, root)
    is_local = Path(source).is_dir()
    name, commit = (source, None) if is_local else hub_id(source)
    cache_only = not is_local and not hub_answers(name, commit=commit)
    try:
        return AutoTokenizer.from_pretrained(name, revision=commit or "main", local_files_only=cache_only)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise PolicyError(f"cannot load the tokenizer of '{source}': {reason}", code="no_model") from error
