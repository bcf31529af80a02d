"""The Hugging Face hub: whether it answers, and datasets from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from grpo_train.run_dir.signs import downloading
from grpo_train.tasks.shared.base import TaskError


def hub_answers(repository: str, *, kind: str = "model", commit: str | None = None) -> bool:
    """Whether the hub answers one request about ``OWNER/NAME``, with success or a refusal.

    For starts while it is down: its client tries again for up to 50 s before it uses the cache.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    try:
        get_hf_file_metadata(hf_hub_url(repository, "README.md", repo_type=kind, revision=commit))
    except HfHubHTTPError as error:
        return error.response.status_code < 500
    except Exception:  # those of the HTTP client below it, which changes between versions
        return False
    return True


def load_hub_dataset(name: str, config: str, *, split: str | None = None, otherwise: str) -> Any:
    """``datasets.load_dataset(name, config)``, from the cache where the hub is down.

    ``otherwise`` tells what to do without the hub. Raises TaskError.
    """
    import datasets  # takes a second to import
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        if not datasets.config.HF_HUB_OFFLINE and not hub_answers(name, kind="dataset"):
            datasets.config.HF_HUB_OFFLINE = True
            try:
                return datasets.load_dataset(name, config, split=split)
            except Exception:  # not in the cache: the hub may answer a later try
                pass
            finally:
                datasets.config.HF_HUB_OFFLINE = False
        with downloading(Path(HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}"):
            return datasets.load_dataset(name, config, split=split)
    except Exception as error:  # datasets, the hub client and the network raise many types; the fix is the same
        offline = any(
            os.environ.get(variable) in {"1", "true"} for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
        )
        reason = "HF_HUB_OFFLINE is set and the dataset is not in the cache" if offline else str(error).split("\n")[0]
        raise TaskError(
            f"task.path is not set and {name} could not be loaded from the hub ({reason}); {otherwise}"
        ) from error
