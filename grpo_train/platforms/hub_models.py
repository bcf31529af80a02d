"""Models of the Hugging Face hub: whether a launch finds one, and downloading one to carry elsewhere. Torch-free."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from grpo_train.config.schema import Rollout
from grpo_train.policy.locate import (
    BACKBONES,
    HUB_SOURCE,
    PolicyError,
    check_files,
    check_positions,
    hub_commit,
    hub_id,
)
from grpo_train.run_dir import remove_tree
from grpo_train.run_dir.files import atomic_write, read_json, to_json
from grpo_train.tasks.shared.hub import hub_answers

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
FILES = ("*.json", "*.safetensors", "*.model", "*.tiktoken", "*.jinja", "vocab*", "merges.txt", "LICENSE*", "README.md")
"""What a model needs, with its license; a repository may hold the same weights in other formats, too."""


def check_hub_model(resolved: str) -> None:
    """Raise PolicyError (``no_model``) for a hub model that is not in the cache while the hub does not answer.

    ``resolved`` is a resolved backbone; a directory passes.
    """
    if Path(resolved).is_dir() or is_cached(resolved):
        return
    name, commit = hub_id(resolved)
    if not hub_answers(name, commit=commit):
        raise PolicyError(
            f"the model {resolved} is not in this machine's cache, and the hub does not answer. On a machine with a "
            f"network run  grpo-train fetch-model {resolved} --to DIR  , copy DIR here and use it in place of the name",
            code="no_model",
        )


def is_cached(resolved: str) -> bool:
    """Whether the cache of the hub's client holds the configuration and weights of a model."""
    return _cached_file(resolved, "config.json") is not None and any(_cached_file(resolved, name) for name in WEIGHTS)


def model_config(resolved: str) -> Path | None:
    """``config.json`` of a resolved backbone, in its directory or in the cache; None where neither has it."""
    folder = Path(resolved)
    return folder / "config.json" if folder.is_dir() else _cached_file(resolved, "config.json")


def check_lengths(resolved: str, rollout: Rollout) -> None:
    """Raise PolicyError if a prompt and a completion of ``rollout`` exceed the positions of a model.

    ``resolved`` is a resolved backbone; the configuration of a hub model is downloaded where the cache does not hold
    it. A model whose configuration cannot be read passes: loading it gives the reason.
    """
    if (file := model_config(resolved)) is None:
        hub_commit(*hub_id(resolved))
        file = model_config(resolved)
    config = (read_json(file) if file else None) or {}
    keys = ("rollout.max_prompt_length", "rollout.max_completion_length")
    check_positions(resolved, config, rollout.max_prompt_length, rollout.max_completion_length, keys)


def _cached_file(resolved: str, name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    repository, commit = hub_id(resolved)
    found = try_to_load_from_cache(repository, name, revision=commit)
    return Path(found) if isinstance(found, str) else None


def hub_api(token: str | None = None) -> Any:
    """Client of the hub at ``HF_ENDPOINT``; ``token`` in place of the user's own."""
    from huggingface_hub import HfApi

    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)


def download_model(name: str, to: Path) -> str:
    """Download a model to a directory that appears when it is complete; returns its commit.

    ``name`` is a short name, or a hub ID, optionally at a commit. A download that was cut is continued. Raises
    PolicyError.
    """
    from huggingface_hub import HfApi, snapshot_download

    if to.exists():
        raise PolicyError(f"{to} exists already; remove it or choose another --to", code="exists")
    hub_name, commit = hub_id(BACKBONES.get(name, name))
    part = to.with_name(f".{to.name}.part")
    try:
        info = HfApi().model_info(hub_name, revision=commit)
        names = [file.rfilename for file in info.siblings or []]
        patterns = FILES if any(file.endswith(".safetensors") for file in names) else (*FILES, "*.bin")
        snapshot_download(hub_name, revision=info.sha, local_dir=part, allow_patterns=list(patterns))
    except Exception as error:  # the hub's client and the HTTP client below it raise many types
        reason = str(error).strip().splitlines()[0]
        raise PolicyError(f"cannot fetch {hub_name}: {reason}", code="no_model") from error
    remove_tree(part / ".cache")  # the client's notes about the download
    check_files(part)
    atomic_write(part / HUB_SOURCE, to_json({"model": f"{hub_name}@{info.sha}"}) + "\n")
    os.rename(part, to)
    return str(info.sha)
