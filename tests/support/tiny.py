"""The tests' tiny model, kept between runs."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.support.engine import REPOSITORY

SOURCES = ("tiny/model.py", "tiny/tokenizer.py", "tasks/addition.py", "tasks/shared/generated.py")


def kept_tiny_model(folder: Path) -> Path:
    """A tiny model whose sampled answers are sometimes correct, in ``folder``; made where its sources have changed."""
    import fcntl  # Windows has none

    from grpo_train.tiny.model import WarmStart, make_tiny_model

    warm_start = WarmStart(steps=120, batch_size=48)
    sources = b"".join((REPOSITORY / "grpo_train" / name).read_bytes() for name in SOURCES)
    model = folder / hashlib.sha256(repr(warm_start).encode() + sources).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # the suite's workers start at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (model / "config.json").exists():
            make_tiny_model(model, seed=0, warm_start=warm_start)
    return model
