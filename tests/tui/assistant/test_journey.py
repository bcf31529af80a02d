"""An assistant within its grant, through the package's own client, a real agent and the real engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from grpo_train.run_dir import RunDir
from grpo_tui.assistant.acting import BoxActor
from grpo_tui.assistant.server import command_parser, read_grant, server_of
from remote.boxes import Box
from tests.support.engine import MICRO, REPOSITORY, config_text
from tests.support.patience import PATIENCE
from tests.tui.assistant.test_server import call, refusal

FELL_AT = 40


@pytest.fixture(scope="module")
def root(golden: Callable[[str], RunDir]) -> Path:
    """``first`` has collapsed at step 40 of 80."""
    run = golden("first")
    log = run.logs / "train_log.jsonl"
    row = json.loads(log.read_text().splitlines()[-1])
    rewards = [1.4 + 0.02 * (step % 3) if step < FELL_AT else 0.1 + 0.02 * (step % 3) for step in range(1, 81)]
    log.write_text("".join(json.dumps({**row, "step": n, "reward": r}) + "\n" for n, r in enumerate(rewards, 1)))
    return run.root


@pytest.fixture(scope="module")
def box(root: Path) -> Iterator[Box]:
    socket = f"journey-{os.getpid()}"
    engine = [sys.executable, "-m", "grpo_train.cli"]
    yield Box(
        "local", kind="local", root=str(root), repo=str(REPOSITORY), engine=engine, tmux_socket=socket,
        price_per_hour=1.0,
    )  # fmt: skip
    subprocess.run(["tmux", "-L", socket, "kill-server"], capture_output=True)


@pytest.fixture(scope="module")
def actor(box: Box, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxActor]:
    folder = tmp_path_factory.mktemp("laptop")
    (folder / "long.yaml").write_text(config_text(MICRO, run__total_steps=100_000, run__save_every=1000))
    words = ["--allow", "stop,evaluate,resume,launch", "--config", str(folder / "long.yaml"), "--budget-dollars", "5"]
    grant, configs = read_grant(box, command_parser("mcp").parse_args(words))
    with closing(BoxActor(box, None, grant, configs, folder / "assistant.jsonl")) as made:
        yield made


async def act(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Plan an act and confirm it."""
    planned = await call(client, tool, **arguments)
    assert planned["done"] is False
    done = await call(client, tool, **arguments, confirm=planned["confirm"])
    assert done["done"] is True
    return done


async def wait(client: Client, run: str, **arguments: Any) -> dict[str, Any]:
    """Wait until it came."""
    for _ in range(round(3 * PATIENCE)):
        found = await call(client, "wait", run=run, seconds=60, **arguments)
        if found["came"]:
            return found
    raise AssertionError(found)


async def test_a_night_within_a_grant(actor: BoxActor, root: Path) -> None:
    async with Client(server_of(actor)) as client:
        assert "the tools runs, run, events" in str((await client.get_prompt("morning_report")).messages[0].content)
        [fallen] = [row for row in (await call(client, "runs"))["runs"] if row["run"] == "first"]
        assert fallen["verdict"]["word"] == "collapsed"
        assert abs(fallen["verdict"]["since"] - FELL_AT) <= 3
        assert "neither among the runs" in await refusal(client, "stop_run", run="first", why="it fell")

        started = await act(client, "launch_run", config="long.yaml", why="again, from the start", dollars=3)
        run = started["run"]
        heard: list[tuple[float, float | None]] = []

        async def hear(done: float, total: float | None, message: str | None) -> None:
            heard.append((done, total))

        asked = {"run": run, "until": "step", "step": 10**6, "seconds": 1.5}
        assert not (await client.call_tool("wait", asked, progress_callback=hear)).is_error
        assert heard
        await wait(client, run, until="step", step=2)
        assert (await call(client, "grant"))["dollars_left"] == 2
        await act(client, "stop_run", run=run, why="its reward fell")
        ended = await wait(client, run)
        assert ended["summary"]["state"] == "stopped"
        step = ended["summary"]["step"]

        await act(client, "evaluate_run", run=run, why="is it better?", steps=[step], timeout=600, num_problems=4)
        await wait(client, run, until="evaluations")
        [evaluated] = (await call(client, "evaluations", run=run))["evaluations"]
        assert evaluated["state"] == "finished"

        planned = {"run": run, "why": "go on slowly", "dollars": 1, "additional_steps": 2}
        changes = {"optimizer.learning_rate": 1e-5}
        assert "left" in await refusal(client, "resume_run", **{**planned, "dollars": 9})
        await act(client, "resume_run", **planned, changes=changes)
        finished = await wait(client, run)
        assert (finished["summary"]["state"], finished["summary"]["step"]) == ("finished", step + 2)
        config = (await call(client, "config", run=run))["config"]
        assert config["optimizer.learning_rate"] == 1e-5
        assert 1 < config["budget.dollars"] < 1.1
        events = (await call(client, "events", run=run, kind="by_assistant"))["events"]
        assert [(event["op"], event["why"]["said"]) for event in events] == [
            ("launch", "again, from the start"), ("stop", "its reward fell"), ("evaluate", "is it better?"),
            ("resume", "go on slowly"),
        ]  # fmt: skip


async def test_a_word_confirms_one_request_once(actor: BoxActor) -> None:
    async with Client(server_of(actor)) as client:
        planned = await call(client, "launch_run", config="long.yaml", why="twice", dollars=1, run_name="twice")
        word = planned["confirm"]
        other = {"config": "long.yaml", "why": "twice", "dollars": 2, "run_name": "twice", "confirm": word}
        assert "belongs to another request" in await refusal(client, "launch_run", **other)
        assert (await call(client, "grant"))["run_names"].count("twice") == 0
