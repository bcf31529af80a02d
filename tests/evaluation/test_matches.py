"""Matches: known results are reproduced, and a match does not depend on the matches beside it."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config.schema import Config, TaskConfig
from grpo_train.evaluation.opponents import opponents_of, pairing
from grpo_train.evaluation.plan import evaluation_paths, plan_evaluation, problems_of
from grpo_train.evaluation.report.match_table import match_lines, match_table
from grpo_train.evaluation.report.statistics import wilson_interval
from grpo_train.evaluation.request import EvalRequest
from grpo_train.evaluation.targets import Target
from grpo_train.evaluation.workers.matches import MatchSource, OpenMatch, Player, Reply, play_matches, scripted_player
from grpo_train.games import OPPONENTS, Match
from grpo_train.games.best import best_return
from grpo_train.games.transcript import Transcript, move_text
from grpo_train.rollout import seed_of
from grpo_train.run_dir import RunDir
from grpo_train.tasks import Attempt, Problem, TaskError, load_task
from grpo_train.tasks.shared.self_play import SelfPlayTask
from tests.support.engine import train_here, write_config
from tests.support.evaluating import eval_command


def game_task(name: str) -> SelfPlayTask:
    task = load_task(TaskConfig(name=name, template="compact"))
    assert isinstance(task, SelfPlayTask)
    return task


def played(name: str, model: Player, opponent: str, count: int, player: Player | None = None) -> list[dict[str, Any]]:
    """Judged matches of ``model``, half of them in each role."""
    task = game_task(name)
    problems = [task.problem("test", index) for index in range(count)]
    tables = [
        OpenMatch(seed_of(0, name, p.index, 0), task.match(p), Transcript(pairing(p.index, [opponent])[1], opponent))
        for p in problems
    ]
    play_matches(task, tables, model, {opponent: player or scripted_player(OPPONENTS[name][opponent])})
    texts = [table.transcript.dump(task.game) for table in tables]
    return [asdict(task.judge(Attempt(p, text))) for p, text in zip(problems, texts, strict=True)]


# ------------------------------------------------------------------------------------------------- known results


def test_best_returns_against_known_players() -> None:
    bounds = {
        (name, each): tuple(best_return(name, each, role) for role in (0, 1))
        for name in OPPONENTS
        for each in OPPONENTS[name]
    }
    assert bounds == {
        ("tictactoe", "random"): (Fraction(191, 192), Fraction(874, 945)),
        ("tictactoe", "minimax"): (0, 0),
        ("kuhn_poker", "random"): (Fraction(1, 2), Fraction(5, 12)),
        ("kuhn_poker", "equilibrium"): (Fraction(-1, 18), Fraction(1, 18)),
        ("negotiation", "random"): (None, None),
        ("negotiation", "fair"): (None, None),
    }
    assert best_return("tictactoe", "training_runs/a/training_state/step_3", 0) is None


def table_of(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(line["opponent"], line["role"]): line for line in match_table(rows)}


def test_random_against_random() -> None:
    """X wins 58.49 %, O 28.81 %, 12.70 % are draws; five standard errors of a thousand matches are 8 %."""
    rows = played("tictactoe", scripted_player(OPPONENTS["tictactoe"]["random"]), "random", 2000)
    table = table_of(rows)
    for role, win, loss in (("X", 0.5849, 0.2881), ("O", 0.2881, 0.5849)):
        line = table["random", role]
        assert line["n"] == 1000
        assert line["win"]["value"] == pytest.approx(win, abs=0.08)
        assert line["loss"]["value"] == pytest.approx(loss, abs=0.08)
        assert line["draw"]["value"] == pytest.approx(0.127, abs=0.055)
        assert line["invalid"]["value"] == line["forfeited"]["value"] == 0
        assert line["mean_return"]["value"] == pytest.approx(line["win"]["value"] - line["loss"]["value"])
        assert line["mean_return"]["value"] < line["best_return"]
    assert all(row["formatted"] for row in rows)


def test_minimax_never_loses() -> None:
    minimax = scripted_player(OPPONENTS["tictactoe"]["minimax"])
    table = table_of(played("tictactoe", minimax, "random", 400))
    assert table["random", "X"]["win"]["value"] == pytest.approx(0.9678, abs=0.07)
    assert table["random", "O"]["win"]["value"] == pytest.approx(0.7775, abs=0.14)
    assert table["random", "X"]["loss"]["value"] == table["random", "O"]["loss"]["value"] == 0
    alone = table_of(played("tictactoe", minimax, "minimax", 40))
    assert [line["draw"]["value"] for line in alone.values()] == [1.0, 1.0]
    assert alone["minimax", "X"]["draw"]["low"] == pytest.approx(wilson_interval(20, 20)[0])


def test_kuhn_equilibrium_against_itself() -> None:
    equilibrium = scripted_player(OPPONENTS["kuhn_poker"]["equilibrium"])
    table = table_of(played("kuhn_poker", equilibrium, "equilibrium", 4000))
    for role in ("first", "second"):
        line = table["equilibrium", role]
        assert line["mean_return"]["low"] - 0.05 < line["best_return"] < line["mean_return"]["high"] + 0.05


def test_an_invalid_move_loses_the_match() -> None:
    def mute(problems: Sequence[Problem], seeds: Sequence[int]) -> list[Reply]:
        return [Reply("?", 1) for _ in problems]

    good = scripted_player(OPPONENTS["tictactoe"]["random"])
    lost = table_of(played("tictactoe", mute, "random", 20))
    won = table_of(played("tictactoe", good, "silent", 20, player=mute))
    for line in lost.values():
        assert (line["loss"]["value"], line["invalid"]["value"], line["mean_return"]["value"]) == (1, 1, -1.5)
    for line in won.values():
        assert (line["win"]["value"], line["forfeited"]["value"], line["mean_return"]["value"]) == (1, 1, 0.5)
        assert line["best_return"] is None
    assert match_lines(list(lost.values()))[0] == (
        "random as X: won 0.00 [0.00, 0.28]  drawn 0.00  lost 1.00 (invalid 1.00 [0.72, 1.00])  n 10"
    )


def test_other_verdicts_are_not_matches() -> None:
    assert match_table([{"facts": {}, "reason": "grader_error", "score": None}]) == []


# ---------------------------------------------------------------------------------------- pairings and seeds


@pytest.mark.parametrize("count", [1, 2, 3])
def test_pairings_are_balanced(count: int) -> None:
    names = [f"opponent {index}" for index in range(count)]
    met = Counter(pairing(index, names) for index in range(60 * count))
    assert set(met.values()) == {30}
    assert len(met) == 2 * count


def test_opponents_default_to_the_games_players() -> None:
    task = game_task("kuhn_poker")
    assert opponents_of(task, Config()) == ["random", "equilibrium"]
    named = Config.model_validate({"eval": {"opponents": ["equilibrium", "models/tiny", "equilibrium"]}})
    assert opponents_of(task, named) == ["equilibrium", "models/tiny"]
    with pytest.raises(TaskError, match=r"eval.opponents: 'minimax' is neither one of random, equilibrium nor"):
        opponents_of(task, Config.model_validate({"eval": {"opponents": ["minimax"]}}))


def test_matches_are_independent() -> None:
    task = game_task("negotiation")

    def tables(indices: Sequence[int]) -> list[OpenMatch]:
        return [
            OpenMatch(index, Match(task.game, task.problem("test", index).data, task.rules), Transcript(0, "random"))
            for index in indices
        ]

    def drawn(problems: Sequence[Problem], seeds: Sequence[int]) -> list[Reply]:
        return [
            Reply(move_text(random.Random(seed).choice(problem.data.legal_moves())))
            for problem, seed in zip(problems, seeds, strict=True)
        ]

    players = {"random": scripted_player(OPPONENTS["negotiation"]["random"])}
    together, alone = tables(range(12)), [tables([index])[0] for index in range(12)]
    play_matches(task, together, drawn, players)
    for table in alone:
        play_matches(task, [table], drawn, players)
    assert [table.transcript for table in together] == [table.transcript for table in alone]
    assert len({table.transcript for table in together}) > 6


# ---------------------------------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module")
def run(micro_player: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Two steps of a model that plays poorly."""
    root = tmp_path_factory.mktemp("root")
    shutil.copytree(micro_player, root / "models" / "tiny")
    changes = {"task__name": "tictactoe", "task__template": "compact", "rollout__num_generations": 9}
    cfg = write_config(root, **changes, run__total_steps=2, rollout__max_completion_length=8, eval__subset_frac=1.0)
    return train_here(root, cfg, "games")


def players_of(run: RunDir, **changes: Any) -> tuple[MatchSource, list[Problem], SelfPlayTask]:
    plan, _ = plan_evaluation(run.root, EvalRequest("games", steps="2", num_problems=24))
    plan.config["eval"].update(changes)
    config = Config.model_validate(plan.config)
    task = load_task(config.task)
    assert isinstance(task, SelfPlayTask)
    problems = problems_of(plan, config, task)
    target = Target("step_2", 2, str(run.training_state / "step_2"))
    return MatchSource(target, plan, config, task, problems), problems, task


def test_chunk_size_does_not_change_matches(run: RunDir) -> None:
    whole, problems, task = players_of(run, batch_size=64)
    layout = whole.layout()
    assert layout["chunks"] == [list(range(24))]
    assert (layout["checkpoint"], layout["device"]) == ("training_runs/games/training_state/step_2", "cpu")
    rows = whole.generate(range(24))
    parts, _, _ = players_of(run, batch_size=7)
    assert [len(chunk) for chunk in parts.layout()["chunks"]] == [7, 7, 7, 3]
    again = [row for chunk in parts.layout()["chunks"] for row in parts.generate(chunk)]
    assert again == rows
    verdicts = [task.judge(Attempt(problem, row["completion"])) for problem, row in zip(problems, rows, strict=True)]
    assert {verdict.facts["opponent"] for verdict in verdicts} == {"random", "minimax"}
    assert {verdict.facts["role"] for verdict in verdicts} == {"X", "O"}
    assert "broken_transcript" not in {verdict.reason for verdict in verdicts}
    assert all(0 < row["length"] <= 8 for row in rows)
    first = json.loads(rows[0]["completion"].splitlines()[0])
    assert first["game"] == "tictactoe"


def test_a_checkpoint_as_opponent(run: RunDir) -> None:
    past = "training_runs/games/training_state/step_1"
    matches, problems, task = players_of(run, opponents=[past])
    rows = matches.generate(range(len(problems)))
    verdicts = [task.judge(Attempt(problem, row["completion"])) for problem, row in zip(problems, rows, strict=True)]
    assert {verdict.facts["opponent"] for verdict in verdicts} == {past}
    table = match_table([asdict(verdict) for verdict in verdicts])
    assert sum(line["n"] for line in table) == 24
    greedy, _, _ = players_of(run, opponents=[past], temperature=0.0)
    assert len({row["completion"] for row in greedy.generate(range(len(problems)))}) <= 2


def test_a_missing_opponent_is_named(run: RunDir, tmp_path: Path) -> None:
    from grpo_train.policy.locate import PolicyError

    matches, _, _ = players_of(run, opponents=[str(tmp_path / "nothing")])
    with pytest.raises(PolicyError, match=r"eval.opponents '.*nothing'"):
        matches.generate([0])


def test_eval_command_prints_the_match_table(run: RunDir) -> None:
    past = "training_runs/games/training_state/step_1"
    options = ["--training-run", "games", "--steps", "2", "--num-problems", "24"]
    done = eval_command(*options, "--opponent", "random", "--opponent", past, root=run.root)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = run.root / "eval_runs" / "games_tictactoe" / "step_2_tictactoe"
    summary = json.loads((folder / "summary.json").read_text())
    cells = [(line["opponent"], line["role"]) for line in summary["matches"]]
    assert cells == [(opponent, role) for opponent in ("random", past) for role in ("X", "O")]
    assert sum(line["n"] for line in summary["matches"]) == 24
    assert all(f"  {line}\n" in done.stdout for line in match_lines(summary["matches"]))
    rows = [json.loads(line) for line in (folder / "completions.jsonl").read_text().splitlines()]
    assert summary["matches"] == match_table(rows)
    assert summary["metrics"]["accuracy"] == sum(row["reason"] in ("won", "drawn", "forfeited") for row in rows) / 24
    assert summary["metrics"]["temperature"] == 1.0
    assert eval_command(*options, "--opponent", "random", "--opponent", past, root=run.root).stdout.startswith(
        "step_2: already complete"
    )
    refused = eval_command(*options, "--opponent", "maximin", root=run.root)
    assert refused.returncode == 2
    assert "eval.opponents: 'maximin' is neither one of random, minimax nor a checkpoint directory" in refused.stderr


def test_opponents_in_use_are_not_removed(run: RunDir) -> None:
    past = "training_runs/games/training_state/step_1"
    plan, _ = plan_evaluation(run.root, EvalRequest("games", steps="2", opponents=["random", past]))
    assert evaluation_paths(plan, plan.targets) == ["training_runs/games/training_state/step_2", past]
