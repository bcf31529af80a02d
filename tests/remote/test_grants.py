"""The agent holds an assistant's grant: frames that ask for more are refused and written down, whatever they say."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir, create_run, list_runs, open_run
from grpo_train.run_dir.files import atomic_write
from remote.protocol import OPERATIONS, encode
from remote.protocol.grants import NUMERIC_KEYS, VERBS, Grant, account_of, text_hash
from tests.remote.conftest import FAKE_ENGINE
from tests.remote.test_read_only import CHANGES
from tests.support.agent import RawAgent, eventually
from tests.support.backups import contents, make_run, save, set_state

ACCOUNT = account_of("ann@laptop", None)
CONFIG = "obedient"
ALL = Grant(
    ACCOUNT, "an assistant of ann@laptop", list(VERBS), ["one"], {"config.yaml": text_hash(CONFIG)},
    ["notify.command=mine"], 10.0, 2.0,
)  # fmt: skip
DONE = {"idempotency_key": "key", "why": "it fell"}


@pytest.fixture
def opened(root: Path, tmux_socket: str) -> Iterator[Callable[[Grant], RawAgent]]:
    """Opens sessions on a box with the run ``one``, which a person has stopped, and ``two``."""
    make_run(root, "one", 2)
    make_run(root, "two", 2)
    made: list[RawAgent] = []

    def open_session(grant: Grant) -> RawAgent:
        made.append(RawAgent(root, engine=[str(FAKE_ENGINE)], tmux_socket=tmux_socket, grant=asdict(grant)))
        return made[-1]

    yield open_session
    for run in list_runs(root):
        if run.observed_state().is_live:
            run.request_stop("test")
    for agent in made:
        agent.close()


def written(root: Path, what: str) -> list[dict[str, Any]]:
    """Rows of the record."""
    file = root / "training_runs" / f".grants-{os.geteuid()}" / f"{ACCOUNT}.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines() if line] if file.exists() else []
    return [row for row in rows if row["what"] == what]


def launch(agent: RawAgent, dollars: float, key: str, **more: Any) -> dict[str, Any]:
    overrides = [f"budget.dollars={dollars}", *more.pop("overrides", [])]
    given = {"config_text": CONFIG, "overrides": overrides, "idempotency_key": key, "why": "next"}
    return agent.request("launch", **{**given, **more})


def lines_of(file: str) -> list[str]:
    return Path(file).read_text().splitlines()


def code_of(answer: dict[str, Any]) -> str:
    return "" if answer["ok"] else str(answer["error"]["code"])


def left(agent: RawAgent) -> float:
    return float(agent.request("show_grant")["result"]["left"])


def started(root: Path, answer: dict[str, Any]) -> RunDir:
    """The run of a launch, once it runs."""
    run = open_run(root, answer["result"]["run"])
    eventually(lambda: run.observed_state().state == "running")
    return run


def test_nothing_but_its_verbs(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    agent = opened(replace(ALL, verbs=["stop"]))
    before, tried = contents(root), 0
    for op, params in CHANGES.items():
        if op == "stop":
            continue
        for more in (DONE, {**DONE, "recall": True}, {"dry_run": True}, {"grant": asdict(ALL), "readonly": False}):
            assert code_of(agent.request(op, **{**params, **more})) == "not_granted", (op, more)
            tried += 1
    after = contents(root)
    assert {path for path in after if after[path] != before.get(path)} == {
        path for path in after if ".grants-" in str(path)
    }
    assert [row["op"] for row in written(root, "refused")].count("kill") == 4
    assert len(written(root, "refused")) == tried


OUTSIDE: list[tuple[str, dict[str, Any], str]] = [
    ("stop", {"run": "two"}, "neither among the runs"),
    ("stop", {"run": "../training_runs/one"}, "neither among the runs"),
    ("stop", {"run": "one", "why": ""}, "needs a reason"),
    ("stop", {"run": "one", "idempotency_key": ""}, "needs an idempotency key"),
    ("launch", {"config_text": "stubborn"}, "none that the person named (config.yaml)"),
    ("launch", {"config_text": CONFIG, "overrides": ["task.rewards=[/tmp/x.py:f]"]}, "'task.rewards' is not among"),
    ("launch", {"config_text": CONFIG, "overrides": ["notify.command=evil"]}, "'notify.command' is not among"),
    ("launch", {"config_text": CONFIG, "overrides": ["model.backbone=https://evil"]}, "'model.backbone' is not among"),
    ("launch", {"config_text": CONFIG, "overrides": ["run.keep_last=1"]}, "'run.keep_last' is not among"),
    ("launch", {"config_text": CONFIG, "overrides": ["budget.hours=999"]}, "'budget.hours' is not among"),
    ("launch", {"config_text": CONFIG, "overrides": [" optimizer.learning_rate=1"]}, "is not among"),
    ("launch", {"config_text": CONFIG, "overrides": ["optimizer.learning_rate=x.py:f"]}, "takes a number"),
    ("launch", {"config_text": CONFIG, "overrides": ["optimizer.learning_rate=nan"]}, "takes a number"),
    ("launch", {"config_text": CONFIG, "overrides": ["run.seed=1\nrun.keep_last=1"]}, "takes a number"),
    ("launch", {"config_text": CONFIG, "config_name": "../../evil/config.yaml"}, "has another text"),
    ("launch", {"config_text": CONFIG, "ckpt": "/tmp/evil"}, "'ckpt' of 'launch'"),
    ("launch", {"config_text": CONFIG, "slurm": ["options=--wrap=evil"]}, "'slurm' of 'launch'"),
    ("launch", {"config_text": CONFIG, "run_name": "../evil"}, "'run_name' of 'launch'"),
    ("resume", {"run": "one", "overrides": ["task.path=/etc/passwd"]}, "'task.path' is not among"),
    ("resume", {"run": "one", "code": "now"}, "'code' of 'resume'"),
    ("resume", {"run": "one", "confirmation": "abc"}, "'confirmation' of 'resume'"),
    ("resume", {"run": "one", "from_step": "--yes"}, "'from_step' of 'resume'"),
    ("evaluate", {"run": "one", "eval_path": "/etc/passwd"}, "'eval_path' of 'evaluate'"),
    ("evaluate", {"run": "one", "ckpt_path": "/tmp/evil"}, "'ckpt_path' of 'evaluate'"),
    ("evaluate", {"ckpt_path": "/tmp/evil"}, "neither among the runs"),
    ("evaluate", {"run": "one", "eval_dataset": "evil/data"}, "'eval_dataset' of 'evaluate'"),
    ("evaluate", {"run": "one", "steps": ["2;x"], "timeout": 9}, "'steps' of 'evaluate'"),
    ("evaluate", {"run": "one", "steps": ["1,2,3"], "timeout": 9}, "'steps' of 'evaluate'"),
    ("evaluate", {"run": "one", "steps": ["all"], "timeout": 9}, "'steps' of 'evaluate'"),
    ("evaluate", {"run": "one", "steps": [2], "timeout": 9, "nproc": 64}, "'nproc' of 'evaluate'"),
    ("launch", {"config_text": CONFIG, "overrides": ["budget.dollars=1"], "nproc": 64}, "'nproc' of 'launch'"),
    ("launch", {"config_text": CONFIG, "overrides": ["budget.dollars=\u0661"]}, "takes a number"),
    ("show_run", {"run": "/etc"}, "by its name"),
    ("run_facts", {"runs": ["one", "~/secret"]}, "by its name"),
    ("read_log", {"run": "../one", "path": "x", "before": 1, "after": 0}, "by its name"),
    ("compare_evaluations", {"run": "one", "others": ["./one"]}, "by its name"),
    ("back_up", {"run": "one", "to": "s3://evil/bucket"}, "'to' of 'back_up'"),
    ("doctor", {"config_text": "task: {grader: /tmp/x.py:f}"}, "none that the person named"),
    ("doctor", {"config_text": CONFIG, "overrides": ["task.grader=/tmp/x.py:f"]}, "'task.grader' is not among"),
    ("plan_resume", {"run": "one", "overrides": ["task.grader=/tmp/x.py:f"]}, "'task.grader' is not among"),
    ("check_weights", {"path": "/root"}, "'path' of 'check_weights'"),
    ("capture_pane", {"session": "shell"}, "'session' of 'capture_pane'"),
    ("list_backups", {"source": "s3://evil"}, "'source' of 'list_backups'"),
]


def test_what_runs_code_or_leaves_the_box(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    agent = opened(ALL)
    for number, (op, params, reason) in enumerate(OUTSIDE):
        answer = agent.request(op, **({**DONE, **params} if OPERATIONS[op].changes_state else params))
        assert code_of(answer) == "not_granted", (op, params, answer)
        assert reason in answer["error"]["message"], (op, params, answer)
        assert len(written(root, "refused")) == number + 1
    assert {folder.name for folder in (root / "training_runs").iterdir() if folder.name[0] != "."} == {"one", "two"}
    assert written(root, "done") == written(root, "reserved") == []


def test_acts_are_done_once_and_written_into_the_run(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    agent = opened(ALL)
    answer = launch(agent, 4, "k1", overrides=["optimizer.learning_rate=2e-6", "notify.command=mine"])
    run = started(root, answer)
    recorded = run.read_launch()
    assert (recorded["grant"], recorded["by"]) == (ACCOUNT, ALL.by)
    assert recorded["overrides"] == [
        "optimizer.learning_rate=2e-6", "notify.command=mine", "budget.dollars=4", "budget.price_per_hour=2",
    ]  # fmt: skip
    assert launch(agent, 4, "k1")["result"]["started"] is False
    assert left(agent) == 6
    assert code_of(agent.request("stop", run=run.name, idempotency_key="k2", why="it\x1b[2J fell")) == ""
    agent.request("stop", run=run.name, idempotency_key="k2", why="it fell")
    events = [row for _, row in run.events() if row["event"] == "by_assistant"]
    assert [(row["op"], row["grant"], row.get("dollars")) for row in events] == [
        ("launch", ACCOUNT, 4.0), ("stop", ACCOUNT, None),
    ]  # fmt: skip
    assert "\x1b" not in events[1]["why"]
    assert [row["op"] for row in written(root, "done")] == ["launch", "stop"]
    assert sorted(agent.request("show_grant")["result"]["run_names"]) == sorted(["one", run.name])


def test_money_is_counted_once_for_all_sessions(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    first, second = opened(ALL), opened(ALL)
    run = started(root, launch(first, 6, "k1"))
    answer = launch(second, 6, "k2")
    assert code_of(answer) == "not_granted"
    assert "$6.00 is more than the $4.00 that are left" in answer["error"]["message"]
    assert code_of(launch(second, 6, "k3", dry_run=True)) == "not_granted"
    assert code_of(launch(second, 0, "k4")) == code_of(launch(second, -1, "k5")) == "not_granted"
    assert code_of(second.request("launch", config_text=CONFIG, **DONE)) == "not_granted"
    assert left(second) == 4
    run.request_stop("test")
    eventually(lambda: run.observed_state().state == "stopped")
    set_state(run, "stopped", run_seconds=3600.0)
    assert left(second) == 8  # an hour at two dollars; the rest is free again
    assert code_of(first.request("resume", run=run.name, overrides=["budget.dollars=9"], **DONE)) == "not_granted"


def test_a_key_buys_nothing_more(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    """Neither asked for again with more money, nor as a request of another kind, nor cut to the same beginning."""
    agent = opened(ALL)
    run = started(root, launch(agent, 1, "k1"))
    again = launch(agent, 1_000_000, "k1")
    assert (code_of(again), again["error"]["message"]) == ("not_granted", "this key was used for another request")
    run.request_stop("test")
    eventually(lambda: run.observed_state().state == "stopped")
    recalled = {"run": run.name, "idempotency_key": "k1", "why": "w", "recall": True}
    before = [row["event"] for _, row in run.events()]
    assert code_of(agent.request("resume", **recalled, overrides=["budget.dollars=1000000"])) == "not_received"
    assert code_of(agent.request("evaluate", **recalled, steps=[1], timeout=10**6)) == "not_received"
    assert [row["event"] for _, row in run.events()] == before
    held = left(agent)
    for end in "ab":
        started(root, launch(agent, 2, "x" * 400 + end))
    assert left(agent) == pytest.approx(held - 4)


def ended(root: Path, run: RunDir, seconds: float, state: str = "stopped", **fields: Any) -> None:
    """Stop a run, and let it have run so long."""
    run.request_stop("test")
    eventually(lambda: run.observed_state().state == "stopped")
    set_state(run, state, run_seconds=seconds, **fields)


def resume(agent: RawAgent, run: RunDir, dollars: float, key: str) -> dict[str, Any]:
    """Resume a run that has ended, once its session has, too."""
    asked = {"run": run.name, "overrides": [f"budget.dollars={dollars}"], "idempotency_key": key, "why": "more"}
    eventually(lambda: code_of(agent.request("resume", **asked, dry_run=True)) != "session_live")
    answer = agent.request("resume", **asked)
    assert answer["result"]["started"] is True
    eventually(lambda: run.observed_state().state == "running")
    return answer


def test_frames_at_once_reserve_and_act_once(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    """Three frames of each session, with one key, before any answer."""
    sessions = [opened(ALL), opened(ALL)]
    run = started(root, launch(sessions[0], 1, "first"))
    given = {"config_text": CONFIG, "overrides": ["budget.dollars=3"], "idempotency_key": "k", "why": "next"}
    for op, params in (("launch", given), ("stop", {"run": run.name, "idempotency_key": "s", "why": "it fell"})):
        for agent in sessions:
            agent.send(*({"type": "request", "id": number, "op": op, "params": params} for number in range(3)))
        answers = [
            agent.until(lambda frame, n=number: frame["type"] == "response" and frame["id"] == n, 60)
            for agent in sessions
            for number in range(3)
        ]
        assert all(answer["ok"] for answer in answers), answers
        assert len({answer["result"]["run"] for answer in answers}) == 1
        if op == "launch":
            assert [answer["result"]["started"] for answer in answers].count(True) == 1
            assert left(sessions[0]) == 6
        for agent in sessions:
            agent.frames.clear()
    assert [row["op"] for row in written(root, "done")] == ["launch", "launch", "stop"]
    assert len(written(root, "reserved")) == 2
    events = [row["op"] for _, row in run.events() if row["event"] == "by_assistant"]
    assert events == ["launch", "stop"]


def test_the_key_of_a_person_finds_nothing(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    """Keys of a person's launches are in what a session may read."""
    create_run(root, {"argv": [], "idempotency_key": "theirs", "config_text": CONFIG}, "unstarted")
    agent = opened(ALL)
    assert agent.request("show_run", run="unstarted")["result"]["launch"]["idempotency_key"] == "theirs"
    run = started(root, launch(agent, 1, "theirs"))
    assert run.name != "unstarted"
    assert [row["event"] for _, row in open_run(root, "unstarted").events()] == ["launched"]


def test_the_key_of_a_launch_starts_no_other_act(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    agent = opened(ALL)
    run = started(root, launch(agent, 1, "k"))
    ended(root, run, 60.0)
    save(run, 1)
    atomic_write(run.config_file, "run:\n  seed: 1\n")
    resume(agent, run, 1, "k")


def test_a_run_costs_what_it_ran(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    """Also what it ran beyond a reservation of almost nothing, and once while it runs again."""
    agent = opened(ALL)
    run = started(root, launch(agent, 1e-6, "k1"))
    ended(root, run, 600.0)
    assert left(agent) == pytest.approx(10 - 2 / 6, abs=1e-3)
    save(run, 1)
    atomic_write(run.config_file, "run:\n  seed: 1\n")
    resume(agent, run, 4, "k2")
    assert left(agent) == pytest.approx(6 - 2 / 6, abs=1e-3)


@pytest.mark.parametrize("state", ["requeued", "lost"])
def test_what_may_run_again_keeps_its_money(opened: Callable[[Grant], RawAgent], root: Path, state: str) -> None:
    agent = opened(ALL)
    ended(root, started(root, launch(agent, 6, "k1")), 60.0, state)
    assert left(agent) == 4


def test_a_launch_that_left_a_run_keeps_its_money(
    opened: Callable[[Grant], RawAgent], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated with less money, it would start the run with the limit of the first."""

    def fail(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    agent = opened(ALL)
    monkeypatch.setattr("remote.agent.jobs.record_code", fail)
    assert code_of(launch(agent, 6, "k1")) == "disk_full"
    monkeypatch.undo()
    assert left(agent) == 4
    assert launch(agent, 0.01, "k1")["error"]["message"] == "this key was used for another request"


def test_a_repeat_acts_once_without_its_record(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    """The records of requests are pruned after a day; the ledger is not. Nor does a repeat free the money."""
    agent = opened(ALL)
    asked = {"run": "one", "steps": [2], "timeout": 1800, "idempotency_key": "k", "why": "see"}
    assert agent.request("evaluate", **asked)["result"]["started"] is True
    shutil.rmtree(root / "training_runs" / f".requests-{os.geteuid()}")
    for more in ({}, {"recall": True}):
        answer = agent.request("evaluate", **asked, **more)
        assert (code_of(answer), left(agent)) == ("not_received", 9)
    assert len(written(root, "done")) == 1


def test_an_evaluation_ends_with_its_money(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    """Its time limit is for each step, and loading comes on top: the whole is limited, too."""
    answer = opened(ALL).request("evaluate", run="one", steps=[1, 2], timeout=900, **DONE)
    words = answer["result"]["argv"]
    assert [Path(words[0]).name, *words[1:4]] == ["timeout", "--foreground", "--kill-after=30", "1800"]


def test_it_expires_while_it_waits_for_the_ledger(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    agent = opened(ALL)
    assert agent.clock is not None
    agent = opened(replace(ALL, until=agent.clock.time() + 60))
    assert agent.clock is not None
    folder = root / "training_runs" / f".grants-{os.geteuid()}"
    folder.mkdir()
    with (folder / f"{ACCOUNT}.paid.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        given = {"config_text": CONFIG, "overrides": ["budget.dollars=3"], **DONE}
        agent.send({"type": "request", "id": 1, "op": "launch", "params": given})
        waits = f":{os.fstat(lock.fileno()).st_ino} "
        eventually(lambda: any("-> " in each and waits in each for each in lines_of("/proc/locks")))
        agent.clock.advance(61)
    answer = agent.until(lambda frame: frame["type"] == "response" and frame["id"] == 1)
    assert (code_of(answer), answer["error"]["message"]) == ("not_granted", "the grant has expired")


def test_an_older_run_of_the_same_name_is_not_its_own(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    """``evaluate`` prefers the older layout."""
    agent = opened(ALL)
    run = started(root, launch(agent, 1, "k1", run_name="ours"))
    (root / "rl_runs" / "ours").mkdir(parents=True)
    answer = agent.request("evaluate", run="ours", steps=[2], timeout=60, **DONE)
    assert "neither among the runs" in answer["error"]["message"]
    (root / "training_runs" / "linked").symlink_to(run.path)
    assert "neither among the runs" in agent.request("stop", run="linked", **DONE)["error"]["message"]


def test_a_stop_is_written_down_before_it_happens(
    opened: Callable[[Grant], RawAgent], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = opened(ALL)
    run = started(root, launch(agent, 1, "k1"))
    monkeypatch.setattr("remote.agent.grants.MAX_BYTES", 10)
    answer = agent.request("stop", run=run.name, **DONE)
    assert "nothing is done" in answer["error"]["message"]
    assert not run.stop_requested()


def test_a_failed_launch_costs_nothing(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    agent = opened(ALL)
    assert code_of(launch(agent, 6, "k1", run_name="two")) == "name_taken"
    assert left(agent) == 10
    assert code_of(launch(agent, 6, "unknown", recall=True)) == "not_received"
    assert left(agent) == 10


def test_a_limit_of_the_person_stays(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    text = "budget:\n  dollars: 1.5\n  price_per_hour: 9\n"
    agent = opened(replace(ALL, configs={"mine.yaml": text_hash(text)}))
    run = started(root, launch(agent, 4, "k1", config_text=text))
    assert run.read_launch()["overrides"] == ["budget.dollars=1.5", "budget.price_per_hour=2"]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("budget:\n  dollars: 1.5   # at most\n  price_per_hour: 9\n", "1.5"),
        ("budget:\n  dollars: null\n", "4"),
        ("budget: {hours: 3, dollars: 1.5, price_per_hour: 9}  # at most\n", "1.5"),
        ("budget: {hours: 3,\n  dollars: 1.5, price_per_hour: 9}\n", ""),
        ("budget:\n  dollars: 1e0\n  price_per_hour: 9\n", ""),
    ],
)
def test_a_limit_of_the_person_is_read_or_nothing_starts(
    opened: Callable[[Grant], RawAgent], root: Path, text: str, limit: str
) -> None:
    agent = opened(replace(ALL, configs={"mine.yaml": text_hash(text)}))
    answer = launch(agent, 4, "k1", config_text=text)
    if limit:
        assert started(root, answer).read_launch()["overrides"][0] == f"budget.dollars={limit}"
    else:
        assert "budget.dollars of the config cannot be read" in answer["error"]["message"]
        assert left(agent) == 10


def test_a_limit_that_a_person_set_later_stays(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    """It is in the resolved config; one that an assistant set there may be raised."""
    agent = opened(replace(ALL, runs=["three"]))
    run = create_run(root, {"argv": [], "config_text": CONFIG}, "three")
    atomic_write(run.config_file, "run:\n  seed: 1\n")
    set_state(run, "stopped")
    save(run, 1)

    def limit(dollars: float, key: str) -> str:
        words = resume(agent, run, dollars, key)["result"]["argv"]
        ended(root, run, 0.0)
        return next(str(word.partition("=")[2]) for word in words if word.startswith("budget.dollars="))

    assert limit(2, "k1") == "2"
    atomic_write(run.config_file, "budget:\n  dollars: 2.0\n")  # as the engine writes it
    assert limit(3, "k2") == "3"
    atomic_write(run.config_file, "budget:\n  dollars: 0.5\n")  # a person's resume
    assert limit(1, "k3") == "0.5"


def test_an_evaluation_costs_its_longest_time(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    agent = opened(ALL)
    asked = {"run": "one", "steps": [2], "idempotency_key": "k", "why": "see"}
    assert "needs a list of 'steps' and a 'timeout'" in agent.request("evaluate", **asked)["error"]["message"]
    answer = agent.request("evaluate", **asked, timeout=1800)
    assert code_of(answer) == ""
    assert left(agent) == 9
    assert code_of(agent.request("evaluate", **{**asked, "idempotency_key": "k2"}, timeout=36_000)) == "not_granted"


@pytest.mark.parametrize(("change", "reason"), [({"price_per_hour": None}, "price"), ({"dollars": None}, "no money")])
def test_without_a_price_or_money_nothing_starts(
    opened: Callable[[Grant], RawAgent], root: Path, change: dict[str, Any], reason: str
) -> None:
    agent = opened(replace(ALL, **change))
    for answer in (
        launch(agent, 1, "k1"),
        agent.request("resume", run="one", overrides=["budget.dollars=1"], **DONE),
        agent.request("evaluate", run="one", steps=[2], timeout=60, **DONE),
    ):
        assert code_of(answer) == "not_granted"
        assert reason in answer["error"]["message"]


def test_it_expires_by_the_clock_of_the_box(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    agent = opened(ALL)
    assert agent.clock is not None
    short = opened(replace(ALL, until=agent.clock.time() + 60))
    assert code_of(short.request("stop", run="one", **DONE)) == "not_running"
    assert short.clock is not None
    short.clock.advance(61)
    answer = short.request("stop", run="one", **DONE)
    assert (code_of(answer), answer["error"]["message"]) == ("not_granted", "the grant has expired")
    assert short.request("list_runs")["ok"]


def test_a_second_hello_does_not_widen_it(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    agent = opened(replace(ALL, verbs=[]))
    wider = {"type": "hello", "protocol": 1, "settings": {"root": str(root), "grant": asdict(ALL)}}
    agent.transport.send(encode(wider) + encode({"type": "request", "id": 1, "op": "stop", "params": {"run": "one"}}))
    while not agent.ended:
        agent.read(1.0)
    assert not any(frame["type"] == "response" for frame in agent.frames)


MALFORMED: list[dict[str, Any]] = [
    {"account": ACCOUNT},
    {**asdict(ALL), "verbs": ["kill"]},
    {**asdict(ALL), "verbs": "stop"},
    {**asdict(ALL), "dollars": "10"},
    {**asdict(ALL), "dollars": float("inf")},
    {**asdict(ALL), "until": "soon"},
    {**asdict(ALL), "account": "../../etc/cron"},
    {**asdict(ALL), "everything": True},
]


def test_a_malformed_grant_opens_no_session(root: Path) -> None:
    for grant in MALFORMED:
        with pytest.raises(AssertionError, match="malformed grant"):
            RawAgent(root, grant=grant)


def test_what_cannot_be_written_down_is_not_done(opened: Callable[[Grant], RawAgent], root: Path) -> None:
    agent = opened(ALL)
    (root / "training_runs" / f".grants-{os.geteuid()}").write_text("in the way")
    answer = launch(agent, 1, "k1")
    assert code_of(answer) == "not_granted"
    assert "cannot be written, so nothing is done" in answer["error"]["message"]
    assert {folder.name for folder in (root / "training_runs").iterdir() if folder.name[0] != "."} == {"one", "two"}


def test_the_keys_are_numbers_of_the_schema() -> None:
    from grpo_train.config.schema import Config

    for key in NUMERIC_KEYS:
        section, _, name = key.partition(".")
        kind = str(Config.model_fields[section].annotation.model_fields[name].annotation)  # type: ignore[union-attr]
        assert "str" not in kind.replace("constraints", ""), (key, kind)
