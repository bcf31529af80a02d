"""Rollouts of self-play games: all games of a rank are played in parallel, one turn at a time.

A group is a game and its slots are the turns. Every turn is a sample with the return of the role that made the move.
Logged metrics, means over games unless noted:

- ``self_play/invalid_rate``: ended by an illegal move; ``draw_rate``: finished with equal returns;
- ``self_play/GAME/ROLE/win_rate``: finished with the higher return for that role;
- ``self_play/same_opening``: probability that another game of the same rank started with the same two moves;
- ``self_play/reasoning_words``: words before the answer, mean over turns; ``no_reasoning``: share of turns without
  reasoning (above one half, the median is 0). Self-play has been seen to unlearn reasoning (SPIRAL, arXiv 2506.24119).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.games import Match
from grpo_train.policy.loading import Policy
from grpo_train.rewards import Rewards, RewardValues
from grpo_train.rollout import Completion, RolloutBackend
from grpo_train.rollout.collect import Role, Sample, attempt_of, generate_completions
from grpo_train.rollout.prompts import Prompt, encode_prompts
from grpo_train.tasks import Attempt, Problem, TaskError, Verdict
from grpo_train.tasks.shared.self_play import SelfPlayTask, check_self_play

LONG_GAMES = 64
"""Games whose prompt lengths are checked before training starts."""
_ANSWER = re.compile(r"</think>|<answer>|\\boxed\{")


@dataclass
class _Table:
    """A game in progress."""

    key: str
    """Unique name in the run."""
    group: int
    index: int
    match: Match
    turns: list[tuple[Completion, Attempt]] = field(default_factory=list)


class SelfPlay:
    """:class:`~grpo_train.rollout.collect.Collector` of games in which the policy plays both sides.

    Reward functions are called for every turn; a role's reward in a game is the mean over its turns (``score``, the
    default, is the same for all of them).
    """

    def __init__(
        self, task: SelfPlayTask, rewards: Rewards, backend: RolloutBackend, policy: Policy, config: Config
    ) -> None:
        """Raises TaskError if the config does not suit self-play, or a prompt is too long."""
        check_self_play(task, config)
        self._task, self._rewards, self._backend, self._policy = task, rewards, backend, policy
        self._config = config
        self._prompts(list(task.long_games(LONG_GAMES)))

    def generate_and_judge(self, buffer_index: int, groups: Sequence[int], prompts: Sequence[Prompt]) -> list[Sample]:
        """See :meth:`~grpo_train.rollout.collect.Collector.generate_and_judge`.

        Both sides' turns are generated together. A round takes as long as its longest completion.
        """
        tables = [
            _Table(f"{buffer_index}/{group}", group, prompt.problem.index, self._task.match(prompt.problem))
            for group, prompt in zip(groups, prompts, strict=True)
        ]
        while playing := [table for table in tables if not table.match.ending]:
            turns = self._prompts([self._task.turn(table.index, table.match.state) for table in playing])
            keys = [f"{table.key}/{len(table.turns)}" for table in playing]
            completions = generate_completions(self._backend, self._config, turns, keys)
            for table, key, turn, completion in zip(playing, keys, turns, completions, strict=True):
                attempt = attempt_of(turn.problem, completion, key, self._policy)
                table.turns.append((completion, attempt))
                table.match = table.match.reply(attempt.completion)
        openings = Counter(table.match.moves[:2] for table in tables)
        samples: list[Sample] = []
        for table in tables:
            others = openings[table.match.moves[:2]] - 1
            opening = {"self_play/same_opening": others / (len(tables) - 1)} if len(tables) > 1 else {}
            samples += self._samples(table, {**_outcome(table.match), **opening})
        return samples

    def _samples(self, table: _Table, metrics: Mapping[str, float]) -> list[Sample]:
        """Samples of a finished game's turns. ``metrics`` describe the whole game."""
        match = table.match
        roles = [Role(match.game.name, name) for name in match.game.roles]
        returns = match.returns
        assert returns is not None
        verdicts: list[Verdict] = []
        rewards: list[RewardValues] = []
        for turn, (_, attempt) in enumerate(table.turns):
            verdict = self._task.judge_turn(attempt)
            last = turn == len(table.turns) - 1
            verdict = replace(
                verdict,
                score=returns[turn % 2],
                metrics={**_reasoning(attempt.completion), **(metrics if last else {})},
                facts=_facts(table, turn, verdict),
            )
            verdicts.append(verdict)
            rewards.append(self._rewards(attempt, verdict))
        by_role = [self._game_rewards(rewards[player::2], role) for player, role in enumerate(roles)]
        return [
            Sample.of(table.group, turn, attempt, completion, verdicts[turn], by_role[turn % 2], roles[turn % 2])
            for turn, (completion, attempt) in enumerate(table.turns)
        ]

    def _game_rewards(self, turns: Sequence[RewardValues], role: Role) -> RewardValues:
        """A role's rewards in a game: each function's mean over the turns it applies to, None without such a turn.

        Raises TaskError if no function applies to any of the role's turns.
        """
        rewards: RewardValues = {}
        for name in self._rewards.names if turns else ():
            values = [value for turn in turns if (value := turn[name]) is not None]
            rewards[name] = math.fsum(values) / len(values) if values else None
        if turns and all(value is None for value in rewards.values()):
            raise TaskError(
                f"task.rewards: no reward function ({', '.join(rewards)}) applied to any turn of {role.label} in a game"
            )
        return rewards

    def _prompts(self, problems: Sequence[Problem]) -> list[Prompt]:
        """Tokenize turns. Raises TaskError if one is too long: unlike a problem of a data set, it cannot be skipped."""
        encoded = encode_prompts(problems, self._policy.tokenizer)
        longest, limit = max(map(len, encoded), default=0), self._config.rollout.max_prompt_length
        if longest > limit:
            raise TaskError(
                f"rollout.max_prompt_length {limit}: a turn of {self._task.name} has a prompt of {longest} tokens; set "
                f"it to {longest} or more"
            )
        return [Prompt(problem, ids) for problem, ids in zip(problems, encoded, strict=True)]


def _facts(table: _Table, turn: int, verdict: Verdict) -> dict[str, Any]:
    match = table.match
    return {
        "game": table.index,
        "turn": turn,
        "role": match.game.roles[turn % 2],
        "move": verdict.answer,
        "ending": match.ending,
        "returns": list(match.returns or ()),
    }


def _outcome(match: Match) -> dict[str, float]:
    """Metrics of a finished match."""
    first, second = match.returns or (0.0, 0.0)
    finished = match.ending == "finished"
    names = [f"self_play/{match.game.name}/{role}/win_rate" for role in match.game.roles]
    return {
        "self_play/invalid_rate": float(match.offense is not None),
        "self_play/draw_rate": float(finished and first == second),
        names[0]: float(finished and first > second),
        names[1]: float(finished and second > first),
    }


def _reasoning(completion: str) -> dict[str, float]:
    """Words before the answer. Under the R1 template the opening tag is part of the prompt."""
    words = len(_ANSWER.split(completion, maxsplit=1)[0].replace("<think>", " ").split())
    return {"self_play/reasoning_words": float(words), "self_play/no_reasoning": float(words == 0)}
