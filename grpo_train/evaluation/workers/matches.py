"""Who answers where a task is a game: the checkpoint plays matches, in both roles, against players of known strength.

An item is a match, sample ``item % num_samples`` of a problem, and the problem's number says against whom and in which
role: with every other number the model moves first, and each pair of numbers has the next opponent. Every turn draws
from random numbers of its own, so that a match does not depend on those that are played beside it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers

from grpo_train.config.schema import Config
from grpo_train.evaluation.opponents import opponents_of, pairing, place_of
from grpo_train.evaluation.plan import EvalPlan, Target
from grpo_train.evaluation.results.keys import decoding
from grpo_train.evaluation.workers.memory import automatic_batch_size
from grpo_train.games import OPPONENTS, Match, Opponent
from grpo_train.games.transcript import Transcript, as_text
from grpo_train.policy.loading import Policy, load_policy, pick_device
from grpo_train.policy.locate import PolicyError, base_of_checkpoint, check_weights, recorded_base
from grpo_train.rollout import seed_of
from grpo_train.rollout.prompts import encode
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.tasks import Problem
from grpo_train.tasks.shared.self_play import SelfPlayTask


@dataclass(frozen=True)
class Written:
    """What a player wrote when it was asked for a move."""

    text: str
    length: int = 0
    """Tokens."""
    truncated: bool = False


Player = Callable[[Sequence[Problem], Sequence[int]], "list[Written]"]
"""Answers turns, each with a seed of its own; a pure function of turn and seed."""


@dataclass
class Table:
    """A match under way."""

    seed: int
    match: Match
    transcript: Transcript
    own: list[Written] = field(default_factory=list)
    """The model's turns."""


def play_matches(task: SelfPlayTask, tables: Sequence[Table], model: Player, opponents: Mapping[str, Player]) -> None:
    """Play every match to its end, side by side, a turn at a time."""
    turn = 0
    while playing := [table for table in tables if not table.match.ending]:
        by_player: dict[str | None, list[Table]] = {}
        for table in playing:
            own = turn % 2 == table.transcript.role
            by_player.setdefault(None if own else table.transcript.opponent, []).append(table)
        for name, asked in by_player.items():
            player = model if name is None else opponents[name]
            problems = [task.turn(0, table.match.state) for table in asked]
            seeds = [random.Random(f"{table.seed} {turn}").getrandbits(62) for table in asked]
            for table, written in zip(asked, player(problems, seeds), strict=True):
                table.match = table.match.reply(written.text)
                table.transcript = replace(table.transcript, texts=(*table.transcript.texts, written.text))
                if name is None:
                    table.own.append(written)
        turn += 1


def program(opponent: Opponent) -> Player:
    """A player that is no model."""

    def write(problems: Sequence[Problem], seeds: Sequence[int]) -> list[Written]:
        return [
            Written(as_text(opponent.choose(problem.data, random.Random(seed))))
            for problem, seed in zip(problems, seeds, strict=True)
        ]

    return write


def model_player(policy: Policy, stop: Sequence[str], settings: Mapping[str, Any]) -> Player:
    """A model that writes under ``settings``, see :func:`~grpo_train.evaluation.results.keys.decoding`."""
    backend = TransformersBackend(policy.model, policy.tokenizer, stop)

    def write(problems: Sequence[Problem], seeds: Sequence[int]) -> list[Written]:
        found = backend.generate(
            encode(problems, policy.tokenizer),
            seeds=seeds,
            max_completion_length=settings["max_completion_length"],
            temperature=settings["temperature"],
            top_p=settings["top_p"],
        )
        texts = policy.tokenizer.batch_decode([one.ids for one in found], skip_special_tokens=True)
        return [Written(text, len(one.ids), truncated=not one.finished) for one, text in zip(found, texts, strict=True)]

    return write


class Matches:
    """Plays a checkpoint's matches; see :class:`grpo_train.evaluation.workers.worker.Answers`."""

    def __init__(
        self, target: Target, plan: EvalPlan, config: Config, task: SelfPlayTask, problems: Sequence[Problem]
    ) -> None:
        self._target, self._plan, self._config = target, plan, config
        self._task, self._problems = task, problems
        self._names = opponents_of(task, config)

    def layout(self) -> dict[str, Any]:
        """Which matches are played side by side, and on what."""
        count = len(self._problems) * self._config.eval.num_samples
        size = self._config.eval.batch_size
        if size == "auto":
            longest = max(map(len, encode(list(self._task.long_games(16)), self._policy.tokenizer)))
            budget = decoding(self._config, self._task)["max_completion_length"]
            size = automatic_batch_size(self._policy.model, self._policy.device, longest, budget, count)
        root = Path(self._plan.root)
        return {
            "chunks": [list(range(first, min(first + size, count))) for first in range(0, count, size)],
            "batch_size": size,
            "checkpoint": self._policy.base if self._is_backbone else recorded_base(self._target.path, root),
            "device": str(self._policy.device),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }

    def answer(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """The rows of these items; ``completion`` is the transcript, ``length`` the model's tokens a turn."""
        tables = [self._table(item) for item in items]
        play_matches(self._task, tables, self._model, self._players)
        return [
            {
                "item": item,
                "seed": table.seed,
                "completion": table.transcript.dump(self._task.game),
                "length": round(sum(each.length for each in table.own) / max(1, len(table.own))),
                "truncated": any(each.truncated for each in table.own),
            }
            for item, table in zip(items, tables, strict=True)
        ]

    def _table(self, item: int) -> Table:
        number, sample = divmod(item, self._config.eval.num_samples)
        problem = self._problems[number]
        opponent, role = pairing(problem.index, self._names)
        seed = seed_of(self._config.run.seed, self._plan.label, problem.index, sample)
        return Table(seed, self._task.match(problem), Transcript(role, opponent))

    @property
    def _is_backbone(self) -> bool:
        return self._target.path == self._plan.root

    @cached_property
    def _policy(self) -> Policy:
        root = Path(self._plan.root)
        path = Path(self._target.path)
        base = self._plan.base or base_of_checkpoint(path, root)
        weights = None if self._is_backbone else check_weights(path)
        settings = self._config.model
        device = pick_device(settings.device)
        return load_policy(settings, root, device, weights=weights, base=base, trainable=False)

    @cached_property
    def _model(self) -> Player:
        return model_player(self._policy, self._task.stop, decoding(self._config, self._task))

    @cached_property
    def _players(self) -> dict[str, Player]:
        known = {each.name: each for each in OPPONENTS[self._task.game.name]}
        return {name: program(known[name]) if name in known else self._checkpoint(name) for name in self._names}

    def _checkpoint(self, name: str) -> Player:
        root, settings = Path(self._plan.root), self._config.model
        try:
            path = place_of(name, root)
            weights, base = check_weights(path), self._plan.base or base_of_checkpoint(path, root)
            device = pick_device(settings.device)
            policy = load_policy(settings, root, device, weights=weights, base=base, trainable=False)
        except PolicyError as error:
            raise PolicyError(f"eval.opponents '{name}': {error}") from error
        return model_player(policy, self._task.stop, decoding(self._config, self._task))
