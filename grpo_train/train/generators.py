"""The random generators of a process: seeded, and saved and restored with a checkpoint."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int, rank: int, step: int = 0) -> None:
    """Seed every random generator of this process, differently for each rank and starting step."""
    mixed = seed * 100_003 + rank + step * 1_000_003
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    torch.manual_seed(mixed)


def generator_states() -> dict[str, Any]:
    """States of all random generators of this process, as tensors and plain values."""
    python = random.getstate()
    numpy_state = np.random.get_state(legacy=False)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": [python[0], list(python[1]), python[2]],
        "numpy": {
            "key": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
            "pos": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
    }


def restore_generators(states: dict[str, Any]) -> None:
    """Restore the states returned by :func:`generator_states`."""
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())
    version, state, gauss = states["python"]
    random.setstate((version, tuple(state), gauss))
    saved = states["numpy"]
    np.random.set_state(
        {
            "bit_generator": "MT19937",
            "state": {"key": saved["key"].numpy().astype(np.uint32), "pos": saved["pos"]},
            "has_gauss": saved["has_gauss"],
            "gauss": saved["gauss"],
        }
    )
