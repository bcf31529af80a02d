"""Self-play: turns as samples, returns by role, metrics, config errors, and bit-exact resumes."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_train.algorithm import RoleBaselines
from grpo_train.config import load_config
from grpo_train.config.schema import Config, TaskConfig
from grpo_train.games import GAMES, Match
from grpo_train.games.transcript import Transcript, move_text
from grpo_train.rewards import load_rewards
from grpo_train.rollout import Completion
from grpo_train.rollout.collect import Role, Sample
from grpo_train.rollout.prompts import Prompt
from grpo_train.rollout.self_play import SelfPlay
from grpo_train.run_dir import RunDir
from grpo_train.supervisor.resume import prepare_resume
from grpo_train.tasks import Attempt, TaskError, load_task, load_worked_task
from grpo_train.tasks.shared.self_play import Practice, SelfPlayTask
from grpo_train.train.worker import main
from tests.support.engine import assert_same_run, config_text, grpo_train, rows, run_of, train_here, write_config

TICTACTOE: dict[str, Any] = {
    "task__name": "tictactoe",
    "task__template": "compact",
    "rollout__num_generations": 9,
    "rollout__max_prompt_length": 14,
    "rollout__max_completion_length": 8,
}


def game_task(name: str = "tictactoe", template: str | None = "compact", **changes: Any) -> SelfPlayTask:
    task = load_task(TaskConfig(name=name, template=template, **changes))
    assert isinstance(task, SelfPlayTask)
    return task


def config_of(**changes: Any) -> Config:
    return load_config(config_text(**{**TICTACTOE, **changes}))


# ------------------------------------------------------------------------------------------------- the tasks


@pytest.mark.parametrize("name", list(GAMES))
def test_games_have_at_most_the_declared_turns(name: str) -> None:
    task = game_task(name)
    longest = 0
    for seed in range(60):  # random games, and the longest possible ones
        match, draw = Match(task.game, task.game.new(seed)), random.Random(seed)
        while not match.ending:
            match = match.play(draw.choice(match.state.legal_moves()))
        longest = max(longest, len(match.moves))
    turns = [len([p for p in task.long_games(40) if p.index == game]) for game in range(40)]
    assert longest <= max(turns) == task.turns


@pytest.mark.parametrize("name", list(GAMES))
@pytest.mark.parametrize("template", [None, "chat", "compact", "Play: {question}\nMove:"])
def test_turn_prompts_in_every_template(name: str, template: str | None) -> None:
    task = game_task(name, template)
    problem = task.problem("train", 3)
    assert problem == task.problem("train", 3)
    assert problem.data == task.game.new("train 3")
    full = problem.data.observation("full")
    assert problem.question == (problem.data.observation("compact") if template == "compact" else full)
    if template == "compact":
        assert problem.prompt == problem.question
    elif template == "chat":
        assert problem.messages == (("user", full),)
    else:
        assert full in problem.prompt
    assert task.size("test") == 200
    assert game_task(name, limit=7).size("train") == 7
    with pytest.raises(TaskError, match=r"task.template: 'r2' is neither"):
        game_task(name, "r2")


def test_legal_moves_are_correct() -> None:
    task = game_task()
    start = task.game.new(0)
    problem = task.turn(0, start.play("5"))
    for text, truncated, reason in [
        ("<think>a</think><answer>1</answer>", False, "ok"),
        ("<answer>5</answer>", False, "illegal"),
        ("<answer>ten</answer>", False, "unparsable"),
        ("", True, "truncated"),
        ("<answer>1</answer>", True, "ok"),
        ('{"game": "tictactoe", "model": "O"}\n{"X": 5}', False, "unparsable"),
    ]:
        verdict = task.judge(Attempt(problem, text, truncated=truncated))
        assert verdict.reason == reason
        assert (verdict.correct, verdict.formatted) == (reason == "ok", reason in ("ok", "illegal"))
    assert task.judge(Attempt(problem, "<answer>5</answer>")).answer == "5"


@pytest.mark.parametrize("name", list(GAMES))
def test_practice_covers_all_turns_and_mistakes(name: str) -> None:
    task = load_worked_task(TaskConfig(name=name))
    assert isinstance(task, Practice)
    draw = random.Random(0)
    problems = [task.problem("train", index) for index in range(400)]
    assert len({len(problem.prompt) for problem in problems if name != "tictactoe"}) != 1
    assert {problem.data.player for problem in problems} == {0, 1}
    right = [task.judge(Attempt(p, task.example(p, draw, careless=False))).correct for p in problems]
    assert all(right)
    share = sum(task.judge(Attempt(p, task.example(p, draw, careless=True))).correct for p in problems) / 400
    assert 0.5 < share < 0.95


# ------------------------------------------------------------------------------------------------- the collector


class Words:
    """A policy whose tokens are letters, and its tokenizer."""

    @property
    def tokenizer(self) -> Words:
        return self

    def __call__(self, texts: Sequence[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return ""

    def text(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


class Scripted:
    """A backend that answers a prompt as its script says."""

    def __init__(self, script: Callable[[str], str]) -> None:
        self.script, self.calls, self.seeds = script, list[int](), set[int]()

    def generate(self, prompts: Sequence[Sequence[int]], *, seeds: Sequence[int], **sampling: Any) -> list[Completion]:
        assert len(set(seeds) - self.seeds) == len(prompts) == len(seeds), "every turn has its own random numbers"
        self.seeds |= set(seeds)
        assert sampling["temperature"] == 1.0
        self.calls.append(len(prompts))
        texts = [self.script("".join(map(chr, prompt))) for prompt in prompts]
        return [
            Completion(tuple(prompt), tuple(map(ord, text)), (-1.0,) * len(text), finished=bool(text))
            for prompt, text in zip(prompts, texts, strict=True)
        ]


def first_free(prompt: str) -> str:
    """The free cell with the lowest number, in a compact tic-tac-toe prompt."""
    cells = prompt.partition("\n")[0].replace("|", "")
    return f"<think>first free</think>{move_text(next(cell for cell in cells if cell.isdigit()))}"


def collect(script: Callable[[str], str], groups: int = 2, **changes: Any) -> tuple[list[Sample], Scripted]:
    config = config_of(**changes)
    task = load_task(config.task)
    assert isinstance(task, SelfPlayTask)
    backend = Scripted(script)
    player = SelfPlay(task, load_rewards(task, config), backend, Words(), config)
    prompts = [Prompt(problem, ()) for problem in (task.problem("train", index) for index in range(groups))]
    return player.generate_and_judge(7, list(range(10, 10 + groups)), prompts), backend


def test_turns_have_the_return_of_their_role() -> None:
    samples, backend = collect(first_free)
    assert backend.calls == [2] * 7  # both games in parallel; 1 3 5 7 wins for X after seven turns
    game = samples[:7]
    assert [(sample.group, sample.slot) for sample in samples] == [(group, k) for group in (10, 11) for k in range(7)]
    assert [sample.role for sample in game] == [Role("tictactoe", "XO"[turn % 2]) for turn in range(7)]
    assert [sample.rewards for sample in game] == [{"score": 1.0 if turn % 2 == 0 else -1.0} for turn in range(7)]
    board = "1234567"
    assert [sample.verdict.answer for sample in game] == list(board)
    assert game[2].problem.prompt == "XO3|456|789\nX:"
    assert game[2].completion.prompt_ids == tuple(map(ord, "XO3|456|789\nX:"))
    assert dict(game[3].verdict.facts) == {
        "game": 0, "turn": 3, "role": "O", "move": "4", "ending": "finished", "returns": [1.0, -1.0],
    }  # fmt: skip
    assert [sample.verdict.metrics["self_play/reasoning_words"] for sample in game] == [2.0] * 7
    outcome = {key: value for key, value in game[-1].verdict.metrics.items() if "reasoning" not in key}
    assert outcome == {
        "self_play/invalid_rate": 0.0,
        "self_play/draw_rate": 0.0,
        "self_play/tictactoe/X/win_rate": 1.0,
        "self_play/tictactoe/O/win_rate": 0.0,
        "self_play/same_opening": 1.0,
    }
    assert "self_play/invalid_rate" not in game[0].verdict.metrics


@pytest.mark.parametrize(
    ("answer", "reason"), [(move_text("1"), "illegal"), ("what?", "unparsable"), ("", "truncated")]
)
def test_illegal_move_ends_the_game(answer: str, reason: str) -> None:
    samples, _ = collect(lambda prompt: first_free(prompt) if "O" not in prompt else answer)
    game = [sample for sample in samples if sample.group == 10]
    assert len(game) == 2
    assert [sample.rewards["score"] for sample in game] == [0.5, -1.5]
    assert [sample.verdict.correct for sample in game] == [True, False]
    assert [sample.verdict.reason for sample in game] == ["ok", reason]
    assert game[1].verdict.metrics["self_play/invalid_rate"] == 1.0
    harsh, _ = collect(lambda _: answer, task__invalid_move_return=-3, task__invalid_move_other_return=0)
    scores = [sample.rewards["score"] for sample in harsh if sample.group == 10]
    assert scores == [0.0, -3.0] if reason == "illegal" else [-3.0]  # the opening may take the first cell


def test_per_turn_rewards_are_averaged_by_role() -> None:
    def last_breaks(prompt: str) -> str:
        return "?" if prompt.startswith("XOX|O") and prompt.endswith("X:") else first_free(prompt)

    samples, _ = collect(last_breaks, task__rewards=["score", "format"])
    game = [sample for sample in samples if sample.group == 10]
    assert len(game) == 5
    assert [sample.rewards["format"] for sample in game] == pytest.approx([2 / 3, 1, 2 / 3, 1, 2 / 3])
    assert [sample.rewards["score"] for sample in game] == [-1.5, 0.5, -1.5, 0.5, -1.5]


def test_role_without_reward_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def nothing(attempt, verdict):\n    return None\n")
    with pytest.raises(TaskError, match=r"no reward function \(nothing\) applied to any turn of tictactoe/X"):
        collect(first_free, task__rewards=[f"{tmp_path}/own.py:nothing"])


def test_same_opening_counts_other_games() -> None:
    replies = iter("123456789")

    def varied(prompt: str) -> str:
        return move_text(next(replies)) if prompt.startswith("123|456|789") else "?"

    samples, _ = collect(varied, groups=4)
    alike = [s.verdict.metrics["self_play/same_opening"] for s in samples if not s.verdict.correct]
    assert alike == [0.0] * 4
    same, _ = collect(lambda prompt: move_text("1") if prompt.startswith("123|456|789") else "?", groups=4)
    alike = [s.verdict.metrics["self_play/same_opening"] for s in same if not s.verdict.correct]
    assert alike == [1.0] * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout__num_generations": 8}, r"num_generations 8: .* a game of tictactoe has up to 9; set it to 9"),
        ({"algorithm__scale_rewards": "group"}, "algorithm.scale_rewards group: in self-play"),
        ({"algorithm__mask_truncated_completions": True}, "algorithm.mask_truncated_completions"),
        ({"algorithm__overlong_buffer": 2}, "algorithm.overlong_buffer 2"),
        (
            {"rollout__max_prompt_length": 13},
            "max_prompt_length 13: a turn of tictactoe has a prompt of 14 tokens",
        ),
        ({"task__template": None}, r"max_prompt_length 14: a turn of tictactoe has a prompt of \d+ tokens"),
    ],
)
def test_unsuitable_configs_are_an_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        collect(first_free, **changes)


def test_prompts_of_long_games_are_checked_first() -> None:
    """The opening fits; the prompt after five offers does not."""
    changes = {"task__name": "negotiation", "rollout__num_generations": 6, "rollout__max_prompt_length": 20}
    with pytest.raises(TaskError, match=r"max_prompt_length 20: a turn of negotiation has a prompt of 31 tokens"):
        collect(lambda _: move_text("1,1"), **changes)


# ------------------------------------------------------------------------------------------------- transcripts


@pytest.mark.parametrize("name", list(GAMES))
def test_transcripts_round_trip(name: str) -> None:
    task = game_task(name)
    for seed in range(20):
        deal, draw = task.game.new(f"test {seed}"), random.Random(seed)
        match, texts = Match(task.game, deal, task.rules), []
        while not match.ending:
            texts.append(f'<think>"é\n{{}}</think>{move_text(draw.choice(match.state.legal_moves()))}')
            match = match.reply(texts[-1])
        role = draw.choice((0, 1))
        written = Transcript(role, "random", tuple(texts))
        assert Transcript.parse(task.game, written.dump(task.game)) == written
        assert written.replay(task.game, deal, task.rules) == match
        verdict = task.judge(Attempt(task.problem("test", seed), written.dump(task.game)))
        assert match.returns is not None
        assert verdict.score == match.returns[role]
        assert verdict.correct == (match.returns[role] >= match.returns[1 - role])
        assert verdict.formatted


def test_illegal_moves_in_transcripts() -> None:
    task = game_task()
    problem = task.problem("test", 0)
    moves = (move_text("5"), move_text("5"))  # O takes a cell that is taken
    for role, reason in ((0, "forfeited"), (1, "invalid")):
        verdict = task.judge(Attempt(problem, Transcript(role, "me", moves).dump(task.game)))  # type: ignore[arg-type]
        assert (verdict.reason, verdict.correct, verdict.formatted) == (reason, role == 0, role == 0)
    for broken in (moves[:1], (*moves, move_text("1"))):
        text = Transcript(0, "me", broken).dump(task.game)
        assert task.judge(Attempt(problem, text)).reason == "broken_transcript"


# ------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def player(micro_player: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root whose model plays tic-tac-toe with mistakes."""
    root = tmp_path_factory.mktemp("root")
    shutil.copytree(micro_player, root / "models" / "tiny")
    return root


REUSE: dict[str, dict[str, Any]] = {
    "one update": {},
    "mid-buffer": {
        "algorithm__updates_per_buffer": 2,
        "algorithm__num_iterations": 2,
        "algorithm__beta": 0.05,
        "train__microbatch_size": 1,
    },
}


@pytest.mark.parametrize("how", REUSE)
def test_resume_is_bit_exact(player: Path, how: str) -> None:
    """Baselines and a pending buffer are restored."""
    name = how.replace(" ", "_")
    cfg = write_config(player, f"{name}.yaml", **{**TICTACTOE, **REUSE[how], "run__total_steps": 6})
    torch.set_num_threads(1)
    whole = train_here(player, cfg, f"{name}_whole")
    run = train_here(player, cfg, f"{name}_parts", "--until", "1")
    for until in (3, 6):
        prepare_resume(run, "latest", 6)
        assert main(["--run-dir", str(run.path), "--until", str(until)]) == 0
    assert_same_run(run, whole, 6)
    assert (whole.training_state / "step_3" / "buffer.pt").is_file() == (how == "mid-buffer")
    check_log(whole, 6)


def check_log(run: RunDir, last: int) -> None:
    """Logged advantages follow from the logged returns over all steps; logged means are those of the rows."""
    baselines = RoleBaselines(0.95)
    turns = rows(run, "rollouts.jsonl")
    for step in sorted({row["step"] for row in turns}):
        buffer = [row for row in turns if row["step"] == step]
        games: dict[int, dict[str, float]] = {}
        for row in buffer:
            index = ("X", "O").index(row["facts"]["role"])
            assert row["role"] == f"tictactoe/{row['facts']['role']}"
            assert row["reward"] == row["rewards"]["score"] == row["facts"]["returns"][index]
            assert row["correct"] == (row["reason"] == "ok")
            games.setdefault(row["group"], {})[row["facts"]["role"]] = row["reward"]
        advantages = dict(
            zip(games, baselines.advantages([("tictactoe", each) for each in games.values()]), strict=True)
        )
        for row in buffer:
            assert row["advantage"] == pytest.approx(advantages[row["group"]][row["facts"]["role"]])
        (logged,) = [row for row in rows(run) if row["step"] == step]
        invalid = {row["group"] for row in buffer if row["facts"]["ending"] in ("illegal", "unparsable")}
        assert logged["self_play/invalid_rate"] == pytest.approx(len(invalid) / len(games))
        assert logged["self_play/turns"] == pytest.approx(len(buffer) / len(games))
        assert logged["accuracy"] == pytest.approx(sum(row["correct"] for row in buffer) / len(buffer))
    saved = torch.load(run.training_state / f"step_{last}" / "baselines.pt", weights_only=True)
    assert saved == baselines.state_dict()


def test_resume_of_two_processes_is_bit_exact(player: Path) -> None:
    """In one run each rank keeps its baselines; in the other it resumes with those saved by rank 0."""
    cfg = write_config(player, "pair.yaml", **{**TICTACTOE, "run__total_steps": 4})
    done = grpo_train("train", "--cfg", cfg, "--run-name", "pair", "--nproc", "2", root=player)
    assert done.returncode == 0, done.stdout + done.stderr
    short = write_config(player, "short.yaml", **{**TICTACTOE, "run__total_steps": 2})
    done = grpo_train("train", "--cfg", short, "--run-name", "short", "--nproc", "2", root=player)
    assert done.returncode == 0, done.stdout + done.stderr
    done = grpo_train("resume", "--training-run", "short", "--additional-steps", "2", root=player)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not bit-exact" not in done.stdout
    assert_same_run(run_of(player, "short"), run_of(player, "pair"), 4)
    check_log(run_of(player, "pair"), 4)


@pytest.mark.parametrize(("name", "slots", "longest"), [("kuhn_poker", 3, 7), ("negotiation", 6, 40)])
def test_other_games_train(root: Path, name: str, slots: int, longest: int) -> None:
    changes = {**TICTACTOE, "task__name": name, "rollout__num_generations": slots}
    changes |= {"rollout__max_prompt_length": longest, "run__total_steps": 2}
    run = train_here(root, write_config(root, **changes), name)
    assert [f"self_play/{name}/first/reward" in row for row in rows(run)] == [True, True]
