"""The list of runs: its columns, order and names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo_tui.files import ColumnsError, columns_path, read_columns, write_columns
from grpo_tui.views.home.runs import RunsPanel
from tests.tui.conftest import Session, Start
from tests.tui.fake import GPUS, FakeClient, learning_box
from tests.tui.fake_rows import RUN

OTHERS = ("run_2026-11-20_22-10-41", "run_2026-11-20_18-02-07", "run_2026-11-19_09-30-00")


def sweeping_box(client: FakeClient) -> None:
    """:func:`learning_box` with configurations and a held-out accuracy."""
    learning_box(client)
    same = {"task.name": "gsm8k", "model.backbone": "Qwen/Qwen2.5-1.5B", "model.adapter": "lora", "run.seed": 1}
    for run, rate, kl in zip((RUN, *OTHERS), (2e-6, 2e-6, 5e-6, 1e-6), (0.03, 0.01, 0.02, None), strict=True):
        metrics = {} if kl is None else {"kl": kl}
        client.facts[run] = {"config": {**same, "optimizer.learning_rate": rate}, "metrics": metrics}
    client.runs[1]["held_out"] = {"accuracy": 0.712, "dataset": "gsm8k", "step": 100}


def listed(session: Session) -> list[str]:
    return [row.name for row in session.app.home.runs.rows]


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 40), (200, 60)])
async def test_many_steps_do_not_break_the_columns(start: Start, size: tuple[int, int]) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client).gpus = GPUS
        client.runs[1].update(step=98_765, total_steps=100_000, reward=-12_345.678)
        client.runs[2].update(step=40_000, total_steps=1_000_000)

    async with start(script, size=size, wait="98765/100000") as session:
        steps = ("87/200", "98765/100000", "40000/1000000")
        await session.until_text(*steps[: 2 if size[1] < 20 else 3])
        rows = [line for line in session.text().splitlines() if line.startswith("┃")]  # it has the focus
        lines = [next((line for line in rows if text in line), "") for text in steps[: 2 if size[1] < 20 else 3]]
        (end,) = {line.index(text) + len(text) for line, text in zip(lines, steps, strict=False)}
        assert all("…" not in line[end : line.index("┃", 1)] for line in lines)


async def test_names_show_what_differs(start: Start) -> None:
    async with start(sweeping_box, wait="lr 5e-6") as session:
        text = await session.until_text("✖ lr 5e-6 ", "■ lr 1e-6 ", "the same in all: gsm8k · Qwen2.5-1.5B · LoRA")
        assert ".712 gsm8k" in text
        await session.press("w")
        await session.until_text("✖ run_2026-11-20_18-02-07", "what differs: w")


async def test_every_column_sorts_both_ways(start: Start) -> None:
    async with start(sweeping_box, wait="lr 5e-6") as session:
        for column in ["name", *session.app.home.runs.columns]:
            for _ in range(2):
                session.app.home.sort_by(column)
                assert sorted(listed(session)) == sorted((RUN, *OTHERS)), column
        session.app.home.sort_by("start")
        await session.press("o", *["down"] * 6, "enter")
        await session.until_text("reward↓")
        assert listed(session) == [RUN, *OTHERS[:1], OTHERS[2], OTHERS[1]]  # without a reward: last …
        await session.press("o", "o")
        await session.until_text("reward↑")
        assert listed(session) == [OTHERS[2], OTHERS[0], RUN, OTHERS[1]]  # … in both directions


async def test_a_click_on_a_heading_sorts(start: Start) -> None:
    async with start(sweeping_box, wait="lr 5e-6") as session:
        heading = next(line for line in session.text().splitlines() if "reward" in line and "name" in line)
        await session.pilot.click("#runs", offset=(heading.index("step"), 1))
        await session.until_text("step↓")
        assert listed(session)[0] == OTHERS[0]


async def test_a_metric_becomes_a_column(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    async with start(sweeping_box, wait="lr 5e-6") as session:
        runs = session.app.home.runs
        runs.columns = (*runs.columns, "kl")
        await session.until_text("0.030", "0.020")
        session.app.home.sort_by("kl")
        assert listed(session) == [RUN, OTHERS[1], OTHERS[0], OTHERS[2]]
        await session.press("O", "slash", *"optimizer", "enter", "space", "enter")
        await session.until_text(" lr", "5e-6")
        await session.until(lambda: read_columns()[-1:] == ("optimizer.learning_rate",), "the file")
        assert all(
            {"optimizer.learning_rate", "kl"} >= set(one["metrics"]) for one in session.client.asked_for("run_facts")
        )


async def test_an_older_agent_has_no_facts(start: Start) -> None:
    from remote.protocol import RemoteError

    def refuse(client: FakeClient, params: dict[str, Any]) -> None:
        raise RemoteError("unknown_op", "unknown operation 'run_facts'")

    def script(client: FakeClient) -> None:
        learning_box(client).answers["run_facts"] = refuse

    async with start(script, wait="87/200") as session:
        await session.until_text("unknown operation", OTHERS[0])
        assert len(session.client.asked_for("run_facts")) == 1, "asked again after a pause only"


async def test_the_list_scrolls_below_its_heading(start: Start) -> None:
    def many(client: FakeClient) -> None:
        learning_box(client)
        client.runs += [{**client.runs[3], "run": f"r{index}"} for index in range(60)]

    async with start(many, wait="87/200") as session:
        await session.press("end")
        await session.until_text("■ r59 ", "reward")
        panel = session.app.home.query_one(RunsPanel)
        assert panel.cursor == 63
        line = next(i for i, text in enumerate(session.text().splitlines()) if "■ r58 " in text)
        await session.pilot.click(offset=(10, line))
        await session.until(lambda: session.app.store.selected == "r58")


def test_columns_file_round_trips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert read_columns() == ()
    write_columns(("state", "completions/mean_length", "no: 'quotes'"))
    assert read_columns() == ("state", "completions/mean_length", "no: 'quotes'")
    for text in ("columns: 3\n", "[", "columns: [a, a]\n", "columns: []\n"):
        columns_path().write_text(text)
        with pytest.raises(ColumnsError, match=r"columns\.yaml"):
            read_columns()


async def test_filter_hides_runs(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("slash", *"crash")
        await session.until_text("/crash", "1 of 4 · sorted")
        await session.press("enter", "escape")
        await session.until(lambda: "1 of 4 · sorted" not in session.text())


async def test_filter_selects_a_matching_run(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("slash", *"crash", "enter")
        await session.until(lambda: session.app.store.run and session.app.store.run.state == "crashed", "the selection")
        await session.until_text("crashed", "rank 1 was killed by SIGKILL")


async def test_all_runs_that_pass_the_filter_are_marked(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("slash", *"state:crashed,finished", "enter")
        await session.until(lambda: len(session.app.runs.rows) == 2, "the filter")
        await session.press("M")
        await session.until_text("2 marked (*): 6 compares them")
        await session.press("M", "escape")
        assert {*session.app.store.marks} == {row["run"] for row in session.client.runs[1:3]}


async def test_filter_text_is_not_markup(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("slash", *"[red", "enter")
        await session.until_text("runs /[red 0 of 4", "no runs match /[red")
        await session.until(lambda: session.app.store.selected is None, "no run selected: none is listed")


async def test_a_mistake_keeps_the_last_list(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("slash", *"reward>1.5 step<90")
        await session.until_text("1 of 4 · sorted")
        await session.press("space", "(")
        await session.until_text("^ a condition is missing after '('")
        assert [row.name for row in session.app.home.runs.rows] == [RUN], "the last good list"
        await session.press("backspace", *"reward>high")
        await session.until_text("^ reward is compared with a number")
        assert [row.name for row in session.app.home.runs.rows] == [RUN], "the list of the rest"
        await session.press("escape")
        await session.until(lambda: len(session.app.home.runs.rows) == 4)


async def test_the_filter_reads_metrics_and_config(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        for row, rate, kl in zip(client.runs, (1e-6, 2e-6, 3e-6), (0.1, 0.2, 0.3), strict=False):
            client.facts[row["run"]] = {"config": {"optimizer.learning_rate": rate}, "metrics": {"kl": kl}}

    async with start(script, wait="87/200") as session:
        for text, count in (("lr>=2e-6", 2), ("kl<0.15 or kl>0.25", 2), ("not (state:crashed or lr=1e-6)", 2)):
            await session.press("slash", *text)
            await session.until_text(f"{count} of 4")
            await session.press("escape")


async def test_a_name_of_a_metric_and_of_a_key_is_the_metric(start: Start) -> None:
    """Its full name is what is configured."""

    def script(client: FakeClient) -> None:
        learning_box(client)
        client.facts[RUN] = {"config": {"optimizer.learning_rate": 2e-6}, "metrics": {"learning_rate": 1.5e-6}}

    async with start(script, wait="87/200") as session:
        by_text = {"learning_rate=1.5e-6": 1, "optimizer.learning_rate=2e-6": 1, "learning_rate=2e-6": 0}
        for text, count in by_text.items():
            await session.press("slash", *text)
            await session.until_text(f"{count} of 4")
            await session.press("escape")


async def test_an_unknown_field_is_named(start: Start) -> None:
    async with start(wait="87/200") as session:
        for text, said in (("rewrd>1", "no run has rewrd: did you mean reward?"), ("foo=1", "no run has foo")):
            await session.press("slash", *"state:running")
            await session.until_text("1 of 4 · sorted")
            await session.press(*f" {text}")
            await session.until_text(f"^ {said}")
            assert [row.name for row in session.app.home.runs.rows] == [RUN], "the list of the rest"
            await session.press("escape")
            await session.until(lambda: len(session.app.home.runs.rows) == 4)


async def test_the_list_is_saved_as_shown(start: Start, downloads: Path) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        client.runs[1]["note"] = "=best"
        client.facts[client.runs[1]["run"]] = {"config": {"optimizer.learning_rate": 2e-6}}

    async with start(script, wait="87/200") as session:
        session.app.home.runs.columns = ("note", "optimizer.learning_rate", "state", "step", "took")
        await session.press("slash", *"state:running,finished", "enter")
        await session.until_text("2 of 4", "2e-6")
        session.app.home.sort_by("name")
        await session.press("E")
        await session.until(lambda: "saved 2 runs" in session.messages())
        assert (downloads / "h200-a_runs.csv").read_text().splitlines() == [
            "run,note,optimizer.learning_rate,state,step,total_steps,took_s",
            "run_2026-11-20_22-10-41,'=best,2e-06,finished,100,100,600.0",
            f"{RUN},,,running,87,200,602.0",
        ]


async def test_a_live_run_is_never_out_of_sight(start: Start) -> None:
    def many(client: FakeClient) -> None:
        learning_box(client)
        client.runs += [{**client.runs[1], "run": f"r{index}"} for index in range(30)]

    async with start(many, size=(80, 24), wait="87/200") as session:
        await session.press("G")
        await session.until_text("● run_gsm8k_demo 87/200 ━")
        await session.press("g")
        await session.until(lambda: "demo 87/200 ━" not in session.text())


@pytest.mark.parametrize(("size", "shown"), [((80, 24), False), ((200, 60), True)])
async def test_the_list_fills_its_width(start: Start, size: tuple[int, int], shown: bool) -> None:
    def noted(client: FakeClient) -> None:
        held_out = {"accuracy": 0.712, "dataset": "gsm8k", "step": 100, "best": 0.979, "best_step": 40}
        learning_box(client).runs[1].update(note="the one to beat", held_out=held_out)

    async with start(noted, size=size, wait="87/200") as session:
        await session.until_text("avg reward")
        wanted = (" best", " at step", " .979 at 40", " note", "the one to beat")
        if shown:
            await session.until_text(*wanted)
        else:
            assert not any(text in session.text().partition("needs you")[0] for text in wanted)
