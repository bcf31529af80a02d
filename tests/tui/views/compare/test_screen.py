"""The compare view: marked runs in one chart, what differs, which one is better."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from grpo_train.run_dir.verdict import RunVerdict
from grpo_tui.views.compare.chart import CompareChart
from grpo_tui.views.compare.screen import CompareScreen
from remote import gate
from remote.events import Link, LinkChanged
from remote.protocol import RemoteError
from tests.tui.conftest import BOX, Session, Start
from tests.tui.fake import FakeClient, _show_run, learning_box
from tests.tui.fake_rows import RUN, jsonl, summary, train_rows

FINISHED, CRASHED = "run_2026-11-20_22-10-41", "run_2026-11-20_18-02-07"
STEPS = {RUN: 87, FINISHED: 100, CRASHED: 12}


def rows_of(run: str) -> list[dict[str, Any]]:
    return [{**row, "num_tokens": 1000 * row["step"]} for row in train_rows(STEPS[run], seed=STEPS[run])]


def show_run(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
    run = params["run"]
    rate = {RUN: "2.0e-06", FINISHED: "5.0e-06"}.get(run, "1.0e-05")
    reply = _show_run(client, params)
    text = f"run:\n  total_steps: 200\n  seed: 1\noptimizer:\n  learning_rate: {rate}\n"
    table = {"step": "0", "name": "model", "accuracy": "0.333", "ci_low": "0.303", "ci_high": "0.363", "problems": "40"}
    baseline = {"name": "@acme--tiny_addition", "dataset": "addition", "model": "acme/tiny", "metrics": [table]}
    found = {"config_text": text, "launch": {}, "status": {"version": "0.2.0"}, "baselines": [baseline]}
    return {**reply, **found}


def compare_evaluations(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
    row = {"dataset": "addition", "n": 40, "difference": -0.05, "low": -0.09, "high": -0.01, "gained": 3, "lost": 5}
    found = [
        {**row, "run": run, "step": step, "name": f"step_{step}"}
        for run in params["others"]
        for step in params["steps"]
    ]
    return gate.reply("compare_evaluations", {"ok": True, "result": {"comparisons": found, "problems": []}})


def box(client: FakeClient) -> None:
    """Three runs with logs, of different configurations."""
    learning_box(client)
    for run in STEPS:
        client.files[f"training_runs/{run}/logs/train_log.jsonl"] = jsonl(rows_of(run))
    client.answers |= {"show_run": show_run, "compare_evaluations": compare_evaluations}


async def compare(session: Session, runs: int = 3) -> CompareScreen:
    """Mark the first runs of the list, and turn to the view."""
    for index in range(runs):
        await session.press(*["down"] * bool(index), "space")
    await session.press("6")
    screen = session.app.views.compare
    await session.until_text(f"{runs} runs (A pinned)")
    await session.until(lambda: all(run.curves.track for run in screen.comparison.runs), "curves")
    return screen


def charts(screen: CompareScreen) -> list[CompareChart]:
    return [chart for chart in screen.query(CompareChart) if chart.display]


async def test_without_marks_the_view_says_how(start: Start) -> None:
    async with start(box, wait="87/200") as session:
        await session.press("6")
        await session.until_text("two to twelve runs side by side", "space marks the run under the cursor")
        await session.press("escape", "space", "6")
        await session.until_text(f"marked so far: {RUN}")


async def test_several_runs_share_a_chart(start: Start) -> None:
    async with start(box, wait="87/200") as session:
        screen = await compare(session)
        text = await session.until_text(
            "A run_gsm8k_demo ━━ pinned", "B lr 5e-6 ━━", "C ✖", "line: raw", " at 12)", "events: C"
        )
        assert f"last   A {rows_of(RUN)[-1]['reward']:.3f}" in text, "as it was logged, not a mean"
        assert text.count("B") > 4, "on its line, too"
        assert [chart.metric for chart in charts(screen)] == ["reward", "grad_norm"]
        await session.press("left")
        await session.until_text("at 100   A – (now at 87)", "C – (ended at 12)")
        await session.press(*["H"] * 11)
        await session.until(lambda: screen.comparison.crosshair == 1)
        assert {chart.crosshair for chart in charts(screen)} == {1}
        assert "ended at" not in await session.until_text("at 1   A ", "   B ")
        await session.press("escape")
        await session.until_text("last   A")


async def test_the_tables_say_what_differs(start: Start) -> None:
    async with start(box, wait="87/200") as session:
        screen = await compare(session)
        await session.until_text(
            "optimizer.learning_rate  2e-6  5e-6 ≠  1e-5 ≠", "3 keys are the same   u shows all",
            "B − A", ".710", "-.050 ±.040 ≠", "4 of 4 differences are beyond", "(40 problems, in pairs)",
            "B at step 20: 3 gained, 5 lost of 40 problems", "@acme--tiny  .333 ±.030  40 problems",
            "step 87", " ★", "tokens 87k", "GPU time 8 m 50 s", "cost $0.18", "first step at", "✖ crashed",
            "rewards: means of 10 steps",
        )  # fmt: skip
        await session.press("u")
        await session.until_text("run.total_steps", "u hides them")
        assert screen.comparison.shows_all
        (params,) = session.client.asked_for("compare_evaluations")
        assert params == {"run": RUN, "others": [FINISHED, CRASHED], "steps": [10, 20]}
        session.client.on_event(LinkChanged(Link.LOST, "gone", retry_in_s=4.0))
        await session.until(lambda: not session.app.store.connected)
        session.app.store.link_since -= 720
        await session.until(lambda: session.text().count("link lost 12 m ago") == 6, "the age in header and panels")


async def test_a_collapse_is_not_a_mere_end(start: Start) -> None:
    def script(client: FakeClient) -> None:
        box(client)
        for row in client.runs:
            if row["run"] in (FINISHED, CRASHED):
                row["verdict"] = RunVerdict("collapsed", 41, 50, "reward", 1.84, 0.0).to_json()

    async with start(script, wait="87/200") as session:
        await compare(session)
        await session.until_text("now                ● running  ▼ collapsed  ✖ crashed")


async def test_rewards_of_other_scales_are_not_ranked(start: Start) -> None:
    """A reward of 1 is not the same at another temperature: no run is the best one then."""

    def hotter(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        reply = show_run(client, params)
        warmth = "4.0" if params["run"] == CRASHED else "1.0"
        more = f"rollout:\n  temperature: {warmth}\ntask:\n  '[/odd]': {warmth}\n"
        return {**reply, "config_text": reply["config_text"] + more}

    def script(client: FakeClient) -> None:
        box(client)
        client.answers["show_run"] = hotter

    async with start(script, wait="87/200") as session:
        await compare(session)
        await session.until_text("no ★: temperature, task.[/odd] differ · rewards: means of")
        assert session.text().count("★") == 1, "in this line only"


async def test_why_evaluations_are_not_compared_is_at_the_edge(start: Start) -> None:
    """The reasons are below the table, which may be longer than its panel."""

    def refused(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        result = {"comparisons": [], "problems": ["step_10 of a and b were evaluated under different settings"]}
        return gate.reply("compare_evaluations", {"ok": True, "result": result})

    def script(client: FakeClient) -> None:
        box(client)
        client.answers["compare_evaluations"] = refused

    async with start(script, wait="87/200") as session:
        await compare(session)
        await session.until_text("1 pair not compared: why is below", "were evaluated under different")


async def test_runs_are_pinned_and_dropped(start: Start) -> None:
    async with start(box, wait="87/200") as session:
        screen = await compare(session)
        await session.press("j", "p")
        await session.until_text("3 runs (B pinned)", "2e-6 ≠  5e-6  ", "A − B")
        await session.press("k", "d")
        await session.until_text("2 runs (A pinned)", "B lr 1e-5 ━━")
        assert list(session.app.store.marks) == [FINISHED, CRASHED]
        await session.press("enter")
        await session.until(lambda: session.app.views.name == "charts" and session.app.store.selected == FINISHED)
        await session.press("6", "d")
        await session.until_text("two to twelve runs", f"marked so far: {CRASHED}")
        assert not screen.query_one("#body").display


async def test_axes_begin_with_each_run(start: Start) -> None:
    async with start(box, wait="87/200") as session:
        screen = await compare(session)
        await session.press("x")
        await session.until_text("x: tokens", "40k")
        await session.press("x")
        await session.until(lambda: screen.comparison.ends == (0.0, pytest.approx(306.9)))
        await session.until_text("x: time", "2 m", "3 m", "5 m 06 s")
        await session.press("x")
        await session.until_text("x: cost", "$0.1", "$0.2")
        await session.press("left")
        await session.until_text("at $0.21 ")
        await session.press("number_sign", *"50", "enter")
        await session.until_text("at $0.11 ")  # 50 of 99 steps
        await session.press("escape", "x")
        await session.until(lambda: screen.view.x == "step" and screen.ends, "the curves")
        await session.press("number_sign", *"50", "enter", "h")
        await session.until_text("at 48 ")
        await session.press("right_square_bracket")
        await session.until(lambda: charts(screen)[0].metric == "loss")
        await session.press("left_square_bracket")
        await session.until(lambda: charts(screen)[0].metric == "reward")
        await session.press("v")
        await session.until(lambda: len(charts(screen)) == 6 and not screen.query_one("#standing").display, "no tables")
        shown = {chart.metric for chart in charts(screen)}
        await session.press("right_square_bracket")
        await session.until(lambda: charts(screen) and not shown & {chart.metric for chart in charts(screen)})
        await session.press("v")
        await session.until(lambda: len(charts(screen)) == 2 and screen.query_one("#standing").display, "the tables")


async def test_runs_are_pinned_and_dropped_by_mouse_and_name(start: Start) -> None:
    async with start(box, size=(200, 60), wait="87/200") as session:
        await compare(session)
        y = session.app.size.height - 2
        await session.pilot.click(offset=(session.text().splitlines()[y].index("p pin"), y))
        await session.until_text("(C pinned)")
        await session.press("colon", *"drop run", "enter")
        await session.until_text("2 runs (A pinned)")


async def test_tables_and_values_are_copied(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start(box, box=replace(BOX, price_per_hour=None), wait="87/200") as session:
        await compare(session)
        await session.until_text("no cost: set price_per_hour of this box in boxes.yaml")
        copied: list[str] = []
        monkeypatch.setattr(session.app, "copy", lambda text, what: copied.append(text))
        await session.until_text("B − A", "5e-6 ≠")
        await session.press("y", "t", "y")
        assert copied[0].startswith("last   A 1.7")
        assert "optimizer.learning_rate  2e-6  5e-6 ≠  1e-5 ≠" in copied[1]


async def test_many_runs_have_a_line_each(start: Start) -> None:
    async with start(box, size=(104, 40), wait="87/200") as session:
        screen = await compare(session)
        rows = [(f"key.of_some_length_{i}", f"value {i} of a key") for i in range(2)]
        await session.until(lambda: all(run.facts is not None for run in screen.comparison.runs))
        for run in screen.comparison.runs:
            assert run.facts is not None
            run.facts = replace(run.facts, config={key: f"{value} {run.letter}" for key, value in rows})
        await session.until_text("A    value 0 of a key A    ", "B    value 0 of a key B ≠  ")


async def test_a_small_terminal_shows_one_chart_and_one_table(start: Start) -> None:
    async with start(box, size=(60, 15), wait="87/200") as session:
        screen = await compare(session)
        await session.until(lambda: len(charts(screen)) == 1)
        assert charts(screen)[0].size.height >= 3
        await session.until_text("step 87")
        for text in ("learning_rate", ".710", "step 87"):
            await session.press("t")
            await session.until_text(text)
        assert max(map(len, session.text().splitlines())) <= 60


async def test_more_than_twelve_marks(start: Start) -> None:
    def script(client: FakeClient) -> None:
        box(client)
        client.runs += [summary(f"run_{i:02d}", "finished", step=12) for i in range(10)]
        for i in range(10):
            client.files[f"training_runs/run_{i:02d}/logs/train_log.jsonl"] = jsonl(rows_of(CRASHED))

    async with start(script, wait="87/200") as session:
        for name in [row["run"] for row in session.client.runs if row["run"] != "run_2026-11-19_09-30-00"]:
            session.app.store.marks.toggle(name)
        await session.press("6")
        text = await session.until_text(
            "12 runs (A pinned)", "1 marked runs are left out: at most 12", "… ", "L run_08 "
        )
        assert max(map(len, text.splitlines())) <= 120


async def test_what_is_coarse_says_so(start: Start) -> None:
    def coarse(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        reply = client.index.answer("series", client.files, params)
        return {**reply, "state": "coarse", "progress": 0.34} if params["run"] == FINISHED else reply

    def script(client: FakeClient) -> None:
        box(client)
        client.answers["series"] = coarse

    async with start(script, wait="87/200") as session:
        await session.press("space", "down", "space", "6")
        await session.until_text("coarse, 34 %", "(B)", "waiting for B: coarse")


async def test_a_box_that_refuses(start: Start) -> None:
    def refuse(client: FakeClient, params: dict[str, Any]) -> None:
        raise RemoteError("no_answer", "the engine is too [old]")

    def no_curve(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        if params["run"] == CRASHED:
            raise RemoteError("no_index", "no folder takes it")
        return client.index.answer("series", client.files, params)

    def script(client: FakeClient) -> None:
        box(client)
        client.answers |= {"compare_evaluations": refuse, "series": no_curve}

    async with start(script, wait="87/200") as session:
        await session.press("space", "down", "space", "down", "space", "6")
        await session.until_text("the engine is too [old]", "C: no folder takes it", "3 keys are the same", "step 87")


async def test_problems_of_two_runs_side_by_side(start: Start) -> None:
    def completions(run: str, right: tuple[int, ...]) -> bytes:
        return jsonl(
            [
                {
                    "step": 20, "index": index, "sample": 0, "question": f"What is {index} + 1?", "length": 5,
                    "gold": str(index + 1), "completion": f"<answer>{run}</answer>", "correct": index in right,
                    "answer": run, "truncated": False, "score": None, "metrics": {}, "facts": {},
                }
                for index in range(4)
            ]
        )  # fmt: skip

    def script(client: FakeClient) -> None:
        box(client)
        for run, right in ((RUN, (0, 1, 2)), (FINISHED, (0, 3))):
            folder = f"eval_runs/{run}_addition/step_20_addition"
            client.files[f"{folder}/completions.jsonl"] = completions(run, right)

    async with start(script, wait="87/200", size=(160, 48)) as session:
        screen = await compare(session, 2)
        await session.until_text("F: problem by problem")
        await session.press("j", "F")
        await session.until_text(f"problems lost against {RUN}", "2 of 4 problems", "What is 1 + 1?", "What is 2 + 1?")
        await session.until_text(f"sample 0 beside sample 0 of {RUN}", "✖ wrong", "✔ right", "other   this")
        assert session.app.store.selected == FINISHED
        await session.press("F")
        await session.until_text(f"problems gained against {RUN}", "1 of 4 problems", "What is 3 + 1?")
        await session.press("F")
        await session.until_text("4 problems", "problems wrong first")
        await session.press("escape")
        await session.until(lambda: session.app.views.name == "compare", "one step out")
        await session.press("F")
        await session.until_text(f"problems lost against {RUN}", "2 of 4 problems")
        await session.press("F", "F")
        await session.until_text("problems wrong first")
        await session.press("escape")
        await session.until(lambda: session.app.views.name == "compare", "one step out again")
        screen.comparison.runs[0].facts = replace(screen.comparison.runs[0].facts, accuracies={})  # type: ignore[type-var]
        await session.press("F")
        assert "no step is evaluated for both runs" in session.messages()


async def test_an_unread_step_of_the_other_run_says_so(start: Start) -> None:
    def script(client: FakeClient) -> None:
        box(client)
        row = {"step": 20, "index": 0, "sample": 0, "question": "1+1", "completion": "2", "correct": True}
        client.files[f"eval_runs/{FINISHED}_addition/step_20_addition/completions.jsonl"] = jsonl([row])

    async with start(script, wait="87/200") as session:
        await compare(session, 2)
        await session.until_text("F: problem by problem")
        await session.press("F")
        await session.until_text("▲ not comparable", "completions of this step")
        assert "it has no completions of this step" in session.app.views.rollouts._message()


async def test_a_comparison_is_there_before_the_link(start: Start, tmp_path: Path) -> None:
    async with start(box, cache=tmp_path, wait="87/200") as session:
        screen = await compare(session, 2)
        await session.until(lambda: len(screen.paired.pairs) == 2, "the pairs")
        await session.until(lambda: screen.logged[1].rows, "the metrics")
        session.app._cache.flush()  # type: ignore[union-attr]

    def silent(client: FakeClient) -> None:
        client.quiet = True

    async with start(silent, cache=tmp_path, fresh=True) as session:
        await session.until_text(RUN, "run_2026-11-20_22")
        await session.press("space", "down", "space", "6")
        screen = session.app.views.compare
        await session.until(lambda: len(screen.paired.pairs) == 2, "the kept pairs")
        await session.until(lambda: all(run.curves.track for run in screen.comparison.runs), "the kept curves")
        await session.until_text("as it was", "ago", "B − A", "-.050", "last   A", "optimizer.learning_rate")
        assert not session.client.asked

        box(client := session.client)
        client.on_event(LinkChanged(Link.CONNECTED, latency_ms=9.0))
        client.report()
        await session.until(lambda: screen.comparison.recalled_at is None, "the box's own answers")
        await session.until(lambda: "as it was" not in session.text(), "no age")


async def test_all_steps_of_the_runs_are_saved(start: Start, downloads: Path) -> None:
    async with start(box, wait="87/200") as session:
        screen = await compare(session)
        await session.until(lambda: screen.drawn == ["reward", "grad_norm"])
        await session.press("E")
        await session.until(lambda: "saved 199 steps of 3 runs" in session.messages(), "the export")
    (file,), (picture,) = downloads.glob("*.csv"), downloads.glob("*.svg")
    assert {path.name for path in downloads.iterdir()} == {f"{file.stem}{kind}" for kind in (".csv", ".svg", ".png")}
    head, *lines = csv.reader(file.read_text().splitlines())
    assert head == ["run", "step", "num_tokens", "reward", "grad_norm"]
    assert [(line[0], int(line[1]), float(line[3])) for line in lines] == [
        (run, row["step"], row["reward"]) for run in STEPS for row in rows_of(run)
    ]
    drawn = ElementTree.parse(picture).getroot()
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {RUN, FINISHED, CRASHED, "reward", "grad_norm"} <= set(texts)
    assert texts.count("A") == 3, "the legend and the end of a line in each chart"
    dashed = [element for element in drawn.iter() if element.get("stroke-dasharray")]
    assert len({element.get("stroke") for element in dashed}) == 2
