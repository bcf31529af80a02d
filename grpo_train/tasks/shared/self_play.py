"""Base class of two-player games: one policy plays both sides, a problem is one turn, the match decides.

A training problem is the opening of a game; its index seeds the deal. Later turns are asked as the game proceeds
(:mod:`grpo_train.rollout.self_play`). ``task.template: compact`` asks with the bare board, for tiny models; any other
template with the rules and the position in words.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from grpo_train.config import schema
from grpo_train.games import Game, Match, MatchRules, State, TicTacToe
from grpo_train.games.transcript import Transcript, move_text
from grpo_train.tasks.shared.base import Attempt, Problem, Split, TaskDefaults, TaskError, TaskKind, Verdict
from grpo_train.tasks.shared.template import ask

"""Keys of the ``task`` section that every game reads."""

TRAIN_GAMES = 4096
"""Games of an epoch. All games of tic-tac-toe start alike; Kuhn poker has 6 deals."""
TEST_GAMES = 200
"""Matches of an evaluation, over all opponents and both roles."""
PRACTICE_TURNS = 65_536
"""Turns that a warm start may draw from."""
CARELESS = 0.5
"""Probability that a careless example ignores the board."""


@dataclass(frozen=True)
class SelfPlayTask(TaskDefaults):
    """A two-player game. Raises TaskError for an unknown ``task.template``."""

    rewards: tuple[str, ...] = ("score",)
    eval_temperature: float = 1.0  # greedy players would repeat one match
    game: Game = field(default_factory=TicTacToe)
    turns: int = 9
    """Turns of both sides together in the longest game."""

    def __post_init__(self) -> None:
        self.turn(0, self.game.new(0))  # raises for an unknown template

    @property
    def rules(self) -> MatchRules:
        """Returns of a match that ends by an illegal move."""
        return MatchRules(offender=self.config.invalid_move_return, other=self.config.invalid_move_other_return)

    def rows(self, split: Split) -> range:
        return range(TRAIN_GAMES if split == "train" else TEST_GAMES)

    def problem(self, split: Split, index: int) -> Problem:
        """The opening of a game."""
        return self.turn(index, self.game.new(f"{split} {index}"))

    def turn(self, index: int, state: State) -> Problem:
        """The problem of the player to move; ``data`` is the state."""
        if self.config.template == "compact":
            text = state.observation("compact")
            return Problem(index, text, "", text, data=state)
        # The observation says how to answer, so the chat template adds nothing.
        return ask(self.config, index, state.observation("full"), "", chat="{question}", data=state)

    def match(self, problem: Problem) -> Match:
        """The match at the point where the problem is asked."""
        return Match(self.game, problem.data, self.rules)

    def judge(self, attempt: Attempt) -> Verdict:
        """The verdict on one turn, or on a whole match if the attempt is a transcript."""
        transcript = Transcript.parse(self.game, attempt.completion)
        return self.judge_turn(attempt) if transcript is None else self.judge_match(attempt.problem, transcript)

    def judge_turn(self, attempt: Attempt) -> Verdict:
        """A legal move counts as correct; its quality shows at the end of the match."""
        offense = self.match(attempt.problem).reply(attempt.completion).offense
        cut = offense == "unparsable" and attempt.truncated
        return Verdict(
            correct=offense is None,
            formatted=offense != "unparsable",
            reason="truncated" if cut else offense or "ok",
            answer=self.game.parse_move(attempt.completion),
        )

    def judge_match(self, problem: Problem, transcript: Transcript) -> Verdict:
        """A match that was not lost is correct; one without illegal moves by the model is well-formatted.

        ``reason`` is won, drawn, lost, invalid (lost by an illegal move), forfeited (won by the opponent's illegal
        move) or broken_transcript.
        """
        try:
            match = transcript.replay(self.game, problem.data, self.rules)
        except ValueError:
            return Verdict(False, False, "broken_transcript", None)
        if match.returns is None:
            return Verdict(False, False, "broken_transcript", None)
        own, other = match.returns[transcript.role], match.returns[1 - transcript.role]
        reason = "won" if own > other else "lost" if own < other else "drawn"
        if match.offense is not None:
            reason = "invalid" if match.player == transcript.role else "forfeited"
        return Verdict(
            correct=reason in ("won", "drawn", "forfeited"),
            formatted=reason != "invalid",
            reason=reason,
            answer=" ".join(match.moves) or None,
            score=own,
            facts={
                "game": self.game.name,
                "opponent": transcript.opponent,
                "role": self.game.roles[transcript.role],
                "moves": list(match.moves),
                "ending": match.ending,
                "returns": list(match.returns),
            },
        )

    def long_games(self, count: int) -> Iterator[Problem]:
        """The turns of ``count`` random games that end as late as possible."""
        for game in range(count):
            rng, state = random.Random(f"long game {game}"), self.game.new(f"long game {game}")
            while not state.is_over:
                yield self.turn(game, state)
                after = [state.play(move) for move in state.legal_moves()]
                state = rng.choice([each for each in after if not each.is_over] or after)


@dataclass(frozen=True)
class Practice(SelfPlayTask):
    """Turns of random games, openings and late ones alike, for the warm start of a tiny model."""

    def size(self, split: Split) -> int:
        return PRACTICE_TURNS

    def problem(self, split: Split, index: int) -> Problem:
        return self.turn(index, self._position(random.Random(f"{self.name} practice {split} {index}")))

    def example(self, problem: Problem, rng: random.Random, careless: bool) -> str:
        """A random legal move; a careless example sometimes has a legal move of another position."""
        state = self._position(rng) if careless and rng.random() < CARELESS else problem.data
        return f"<think></think>{move_text(rng.choice(state.legal_moves()))}"

    def _position(self, rng: random.Random) -> State:
        state = self.game.new(rng.getrandbits(32))
        for _ in range(rng.randrange(self.turns)):
            after = state.play(rng.choice(state.legal_moves()))
            if after.is_over:
                break
            state = after
        return state


def self_play_kind(name: str, summary: str, game: Game, turns: int) -> TaskKind:
    """Registration of a game; ``turns``: of both sides together in the longest game."""

    def load(config: schema.TaskConfig) -> SelfPlayTask:
        return SelfPlayTask(name=name, label=name, game=game, turns=turns, config=config)

    def load_practice(config: schema.TaskConfig) -> Practice:
        compact = config.model_copy(update={"template": "compact"})
        return Practice(name=name, label=name, game=game, turns=turns, config=compact)

    return TaskKind(name, summary, load, load_worked=load_practice)


def check_self_play(task: SelfPlayTask, config: schema.Config) -> None:
    """Raise TaskError for a config that self-play cannot train with."""
    algorithm, generations = config.algorithm, config.rollout.num_generations
    if generations < task.turns:
        raise TaskError(
            f"rollout.num_generations {generations}: in self-play a group holds the turns of one game, and a game of "
            f"{task.name} has up to {task.turns}; set it to {task.turns}"
        )
    if algorithm.scale_rewards != "none":
        raise TaskError(
            f"algorithm.scale_rewards {algorithm.scale_rewards}: in self-play a role's return is compared to that "
            "role's baseline without scaling; set it to none"
        )
    if config.rollout.filter_groups:
        raise TaskError(
            "rollout.filter_groups: in self-play a group is a game, and its returns are compared to each role's "
            "baseline; remove it"
        )
    if algorithm.mask_truncated_completions:
        raise TaskError(
            "algorithm.mask_truncated_completions: in self-play a truncated turn loses the game; masking it would put "
            "the loss on that role's other turns; remove it"
        )
    if algorithm.overlong_buffer:
        raise TaskError(
            f"algorithm.overlong_buffer {algorithm.overlong_buffer}: it penalizes single completions, and in self-play "
            "all turns of a role share one return; remove it"
        )
