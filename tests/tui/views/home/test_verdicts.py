"""Which run is in trouble, since when, and what to do: read from Home alone."""

from __future__ import annotations

import pytest

from grpo_train.run_dir.verdict import RunVerdict
from tests.tui.conftest import Session, Start
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import RUN

FELL = RunVerdict("collapsed", 41, 50, "reward", 1.84, 0.0, "learning_rate 1e-4→2e-3", 40)
DEAD = RunVerdict("no signal", 12, 12, "frac_reward_zero_std", 0.2, 1.0, how="all wrong")
GOOD = RunVerdict("done", 1, 200, "reward", 0.2, 1.9)
FINISHED = "run_2026-11-20_22-10-41"


def judged(client: FakeClient) -> None:
    for row in learning_box(client).runs:
        verdict = {RUN: FELL, FINISHED: GOOD}.get(row["run"])
        if verdict is not None:
            row["verdict"] = verdict.to_json()


def line(session: Session, text: str) -> str:
    return next(line for line in session.text().splitlines() if text in line)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_a_collapse_is_first(start: Start, size: tuple[int, int]) -> None:
    async with start(judged, size=size, wait="87/200") as session:
        await session.until_text("▼ collapsed", "✔ done", "collapsed at step 41: reward 1.840 ▼ 0")
        first = session.app.home.needs.entries[0]
        assert (first.run, first.tone, first.is_first) == (RUN, "bad", True)
        assert "reward 1.840 ▼ 0, steps 41–50" in line(session, " ▼ collapsed  reward")
        await session.until_text("r: resume at 30, learning_rate 1e-4")


@pytest.mark.parametrize(("since", "said"), [(5, "no checkpoint before it"), (25, "resume at 20 (held-out .710)")])
async def test_what_is_resumed_is_from_before_the_fall(start: Start, since: int, said: str) -> None:
    def early(client: FakeClient) -> None:
        judged(client)
        client.runs[0]["verdict"] = RunVerdict("collapsed", since, since + 1, "reward", 1.84, 0.0).to_json()

    async with start(early, wait="87/200") as session:
        await session.until_text(said)


async def test_the_end_of_a_run_that_is_not_well_is_no_success(start: Start) -> None:
    async with start(judged, wait="87/200") as session:
        session.client.runs[0].update(state="finished", step=200)
        session.client.report()
        text = await session.until_text("finished: collapsed")
        assert session.app.store.run is not None
        assert session.app.store.run.label == ("▼", "finished", "rest")
        assert "its last checkpoint is not evaluated" not in text


async def test_a_live_run_in_trouble_is_not_green(start: Start) -> None:
    async with start(learning_box, wait="87/200") as session:
        assert session.app.store.run is not None
        assert session.app.store.run.label[2] == "live"
        for verdict, tone in ((FELL, "bad"), (DEAD, "warn")):
            session.client.runs[0]["verdict"] = verdict.to_json()
            session.client.report()
            await session.until(lambda tone=tone: session.app.store.run.label == ("●", "running", tone))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_what_to_do_about_the_selected_run_is_beside_its_verdict(start: Start, size: tuple[int, int]) -> None:
    mastered = RunVerdict(
        "no signal", 41, 41, "frac_reward_zero_std", 0.2, 1.0, "temperature 1→0.01", 40, "all correct"
    )

    def two(client: FakeClient) -> None:
        judged(client)
        for row in client.runs:
            if row["run"] == FINISHED:
                row["verdict"] = mastered.to_json()

    async with start(two, size=size, wait="87/200") as session:
        await session.until_text("next         r: resume at 30, learning_rate 1e-4")
        await session.press("down")
        await session.until_text(
            "∅ no signal  since step 41, 1 step after",
            "∅ all correct @41",
            "next         r: resume at 30, temperature 1",
        )
        session.client.runs[1]["verdict"] = RunVerdict("flat", 5, 5, "reward", 0.9, 0.9).to_json()
        session.client.report()
        await session.until_text("→ flat       reward 0.900", "next         try a higher learning rate")
        facts = session.app.home.runs.facts
        facts.configs[FINISHED] = {"optimizer.learning_rate": 5e-6}
        facts.version += 1  # the box has answered
        await session.until_text("next         try a higher learning rate than 5e-6")
        hacked = RunVerdict("suspicious", 41, 41, "hacking/multiple_answers", 0.02, 0.6)
        session.client.runs[1]["verdict"] = hacked.to_json()
        session.client.report()
        await session.until_text("! suspicious", "next         3: read its completions")
        await session.press("down", "down")
        await session.until(lambda: "next  " not in session.text())


async def test_a_verdict_is_told_once_and_can_be_filtered(start: Start) -> None:
    async with start(learning_box, wait="87/200") as session:
        rung: list[int] = []
        session.app.bell = lambda: rung.append(1)  # type: ignore[method-assign]
        await session.until(lambda: session.app.home.needs.entries)  # what was there already does not ring
        session.client.runs[0]["verdict"] = DEAD.to_json()
        session.client.report()
        await session.until_text(
            "∅ all wrong @12", f"{RUN} hardly learns since step 12", "100 % of groups score alike,"
        )
        await session.until_text("; try easier problems")
        session.client.runs[0].update(step=88)
        session.client.report()
        await session.until_text("88/200")
        assert len(rung) == 1
        await session.press("slash", *"verdict:no", "enter")
        await session.until(lambda: [row.name for row in session.app.home.runs.rows] == [RUN])
