"""Rollouts of games that the policy plays against itself: all games of a rank side by side, one turn at a time.

A group is a game and its places are the turns; every turn is a sample of its own, with the return of the role that took
it. What is logged of the games, each a mean over games unless it says otherwise:

- ``self_play/invalid_rate``: ended by an illegal move; ``draw_rate``: finished with equal returns;
- ``self_play/GAME/ROLE/win_rate``: finished with the higher return for that role;
- ``self_play/same_opening``: the chance that another game of the same rank began with the same two moves;
- ``self_play/reasoning_words``: words before the answer, a mean over turns, and ``no_reasoning``, the share of turns
  without any: above one half the median is 0. Self-play has been seen to unlearn reasoning (SPIRAL, arXiv 2506.24119).
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
from grpo_train.rewards import Grade, Rewards
from grpo_train.rollout import Completion, RolloutBackend
from grpo_train.rollout.collect import Sample, sample
from grpo_train.rollout.prompts import Prompt, encode
from grpo_train.tasks import Attempt, Problem, TaskError, Verdict
from grpo_train.tasks.shared.self_play import SelfPlayTask, check_self_play

LONG_GAMES = 64
"""Games whose prompts are measured before the first one is played."""
_ANSWER = re.compile(r"</think>|<answer>|\\boxed\{")


@dataclass
class _Table:
    """A game under way."""

    key: str
    """Its name in the run."""
    index: int
    match: Match
    prompts: list[Prompt] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)


class SelfPlay:
    """:class:`~grpo_train.rollout.collect.Collector` of games that one policy plays with both sides.

    A reward function is asked about every turn; a role's reward in a game is the mean over its turns (``score``, the
    default, is the same for all of them).
    """

    def __init__(
        self, task: SelfPlayTask, rewards: Rewards, backend: RolloutBackend, tokenizer: Any, config: Config
    ) -> None:
        """Raises TaskError for a config under which self-play cannot be or makes no sense."""
        check_self_play(task, config)
        self._task, self._rewards, self._backend, self._tokenizer = task, rewards, backend, tokenizer
        self._config = config
        self._prompts(list(task.long_games(LONG_GAMES)))

    def collect(self, number: int, groups: Sequence[int], prompts: Sequence[Prompt]) -> list[Sample | None]:
        """See :meth:`~grpo_train.rollout.collect.Collector.collect`. Both sides' turns are generated together: games
        that are over leave, and a round takes as long as its longest completion."""
        tables = [
            _Table(f"{number}/{group}", prompt.problem.index, self._task.match(prompt.problem))
            for group, prompt in zip(groups, prompts, strict=True)
        ]
        while playing := [table for table in tables if not table.match.ending]:
            turns = self._prompts([self._task.turn(table.index, table.match.state) for table in playing])
            keys = [f"{table.key}/{len(table.attempts)}" for table in playing]
            completions = sample(self._backend, self._config, turns, keys)
            texts = self._tokenizer.batch_decode([one.ids for one in completions], skip_special_tokens=True)
            for table, key, turn, completion, text in zip(playing, keys, turns, completions, texts, strict=True):
                table.prompts.append(turn)
                table.completions.append(completion)
                table.attempts.append(
                    Attempt(turn.problem, text, not completion.finished, length=len(completion.ids), key=key)
                )
                table.match = table.match.reply(text)
        openings = Counter(table.match.moves[:2] for table in tables)
        samples: list[Sample | None] = []
        for table in tables:
            others = openings[table.match.moves[:2]] - 1
            alike = {"self_play/same_opening": others / (len(tables) - 1)} if len(tables) > 1 else {}
            samples += self._samples(table, {**_outcome(table.match), **alike})
        return samples

    def _samples(self, table: _Table, metrics: Mapping[str, float]) -> list[Sample | None]:
        """A finished game's turns, and None for the places it did not need. ``metrics`` are the whole game's."""
        match, names = table.match, table.match.game.roles
        returns = match.returns
        assert returns is not None
        grades: list[Grade] = []
        for turn, attempt in enumerate(table.attempts):
            verdict = self._task.judge_turn(attempt)
            last = turn == len(table.attempts) - 1
            verdict = replace(
                verdict,
                score=returns[turn % 2],
                metrics={**_reasoning(attempt.completion), **(metrics if last else {})},
                facts=_facts(table, turn, verdict),
            )
            grades.append(self._rewards(attempt, verdict))
        by_role = [self._of_the_game(grades[role::2], f"{match.game.name}/{names[role]}") for role in (0, 1)]
        samples: list[Sample | None] = [
            Sample(
                prompt,
                completion,
                attempt.completion,
                replace(grade, rewards=by_role[turn % 2]),
                role=f"{match.game.name}/{names[turn % 2]}",
            )
            for turn, (prompt, completion, attempt, grade) in enumerate(
                zip(table.prompts, table.completions, table.attempts, grades, strict=True)
            )
        ]
        return samples + [None] * (self._config.rollout.num_generations - len(samples))

    def _of_the_game(self, grades: Sequence[Grade], role: str) -> dict[str, float | None]:
        """A role's rewards: each function's mean over the turns it applies to; None where it applies to none."""
        found: dict[str, float | None] = {}
        for name in self._rewards.names if grades else ():
            values = [value for grade in grades if (value := grade.rewards[name]) is not None]
            found[name] = math.fsum(values) / len(values) if values else None
        if grades and all(value is None for value in found.values()):
            raise TaskError(f"task.rewards: none of {', '.join(found)} applied to any turn of {role} in a game")
        return found

    def _prompts(self, problems: Sequence[Problem]) -> list[Prompt]:
        """With their tokens. Raises TaskError for one that is too long: it would have to be played all the same."""
        encoded = encode(problems, self._tokenizer)
        longest, limit = max(map(len, encoded), default=0), self._config.rollout.max_prompt_length
        if longest > limit:
            raise TaskError(
                f"rollout.max_prompt_length {limit}: a turn of {self._task.name} is asked with {longest} tokens; set "
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
    """What a finished match adds to the means over games."""
    one, two = match.returns or (0.0, 0.0)
    finished = match.ending == "finished"
    names = [f"self_play/{match.game.name}/{role}/win_rate" for role in match.game.roles]
    return {
        "self_play/invalid_rate": float(match.offence is not None),
        "self_play/draw_rate": float(finished and one == two),
        names[0]: float(finished and one > two),
        names[1]: float(finished and two > one),
    }


def _reasoning(completion: str) -> dict[str, float]:
    """The words before the answer. The opening tag is part of the prompt under the R1 template."""
    words = len(_ANSWER.split(completion, maxsplit=1)[0].replace("<think>", " ").split())
    return {"self_play/reasoning_words": float(words), "self_play/no_reasoning": float(words == 0)}
