"""``grpo-train generate``: questions to checkpoints, on the command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_train.ask import checkpoint, folder
from grpo_train.ask.output import FLUSH_S, MAX_CHARACTERS, FolderOutput
from grpo_train.ask.questions import lines_of
from grpo_train.ask.session import AskSession, open_session
from grpo_train.cli.generate import IDLE_S
from grpo_train.evaluation.request import EvalError, EvalRequest
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.questions import ANSWERS, QUESTIONS, AskedQuestion, append_row, cancel, make_folder
from grpo_train.run_dir.questions import add_question as put
from tests.support.clock import LeapingClock
from tests.support.engine import REPOSITORY, command_here, environment, train_here, write_config
from tests.support.evaluating import evaluate_here
from tests.support.patience import PATIENCE


@pytest.fixture(scope="module")
def run(make_root: Callable[[], Path]) -> RunDir:
    """Two steps of a tiny model on additions."""
    root = make_root()
    return train_here(root, write_config(root, run__total_steps=2), "asked")


def ask(run: RunDir, *options: object) -> list[dict[str, Any]]:
    """The events of a command that ends well."""
    done = command_here("generate", "--training-run", run.name, "--json", *options, root=run.root)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def named(events: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [each for each in events if each["event"] == event]


def test_a_problem_is_completed_as_in_an_evaluation(run: RunDir) -> None:
    assert evaluate_here(run.root, run.name, steps="2", num_problems=3) == 0
    (file,) = (run.root / "eval_runs").glob("*/*/completions.jsonl")
    for row in map(json.loads, file.read_text().splitlines()):
        (answer,) = named(ask(run, "--step", "2", "--index", row["index"]), "completion")
        assert answer["completion"] == row["completion"]
        assert answer["correct"] == row["correct"]
        assert answer["rewards"] == {"accuracy": 2.0 if row["correct"] else 0.0}


def test_the_text_arrives_in_pieces(run: RunDir) -> None:
    events = ask(run, "--index", 1)
    pieces = [each["text"] for each in named(events, "text")]
    assert "".join(pieces) == named(events, "completion")[0]["completion"]
    assert len(pieces) > 1
    assert [each["event"] for each in events[:2]] == ["ready", "question"]


def test_checkpoints_get_the_same_seeds(run: RunDir) -> None:
    options = ["--step", "0,2,2", "--prompt", "12+30", "-n", 3, "--temperature", 1.5]
    first, again = (named(ask(run, *options), "completion") for _ in range(2))
    assert first == again
    assert {each["checkpoint"] for each in first} == {"step_0", "step_2"}
    assert len({each["completion"] for each in first if each["checkpoint"] == "step_2"}) > 1
    others = named(ask(run, *options, "--seed", 1), "completion")
    assert [each["completion"] for each in others] != [each["completion"] for each in first]


def test_a_question_is_put_into_the_prompt_of_the_run(run: RunDir) -> None:
    (held_out,) = named(ask(run, "--index", 0), "question")
    (own,) = named(ask(run, "--prompt", held_out["question"]), "question")
    assert own["prompt"] == held_out["prompt"]
    assert (own["index"], own["answer"]) == (None, "")


def test_questions_come_from_standard_input(run: RunDir) -> None:
    words = [sys.executable, "-m", "grpo_train.cli", "generate", "--training-run", run.name, "-", "--json"]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(run.root), cwd=REPOSITORY
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for question in ("1+2", "30+4"):  # each is answered before the next one is asked
            process.stdin.write(f"{question}\n")
            process.stdin.flush()
            events = [json.loads(process.stdout.readline())]
            while events[-1]["event"] != "completion":
                events.append(json.loads(process.stdout.readline()))
            assert named(events, "question")[0]["question"] == question
        process.stdin.close()
        assert process.wait(60 * PATIENCE) == 0
    finally:
        process.kill()


def test_a_line_that_is_not_text_is_named(run: RunDir) -> None:
    words = [sys.executable, "-m", "grpo_train.cli", "generate", "--training-run", run.name, "-"]
    done = subprocess.run(
        words, input=b"\xff\xfe1\n1+2\n", capture_output=True, env=environment(run.root), cwd=REPOSITORY
    )
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == ["error: standard input, line 1: not UTF-8 text"]
    assert done.stdout.startswith(b"1+2")


def test_a_reader_sees_the_verdict(run: RunDir) -> None:
    done = command_here("generate", "--training-run", run.name, "--index", 2, root=run.root)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("problem 2: ")
    assert " tokens, " in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either --training-run or --model"),
        (["--training-run", "asked"], "ask one thing"),
        (["--training-run", "asked", "--prompt", "x", "--index", 1], "ask one thing"),
        (["--training-run", "asked", "--prompt", " "], "the question is empty"),
        (["--training-run", "asked", "--prompt", "1+\udcff"], r"the question has \udcff, half of a character"),
        (["--training-run", "asked", "--index", 10**6], "has the problems 0 to "),
        (["--training-run", "asked", "--prompt", "1+1", "-n", 2], "at temperature 0 are all the same"),
        (["--training-run", "asked", "--index", 1, "--step", 7], "no checkpoint step_7"),
        (["--training-run", "other", "--index", 1], "other"),
    ],
)
def test_what_cannot_be_asked_is_named(run: RunDir, options: list[object], message: str) -> None:
    done = command_here("generate", *options, root=run.root)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_character_is_shown_when_it_is_whole(tiny_model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    text = "naïve 日本 ½"
    pieces = checkpoint._Pieces(tokenizer.decode)
    shown = [pieces.add(i, token) for i, token in enumerate(tokenizer(text)["input_ids"])]
    assert "".join(shown) == text
    assert not any("�" in piece for piece in shown)


def test_waiting_for_questions_ends() -> None:
    receiver, sender = os.pipe()
    os.write(sender, "a\r\n\n  \nb ½".encode())
    assert list(lines_of(receiver, IDLE_S, LeapingClock())) == ["a"], "nothing more came"
    os.write(sender, b"\n")
    os.close(sender)
    assert list(lines_of(receiver, IDLE_S)) == []
    os.close(receiver)


def opened(run: RunDir, steps: str = "0,2") -> AskSession:
    return open_session(run.root, EvalRequest(run.name, steps=steps, num_problems=1, num_samples=1), None)


def answered(asked: Path, serve: Callable[[], None]) -> list[dict[str, Any]]:
    """The events of a process that ends."""
    serve()
    return [json.loads(line) for line in (asked / ANSWERS).read_text().splitlines()]


def test_a_folder_of_questions_is_answered(run: RunDir, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    make_folder(asked)
    assert [file.stat().st_mode & 0o77 for file in (asked, *asked.iterdir())] == [0, 0, 0]
    put(asked, AskedQuestion("a", index=1, count=2, temperature=1.0))
    put(asked, AskedQuestion("a", index=1, count=2, temperature=1.0))
    for bad in ({"id": "b", "index": 10**6}, {"id": "c", "count": 0}, {"id": "d", "prompt": "1+1", "count": 2}):
        append_row(asked / QUESTIONS, bad)
    append_row(asked / QUESTIONS, {"id": "e", "prompt": "12+30", "from_the_future": 1})
    with (asked / QUESTIONS).open("a") as file:
        file.write("no JSON\n{half")
    events = answered(asked, lambda: folder.serve_questions(asked, lambda: opened(run), 60.0, LeapingClock()))
    assert [each["event"] for each in events[:3]] == ["starting", "ready", "question"]
    assert events[-1] == {"event": "ended", "message": "no question for 1 minutes", "code": "idle"}
    both = [each for each in named(events, "completion") if each["id"] == "a"]
    places = [("step_0", 0), ("step_0", 1), ("step_2", 0), ("step_2", 1)]
    assert sorted((each["checkpoint"], each["sample"]) for each in both) == places
    for each in both:
        pieces = (part for part in named(events, "text") if part["id"] == "a")
        mine = [p["text"] for p in pieces if (p["checkpoint"], p["sample"]) == (each["checkpoint"], each["sample"])]
        assert "".join(mine) == each["completion"]
        assert each["rewards"].keys() == {"accuracy"}
    problems = {each.get("id"): each["message"] for each in named(events, "error")}
    assert problems.keys() == {"b", "d", None}
    assert "no problem 1000000" in problems["b"]
    assert [each.get("id") for each in named(events, "done")] == ["a", "b", None, "d", "e", None], "no half line"
    assert named(events, "question")[-1]["question"] == "12+30"


def test_a_cancelled_answer_leaves_the_process(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    make_folder(asked)
    for id in ("a", "b", "c"):
        put(asked, AskedQuestion(id, prompt="12+30"))
    cancel(asked, "a")  # before it began
    text = FolderOutput.text

    def cancelled_after_the_first_text(output: FolderOutput, sample: int, piece: str) -> None:
        if output._id == "b":
            cancel(asked, "b")
        clock.sleep(FLUSH_S)
        text(output, sample, piece)

    clock = LeapingClock()
    monkeypatch.setattr(FolderOutput, "text", cancelled_after_the_first_text)
    events = answered(asked, lambda: folder.serve_questions(asked, lambda: opened(run), 60.0, clock))
    assert [each["id"] for each in named(events, "done")] == ["a", "b", "c"]
    assert [each["id"] for each in named(events, "completion")] == ["c", "c"], "both checkpoints of the last one"
    assert {(each["id"], each["checkpoint"]) for each in named(events, "text") if each["id"] != "c"} == {
        ("b", "step_0")
    }
    assert events[-1]["code"] == "idle"


def test_what_ends_a_process_is_its_last_event(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(name: str, serve: Callable[[Path], None]) -> dict[str, Any]:
        asked = tmp_path / name
        make_folder(asked)
        return answered(asked, lambda: serve(asked))[-1]

    def fail(asked: Path) -> None:
        with pytest.raises(EvalError):
            folder.serve_questions(asked, lambda: opened(run, "7"), IDLE_S)

    failed = end("missing", fail)
    assert failed["event"] == "failed"
    assert "no checkpoint step_7" in failed["message"]

    def busy(session: AskSession) -> None:
        raise EvalError("run b is training", code="gpu_busy")

    session = opened(run, "2")
    with monkeypatch.context() as patch:
        patch.setattr(AskSession, "check_gpu", busy)
        ended = end("busy", lambda asked: folder.serve_questions(asked, lambda: session, IDLE_S, LeapingClock()))
    assert (ended["event"], ended["code"]) == ("ended", "gpu_busy")
    gone = tmp_path / "gone"
    make_folder(gone)

    def remove(session: AskSession) -> None:
        shutil.rmtree(gone, ignore_errors=True)

    monkeypatch.setattr(AskSession, "check_gpu", remove)
    folder.serve_questions(gone, lambda: session, IDLE_S, LeapingClock())  # returns
    assert not gone.exists()


def test_texts_of_a_folder_are_bounded(tmp_path: Path) -> None:
    make_folder(tmp_path / "asked")
    output = FolderOutput(tmp_path / "asked")
    output.begin("a")
    output.checkpoint("step_2")
    for _ in range(9):
        output.text(0, "\x1b" * (MAX_CHARACTERS // 4))
        output.flush()
    output.answer(checkpoint.Answer("step_2", 0, "½" * 3 * MAX_CHARACTERS, 7, truncated=True))
    lines = (tmp_path / "asked" / ANSWERS).read_bytes().splitlines()
    assert max(map(len, lines)) < 1 << 20
    rows = [json.loads(line) for line in lines]
    assert sum(len(each["text"]) for each in named(rows, "text")) == MAX_CHARACTERS
    (done,) = named(rows, "completion")
    assert (len(done["completion"]), done["characters"]) == (MAX_CHARACTERS, 3 * MAX_CHARACTERS)
