"""What the games for two share as tasks: a problem is one turn, both sides are one policy, and a match decides.

The training split are games by number: a number is a deal. The opening is the problem, and the later turns are asked as
the game goes on (:mod:`grpo_train.rollout.self_play`). ``task.template`` ``compact`` asks with the bare board, for tiny
models; any other with the rules and the position in words.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from grpo_train.config import schema
from grpo_train.games import Game, Match, MatchRules, State, TicTacToe
from grpo_train.games.transcript import Transcript, as_text
from grpo_train.tasks.shared.base import Attempt, Problem, Split, TaskDefaults, TaskError, Verdict, limited
from grpo_train.tasks.shared.template import TEMPLATE_OPTIONS, ask

GAME_OPTIONS = ("invalid_move_return", "invalid_move_other_return", *TEMPLATE_OPTIONS)
"""Keys of the ``task`` section that every game reads."""

TRAIN_GAMES = 4096
"""Games of an epoch. All of tic-tac-toe's start alike; Kuhn poker has 6 deals."""
TEST_GAMES = 200
"""Matches of an evaluation, over all opponents and both roles."""
PRACTICE = 65_536
"""Turns that a warm start may draw from."""
SLIPS = 0.5
"""How often a careless pupil does not look at the board."""


@dataclass(frozen=True)
class SelfPlayTask(TaskDefaults):
    """A game. Raises TaskError for a ``task.template`` that is none."""

    rewards: tuple[str, ...] = ("score",)
    game: Game = field(default_factory=TicTacToe)
    turns: int = 9
    """Of both sides together, in the longest game."""
    config: schema.Task = field(default_factory=schema.Task)
    eval_temperature: float = 1.0
    """Two players without chance would play one and the same match again and again."""

    def __post_init__(self) -> None:
        self.turn(0, self.game.new(0))

    @property
    def rules(self) -> MatchRules:
        """How a match ends that its players do not finish."""
        return MatchRules(offender=self.config.invalid_move_return, other=self.config.invalid_move_other_return)

    def size(self, split: Split) -> int:
        return limited(TRAIN_GAMES if split == "train" else TEST_GAMES, split, self.config.limit)

    def problem(self, split: Split, index: int) -> Problem:
        """The opening of a game."""
        return self.turn(index, self.game.new(f"{split} {index}"))

    def turn(self, index: int, state: State) -> Problem:
        """What the player to move is asked; ``data`` is the state."""
        if self.config.template == "compact":
            text = state.observation("compact")
            return Problem(index, text, "", text, data=state)
        # The observation itself says how to answer, for the chat template, too.
        return ask(self.config, index, state.observation("full"), "", chat="{question}", data=state)

    def match(self, problem: Problem) -> Match:
        """The match as it stands when the problem is asked."""
        return Match(self.game, problem.data, self.rules)

    def judge(self, attempt: Attempt) -> Verdict:
        """The verdict on one turn, or on a whole match where the attempt is the transcript of one."""
        transcript = Transcript.parse(self.game, attempt.completion)
        return self.judge_turn(attempt) if transcript is None else self.judge_match(attempt.problem, transcript)

    def judge_turn(self, attempt: Attempt) -> Verdict:
        """Right is what the rules allow: whether it was wise, the match's end will tell."""
        offence = self.match(attempt.problem).reply(attempt.completion).offence
        cut = offence == "unparsable" and attempt.truncated
        return Verdict(
            correct=offence is None,
            formatted=offence != "unparsable",
            reason="truncated" if cut else offence or "ok",
            answer=self.game.parse_move(attempt.completion),
        )

    def judge_match(self, problem: Problem, transcript: Transcript) -> Verdict:
        """Right is a match that was not lost; the format is right where the model made no invalid move. ``reason`` is
        won, drawn, lost, invalid (lost by an illegal move) or forfeited (won by such a move of the opponent's)."""
        try:
            match = transcript.replay(self.game, problem.data, self.rules)
        except ValueError:
            return Verdict(False, False, "broken_transcript", None)
        if match.returns is None:
            return Verdict(False, False, "broken_transcript", None)
        mine, other = match.returns[transcript.role], match.returns[1 - transcript.role]
        reason = "won" if mine > other else "lost" if mine < other else "drawn"
        if match.offence is not None:
            reason = "invalid" if match.player == transcript.role else "forfeited"
        return Verdict(
            correct=reason in ("won", "drawn", "forfeited"),
            formatted=reason != "invalid",
            reason=reason,
            answer=" ".join(match.moves) or None,
            score=mine,
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
        """The turns of ``count`` games that nobody ends before they must."""
        for game in range(count):
            draw, state = random.Random(f"long game {game}"), self.game.new(f"long game {game}")
            while not state.is_over:
                yield self.turn(game, state)
                after = [state.play(move) for move in state.legal_moves()]
                state = draw.choice([each for each in after if not each.is_over] or after)


@dataclass(frozen=True)
class Practice(SelfPlayTask):
    """Turns of random games, openings and late ones alike, in compact style: what a tiny model is warm-started on."""

    def size(self, split: Split) -> int:
        return PRACTICE

    def problem(self, split: Split, index: int) -> Problem:
        return self.turn(index, self._position(random.Random(f"{self.name} practice {split} {index}")))

    def example(self, problem: Problem, draw: random.Random, careless: bool) -> str:
        """A random legal move; a careless pupil's is now and then one that some other position would allow."""
        state = self._position(draw) if careless and draw.random() < SLIPS else problem.data
        return f"<think></think>{as_text(draw.choice(state.legal_moves()))}"

    def _position(self, draw: random.Random) -> State:
        state = self.game.new(draw.getrandbits(32))
        for _ in range(draw.randrange(self.turns)):
            after = state.play(draw.choice(state.legal_moves()))
            if after.is_over:
                break
            state = after
        return state


def practice_of(task: SelfPlayTask) -> Practice:
    """What to practise before playing ``task``."""
    config = task.config.model_copy(update={"template": "compact"})
    return Practice(name=task.name, label=task.label, game=task.game, turns=task.turns, config=config)


def check_self_play(task: SelfPlayTask, config: schema.Config) -> None:
    """Raise TaskError for a config under which self-play cannot be or makes no sense."""
    algorithm, places = config.algorithm, config.rollout.num_generations
    if places < task.turns:
        raise TaskError(
            f"rollout.num_generations {places}: a group is a game here and its places are the turns, and a game of "
            f"{task.name} has up to {task.turns}; set it to {task.turns}"
        )
    if algorithm.scale_rewards != "none":
        raise TaskError(
            f"algorithm.scale_rewards {algorithm.scale_rewards}: in self-play a role's return is compared to that "
            "role's baseline and divided by nothing; set it to none"
        )
    if algorithm.mask_truncated_completions:
        raise TaskError(
            "algorithm.mask_truncated_completions: a turn that hits the budget loses the game; without it in the loss "
            "that role's other turns would bear the blame; leave it out"
        )
    if algorithm.overlong_buffer:
        raise TaskError(
            f"algorithm.overlong_buffer {algorithm.overlong_buffer}: it penalises single completions, and in self-play "
            "all turns of a role have one return; leave it out"
        )
