"""Matches of a checkpoint against opponents of known strength, in both roles: the sample source of games.

An item is a match; the index of its problem determines opponent and role
(:func:`~grpo_train.evaluation.opponents.pairing`). Every turn has its own seed, so a match does not depend on the
matches played beside it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.evaluation.opponents import opponent_path, opponents_of, pairing
from grpo_train.evaluation.plan import EvalPlan
from grpo_train.evaluation.targets import Target
from grpo_train.evaluation.workers.checkpoint import Reply, SampleSource
from grpo_train.evaluation.workers.memory import automatic_batch_size
from grpo_train.games import OPPONENTS, Match, Opponent
from grpo_train.games.transcript import Transcript, move_text
from grpo_train.policy.loading import Policy
from grpo_train.rollout.backends import decoding_steps, make_backend
from grpo_train.rollout.prompts import encode_prompts
from grpo_train.run_dir.errors import prefixed
from grpo_train.tasks import Problem
from grpo_train.tasks.shared.self_play import SelfPlayTask

Player = Callable[[Sequence[Problem], Sequence[int]], "list[Reply]"]
"""Replies to turns, given a seed for each; a pure function of turn and seed."""


@dataclass
class OpenMatch:
    """A match in progress."""

    seed: int
    match: Match
    transcript: Transcript
    own: list[Reply] = field(default_factory=list)
    """The model's replies."""


def play_matches(
    task: SelfPlayTask, tables: Sequence[OpenMatch], model: Player, opponents: Mapping[str, Player]
) -> None:
    """Play every match to its end, side by side, one turn at a time."""
    turn = 0
    while playing := [table for table in tables if not table.match.ending]:
        by_player: dict[str | None, list[OpenMatch]] = {}
        for table in playing:
            own = turn % 2 == table.transcript.role
            by_player.setdefault(None if own else table.transcript.opponent, []).append(table)
        for name, to_move in by_player.items():
            player = model if name is None else opponents[name]
            problems = [task.turn(0, table.match.state) for table in to_move]
            seeds = [random.Random(f"{table.seed} {turn}").getrandbits(62) for table in to_move]
            for table, reply in zip(to_move, player(problems, seeds), strict=True):
                table.match = table.match.reply(reply.text)
                table.transcript = replace(table.transcript, texts=(*table.transcript.texts, reply.text))
                if name is None:
                    table.own.append(reply)
        turn += 1


def scripted_player(opponent: Opponent) -> Player:
    """A player of the game that is not a model."""

    def reply(problems: Sequence[Problem], seeds: Sequence[int]) -> list[Reply]:
        return [
            Reply(move_text(opponent.choose(problem.data, random.Random(seed))))
            for problem, seed in zip(problems, seeds, strict=True)
        ]

    return reply


class MatchSource(SampleSource):
    """Plays a checkpoint's matches."""

    _task: SelfPlayTask

    def __init__(
        self, target: Target, plan: EvalPlan, config: Config, task: SelfPlayTask, problems: Sequence[Problem]
    ) -> None:
        super().__init__(target, plan, config, task, problems)
        self._names = opponents_of(task, config)

    def layout(self) -> dict[str, Any]:
        count = len(self._problems) * self._samples
        size = self._config.eval.batch_size
        if size == "auto":
            longest = max(map(len, encode_prompts(list(self._task.long_games(16)), self._policy.tokenizer)))
            budget = self._decoding["max_completion_length"]
            size = automatic_batch_size(self._policy.model, self._policy.device, longest, budget, count)
        return self._layout(range(count), size, size)

    def generate(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """Rows of these items: ``completion`` is the transcript, ``length`` the model's mean tokens per turn."""
        tables = [self._table(item) for item in items]
        play_matches(self._task, tables, self._model, self._opponents)
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

    def _table(self, item: int) -> OpenMatch:
        problem = self._problems[item // self._samples]
        opponent, role = pairing(problem.index, self._names)
        return OpenMatch(self._seed(item), self._task.match(problem), Transcript(role, opponent))

    @cached_property
    def _model(self) -> Player:
        return self._model_player(self._policy)

    @cached_property
    def _opponents(self) -> dict[str, Player]:
        known = OPPONENTS[self._task.game.name]
        return {
            name: scripted_player(known[name]) if name in known else self._checkpoint_player(name)
            for name in self._names
        }

    def _checkpoint_player(self, name: str) -> Player:
        with prefixed(f"eval.opponents '{name}': "):
            policy = self._load(opponent_path(name, Path(self._plan.root)))
        return self._model_player(policy)

    def _model_player(self, policy: Policy) -> Player:
        """A model as a player."""
        share = math.ceil(len(self._problems) * self._samples / self._config.eval.nproc)
        size, turns = self._config.eval.batch_size, math.ceil(self._task.turns / 2)
        steps = decoding_steps(share, self._decoding["max_completion_length"], 0 if size == "auto" else size)
        backend = make_backend(self._config, policy, self._task.stop, steps=turns * steps)

        def reply(problems: Sequence[Problem], seeds: Sequence[int]) -> list[Reply]:
            return self._complete(policy, backend, encode_prompts(problems, policy.tokenizer), seeds)

        return reply
