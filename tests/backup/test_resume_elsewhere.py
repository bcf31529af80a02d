"""A restored run, resumed under another root, is bit for bit the run that never moved.

Full weights, self-play, a rewound run and starting weights of the older layout are in ``tests/soak``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from tests.support.engine import train_here, write_config
from tests.support.moving import assert_moves_bit_for_bit


def test_moved_lora_run_continues_bit_for_bit(make_root: Callable[[], Path], tmp_path: Path) -> None:
    """Its base, a local model, travels along."""
    torch.set_num_threads(1)
    root, other = make_root(), make_root()
    cfg = write_config(tmp_path, model__adapter="lora")
    straight = train_here(root, cfg, "straight")
    there = assert_moves_bit_for_bit(straight, other, cfg, tmp_path)
    assert (there.root / "models" / "tiny" / "config.json").is_file()
    shutil.rmtree(root)
