"""Writers of a run's logs: JSONL files, and TensorBoard events of the scalars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import JsonlWriter, to_float
from grpo_train.run_dir.tokens import FILE as TOKENS

ALIASES = {"reward": "reward/mean"}
"""Keys that TensorBoard and W&B get under another name of the field, too."""


def with_aliases(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {**metrics, **{alias: metrics[key] for key, alias in ALIASES.items() if key in metrics}}


class StepLogs:
    """Logs of a run's steps, flushed per step."""

    def __init__(self, run: RunDir, *, tensorboard: bool, purge_step: int, has_tokens: bool) -> None:
        """``purge_step``: first step to be logged; TensorBoard drops older events from there on."""
        self._train = JsonlWriter(run.logs / "train_log.jsonl")
        self._rollouts = JsonlWriter(run.logs / "rollouts.jsonl")
        self._ratios = JsonlWriter(run.logs / "ratios.jsonl")
        self._tokens = JsonlWriter(run.logs / TOKENS) if has_tokens else None
        self._board: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run.path / "tensorboard"), purge_step=purge_step)

    def step(
        self,
        metrics: Mapping[str, Any],
        rollouts: Sequence[Mapping[str, Any]],
        ratios: Mapping[str, Any],
        tokens: Sequence[Mapping[str, Any]],
    ) -> None:
        """Write one step. Its line in ``train_log.jsonl`` comes last: a reader who sees it finds the other lines."""
        self._rollouts.write(*rollouts)
        self._ratios.write(ratios)
        if self._tokens is not None:
            self._tokens.write(*tokens)
        self._train.write(metrics)
        if self._board is not None:
            for key, value in with_aliases(metrics).items():
                if key != "step" and (scalar := to_float(value)) is not None:
                    self._board.add_scalar(key, scalar, metrics["step"])
            self._board.flush()

    def close(self) -> None:
        for writer in (self._train, self._rollouts, self._ratios, self._tokens):
            if writer is not None:
                writer.sync()
                writer.close()
        if self._board is not None:
            self._board.close()
