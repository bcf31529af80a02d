"""Stored text of a match between a model and an opponent, sufficient to grade it again.

{"game": "tictactoe", "model": "X", "opponent": "random"}
{"X": "<think>…</think><answer>5</answer>"}
{"O": "<answer>1</answer>"}
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from grpo_train.games.base import CLOSE_ANSWER, OPEN_ANSWER, Game, Match, MatchRules, Move, Role, State


@dataclass(frozen=True)
class Transcript:
    """The players of a match and their completions."""

    role: Role
    """The model's role."""
    opponent: str
    texts: tuple[str, ...] = ()
    """Completions in turn; a programmed opponent writes :func:`move_text` of its moves."""

    def dump(self, game: Game) -> str:
        """Serialize as JSON lines."""
        header = {"game": game.name, "model": game.roles[self.role], "opponent": self.opponent}
        lines = [header, *({game.roles[turn % 2]: text} for turn, text in enumerate(self.texts))]
        return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)

    @classmethod
    def parse(cls, game: Game, text: str) -> Transcript | None:
        """Parse the transcript of a match of ``game``; None for any other text. Never raises."""
        try:
            header, *lines = (json.loads(line) for line in text.split("\n"))
            texts = tuple(line[game.roles[turn % 2]] for turn, line in enumerate(lines))
            role: Role = 1 if game.roles.index(header["model"]) else 0
            opponent, name = header["opponent"], header["game"]
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            return None
        fits = name == game.name and isinstance(opponent, str) and all(isinstance(each, str) for each in texts)
        return cls(role, opponent, texts) if fits else None

    def replay(self, game: Game, deal: State, rules: MatchRules) -> Match:
        """Match after all completions. Raises ValueError when completions follow its end."""
        match = Match(game, deal, rules)
        for text in self.texts:
            match = match.reply(text)
        return match


def move_text(move: Move) -> str:
    """A move in a model's answer format."""
    return f"{OPEN_ANSWER}{move}{CLOSE_ANSWER}"
