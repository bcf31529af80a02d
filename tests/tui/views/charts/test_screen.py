"""The charts view: any metric, one range, one crosshair."""

from __future__ import annotations

import csv
import json
import re
import xml.etree.ElementTree as ElementTree
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any

import pytest

from grpo_tui.box.formatting import metric_value
from grpo_tui.kit.chart import CurveChart
from grpo_tui.views.charts.panels import MetricsPanel
from grpo_tui.views.charts.screen import ChartsScreen
from remote.boxes import Box
from tests.tui.conftest import Session, Start
from tests.tui.fake import DEFAULT_ANSWERS, FakeClient, learning_box
from tests.tui.fake_rows import LOGS, RUN, jsonl, train_rows


async def charts(session: Session) -> ChartsScreen:
    """Turn to the charts and wait for the curves."""
    await session.press("2")
    screen = session.app.views.charts
    await session.until(lambda: screen.curves and screen.curves.curves, "curves")
    await session.until_text("range: 1–87")
    return screen


def drawn(session: Session) -> list[str]:
    return [chart.metric for chart in session.app.views.charts.query(CurveChart) if chart.display]


async def test_the_row_at_the_crosshair_is_shown(start: Start) -> None:
    async with start(wait="87/200") as session:
        await charts(session)
        await session.press("left", "left", "left")
        await session.until_text("step 85", "groups: ", "entropy 0.")
        await session.until(lambda: re.search(r"▪ reward +(\d\.\d+) .*\1┼", session.text()), "the value on the curve")
        share = re.search(r"▪ fra\S+ +(\.\d+)", session.text())
        assert share
        assert re.search(rf"[^\d]{re.escape(share[1])}┼", session.text()), "as in the list"
        await session.press("y")
        assert json.loads(session.app.clipboard)["step"] == 85
        await session.press("H")
        await session.until_text("step 74")  # ten columns of 1.1 steps


async def test_the_range_is_zoomed_panned_and_followed(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await charts(session)
        await session.press("plus")
        await session.until_text("range: 22–66 ")
        await session.until(lambda: screen.curves and screen.curves.ends == (22.5, 65.5))
        await session.press("left_square_bracket")
        await session.until_text("range: 12–55 ")
        rows = train_rows(90)
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl(rows[87:]))
        await session.until_text("90/200")
        await session.until_text("range: 12–55 ")  # who has zoomed is not moved
        await session.press("f")
        await session.until_text("range: 47–90 (following)")
        await session.press("0")
        await session.until_text("range: 1–90 (all, following)")
        await session.press("plus", "minus")
        await session.until_text("(all, following)")


async def test_metrics_are_chosen(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await charts(session)
        before = drawn(session)
        assert before[0] == "reward"
        await session.press("space")  # the cursor is on the first one
        await session.until(lambda: drawn(session) == before[1:])
        panel = screen.query_one(MetricsPanel)
        await session.press("slash", *"~std$", "enter", "g")
        await session.until(lambda: panel.current == "frac_reward_zero_std")
        await session.press("j", "space")
        await session.until(lambda: drawn(session)[-1] == "reward_std")
        await session.press("less_than_sign")
        await session.until(lambda: drawn(session)[-2] == "reward_std")
        await session.press("slash", "end", "(")
        await session.until_text("\n     ^ invalid pattern: missing ), unterminated subpattern")
        assert [line.name for line in panel._lines if line.name][-1:] == ["frac_reward_zero_std"], "the last good list"
        await session.press("enter")
        assert session.app.screen.query_one("#mistake").display, "it stays open"
        await session.press("escape")
        await session.until_text("constant: 6 hidden")


async def test_the_cost_is_an_axis(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await charts(session)
        await session.press("x", "x")
        await session.until_text("x: cost", "range: $0.0021–$0.19", "$0.10", "$0.19 ")  # 87 steps of 3.1 s at $2.49/h
        await session.press("left")
        await session.until(lambda: re.search(r"copies · [\d:]+ · \$0\.19", session.text()), "the cost of the step")
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl(train_rows(90)[87:]))
        await session.until(lambda: screen.curves and screen.curves.last == pytest.approx(90 * 3.1))
        await session.press("x")
        await session.until_text("x: step")


async def test_a_slow_answer_is_waited_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[tuple[Future[dict[str, Any]], Future[dict[str, Any]]]] = []

    class Slow(FakeClient):
        def request(self, op: str, reply_s: float = 30.0, **params: Any) -> Future[dict[str, Any]]:
            answer = super().request(op, reply_s, **params)
            if op != "metrics":
                return answer
            held.append((Future(), answer))
            return held[-1][0]

    monkeypatch.setattr("tests.tui.conftest.FakeClient", Slow)
    async with start(wait="87/200") as session:
        await session.press("2")
        await session.until(lambda: held)
        await session.until(lambda: len(re.findall(r"asking the box \d+ s", session.text())) == 2, "list and chart")
        assert len(held) == 1, "not asked again, which would drop the request in flight"
        held[0][0].set_result(held[0][1].result())
        await session.until_text("▪ reward")
        await session.until(lambda: len(held) == 1)


async def test_without_a_price_there_is_no_cost(start: Start) -> None:
    async with start(wait="87/200", box=Box("h200-b", host="192.0.2.11")) as session:
        await charts(session)
        await session.press("x", "x")
        await session.until_text("x: step")


async def test_the_band_stays_behind_the_line(start: Start) -> None:
    """Of many values a column: no cell of the line is a hole in the band."""
    random = Random(1)
    rows = [{"step": step, "reward": random.random()} for step in range(1, 4_001)]

    def script(client: FakeClient) -> None:
        learning_box(client).files[f"{LOGS}/train_log.jsonl"] = jsonl(rows)

    async with start(script, wait="4000/200", paints=True) as session:
        await session.press("2")
        screen = session.app.views.charts
        chart = next(one for one in screen.query(CurveChart))
        await session.until(
            lambda: chart.metric == "reward" and chart.curve and chart.curve.count == len(rows) and chart._strips
        )
        band, line = (chart.get_component_rich_style(f"chart--{name}").color for name in ("raw", "line"))
        styles = [cell.style for strip in chart._strips for cell in strip if cell.style and cell.style.color == line]
        assert styles
        assert all(style.bgcolor == band for style in styles)


async def test_a_logarithmic_axis_says_that_values_are_left_out(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await charts(session)
        await session.until_text("grad_norm  last 0.211 → log ─")
        await session.press("down", "down")
        assert screen.metric == "loss"
        await session.press("equals_sign")
        await session.until_text("log, only values > 0 ─")


async def test_an_axis_is_clipped_and_says_so(start: Start) -> None:
    async with start(wait="87/200", paints=True) as session:
        screen = await charts(session)
        chart = next(one for one in screen.query(CurveChart) if one.metric == "grad_norm")
        await session.press("down", "equals_sign")
        await session.until(lambda: chart._view and chart._view.y_high > 1.5)
        await session.press("vertical_line")
        await session.until_text("1 point above")
        assert chart._view is not None
        assert chart._view.y_high < 1.5
        await session.press("vertical_line")
        await session.until(lambda: chart._view and chart._view.y_high > 1.5)
        await session.until(lambda: "above" not in session.text(), "the whole axis")


async def test_a_drag_selects_a_range(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await charts(session)
        chart = next(one for one in screen.query(CurveChart) if one.display)
        await session.pilot.mouse_down(chart, offset=(15, 4))
        await session.pilot.hover(chart, offset=(25, 4))
        assert chart.dragged is not None
        await session.pilot.mouse_up(chart, offset=(25, 4))
        await session.until(lambda: screen.curves and 20 < screen.curves.ends[1] - screen.curves.ends[0] < 25)
        assert screen.view.crosshair is None, "it is not a click"
        await session.press("0")
        await session.until_text("range: 1–87 (all, following)")


async def test_the_crosshair_follows_a_drag_with_the_right_button(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await charts(session)
        chart = next(one for one in screen.query(CurveChart) if one.display)
        await session.pilot.mouse_down(chart, offset=(15, 4), button=3)
        found = []
        for column in (20, 30):
            await session.pilot.hover(chart, offset=(column, 4))
            await session.until(lambda: screen.view.crosshair is not None and screen.view.crosshair not in found)
            found.append(screen.view.crosshair)
        await session.pilot.mouse_up(chart, offset=(30, 4))
        assert found[0] < found[1]
        await session.until_text("against the 10 before", "range: 1–87 (all")


async def test_the_configuration_is_below_the_charts(start: Start) -> None:
    async with start(wait="87/200") as session:
        await charts(session)
        await session.until_text("model.backbone tiny", "task.name addition", "run.total_steps 200")
        await session.press("slash", *"backbone", "enter")
        await session.until(lambda: "task.name addition" not in session.text(), "the filter")
        assert "model.backbone tiny" in session.text()
        await session.press("escape", "left")
        await session.until_text("step 87 against the 10 before", "groups: ")
        await session.press("i")
        await session.until_text("task.name addition")
        await session.press("escape", "left", "left")
        await session.until_text("step 86 against the 10 before", "groups: ")
        lines = session.text().splitlines()
        row = next(at for at, line in enumerate(lines) if "before · config" in line)
        await session.pilot.click(offset=(lines[row].index("config"), row))
        await session.until_text("task.name addition")


async def test_columns_and_rows_of_charts_are_chosen(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await charts(session)
        await session.press("w")
        await session.until_text("grid: 1 × 3", "3 shown")
        assert len(drawn(session)) == 3
        await session.press("v", "v", "w")
        await session.until_text("grid: 2 × 2", "4 shown")
        kept = screen.view.to_json()
        await session.press("w", "w", "v", "v", "v")
        await session.until(lambda: "grid:" not in session.text(), "as many as fit")
        assert len(drawn(session)) == 6
        screen.view.restore({**kept, "rows": "many"}, has_price=True)
        assert (screen.view.columns, screen.view.rows) == (2, 0)


async def test_the_row_at_the_crosshair_is_opened_as_logged(start: Start) -> None:
    async with start(wait="87/200") as session:
        await charts(session)
        await session.press("o")
        await session.until_text("no step is under the crosshair yet")
        await session.press("left", "left")
        await session.until_text("step 86 against")
        await session.press("o")
        await session.until(lambda: session.app.views.name == "logs")
        await session.until_text('"step": 86')


async def test_a_share_is_drawn_from_0_to_1(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await charts(session)
        for chart in screen.query(CurveChart):
            if chart.display and chart._view is not None:
                is_share = chart.metric in ("frac_reward_zero_std", "completions/clipped_ratio")
                assert ((chart._view.y_low, chart._view.y_high) == (0.0, 1.0)) is is_share, chart.metric


async def test_another_run_keeps_the_choice(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        other = client.runs[1]["run"]
        client.files[f"training_runs/{other}/logs/train_log.jsonl"] = jsonl(train_rows(40))

    async with start(script, wait="87/200") as session:
        await charts(session)
        await session.until_text("line: raw")
        await session.press("comma", "1", "down")
        await session.until(lambda: session.app.store.selected != RUN)
        await session.press("2")
        await session.until_text("line: strong", "range: 1–40")


async def test_a_box_that_refuses(start: Start) -> None:
    from remote.protocol import RemoteError

    def refuse(client: FakeClient, params: object) -> None:
        raise RemoteError("no_index", "no folder accepts the index")

    def script(client: FakeClient) -> None:
        learning_box(client).answers["series"] = refuse

    async with start(script, wait="87/200") as session:
        await session.until_text("no folder accepts the index")


async def test_the_charts_are_saved(start: Start, downloads: Path) -> None:
    async with start(wait="87/200") as session:
        screen = await charts(session)
        await session.press("plus")
        await session.until(lambda: screen.curves and screen.curves.ends == (22.5, 65.5))
        await session.press("E")
        table, picture = downloads / f"{RUN}_23-65.csv", downloads / f"{RUN}_23-65.svg"
        await session.until(picture.exists, "the files")
        await session.until_text("saved 43 steps")
        head, *lines = csv.reader(table.read_text().splitlines())
        assert head == ["step", *screen.drawn]
        rows = train_rows(87, nan_at=30)[22:65]
        assert [int(line[0]) for line in lines] == [row["step"] for row in rows]
        assert [float(line[1]) for line in lines] == [row[head[1]] for row in rows]
        assert "NaN" in lines[30 - 23]
        texts = [each.text for each in ElementTree.parse(picture).iter() if each.tag.endswith("text")]
        assert set(screen.drawn) <= set(texts)
        painted = table.with_suffix(".png")
        assert painted.read_bytes().startswith(b"\x89PNG")
        assert {path.name for path in downloads.iterdir()} == {table.name, picture.name, painted.name}


async def test_another_axis_saves_the_same_steps(start: Start, downloads: Path) -> None:
    async with start(wait="87/200") as session:
        screen = await charts(session)
        await session.press("x")
        await session.until(lambda: screen.curves and screen.curves.window.x == "time" and screen.curves.is_answered)
        await session.press("E")
        await session.until((downloads / f"{RUN}_1-87.svg").exists, "the files")
        head, *lines = csv.reader((downloads / f"{RUN}_1-87.csv").read_text().splitlines())
        assert head == ["step", *screen.drawn]
        assert len(lines) == 87


async def test_a_failed_export_leaves_nothing(start: Start, downloads: Path) -> None:
    from remote.protocol import RemoteError

    async with start(wait="87/200") as session:
        screen = await charts(session)

        def refuse(client: FakeClient, params: object) -> None:
            raise RemoteError("timeout", "the box does not answer")

        session.client.answers["series"] = refuse
        await session.press("E")
        await session.until_text("the box does not answer; E tries again")
        await session.until(lambda: not screen.saving)
        assert not list(downloads.iterdir())


async def test_an_export_waits_for_the_index(start: Start, downloads: Path) -> None:
    async with start(wait="87/200") as session:
        await charts(session)
        whole = DEFAULT_ANSWERS["series"]
        is_coarse = True

        def coarse(client: FakeClient, params: dict[str, Any]) -> Any:
            reply = whole(client, params)
            return {**reply, "state": "coarse", "progress": 0.34} if is_coarse else reply

        session.client.answers["series"] = coarse
        await session.press("E")
        await session.until_text("waiting for the index, 34 %")
        await session.press("E")
        await session.until_text("an export is in")
        assert not list(downloads.glob("*.csv"))
        is_coarse = False
        await session.until((downloads / f"{RUN}_1-87.svg").exists, "the files")


async def test_a_zoom_ends_with_the_run(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        other = client.runs[1]["run"]
        client.files[f"training_runs/{other}/logs/train_log.jsonl"] = jsonl(train_rows(40))

    async with start(script, wait="87/200") as session:
        screen = await charts(session)
        await session.until_text("range: 1–87")
        await session.press("left", "plus")
        await session.until(lambda: screen.view.window.low is not None)
        await session.press("1", "down")
        await session.until(lambda: session.app.store.selected != RUN)
        await session.press("2")
        await session.until_text("range: 1–40")
        assert screen.view.crosshair is None


async def test_the_list_has_the_values_at_the_crosshair(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await charts(session)
        await session.until_text("range: 1–87")
        screen.set_crosshair(41)
        value = metric_value(train_rows(87, nan_at=30)[40]["entropy"])
        await session.until_text("metrics at 41", value)


async def test_a_metric_that_is_no_longer_logged_has_its_step(start: Start) -> None:
    """What is constant has no chart, and is not counted."""

    def script(client: FakeClient) -> None:
        learning_box(client)
        rows = [{**row, "constant": 1.0, "early": row["step"] / 100} for row in train_rows(87)]
        for row in rows[41:]:
            del row["early"]
        client.files[f"{LOGS}/train_log.jsonl"] = jsonl(rows)

    async with start(script, wait="87/200", size=(200, 60)) as session:
        screen = await charts(session)
        await session.until(lambda: re.search(r" early +0\.41\d* @41", session.text()), "its last step")
        changing = sum(not row["constant"] for row in screen._logged.values())
        await session.until_text(f"{changing} metrics, {len(screen.drawn)} shown")
        await session.press("left", "left")
        await session.until(lambda: re.search(r" early +–", session.text()), "at the crosshair")


async def test_a_click_on_a_metric_shows_and_hides_it(start: Start) -> None:
    async with start(wait="87/200", paints=True) as session:
        screen = await charts(session)
        panel = screen.query_one(MetricsPanel)
        was_shown = "entropy" in screen.drawn
        for is_shown in (not was_shown, was_shown):
            place = next(index for index, line in enumerate(panel._lines) if line.name == "entropy")
            await session.pilot.click(panel, offset=(3, place + 1))
            await session.until(lambda is_shown=is_shown: ("entropy" in screen.drawn) == is_shown, "the chart")
        assert panel.current == "entropy"


async def test_names_that_read_alike_are_cut_at_their_ends(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        names = ("completions/mean_length", "completions/mean_terminated_length")
        rows = [{**row, **{name: row["step"] + place for place, name in enumerate(names)}} for row in train_rows(87)]
        client.files[f"{LOGS}/train_log.jsonl"] = jsonl(rows)

    async with start(script, wait="87/200") as session:
        await charts(session)
        panel = session.app.views.charts.query_one(MetricsPanel)
        await session.until(lambda: any(one.text == "mean_terminated_length" for one in panel._lines))
        short = {panel._short(name, 10) for name in ("mean_length", "mean_terminated_length")}
        assert short == {"mean_leng…", "mean_term…"}
        assert panel._short("reward_of_something", 10) == "rew…ething"


async def test_a_metric_that_is_shown_has_a_chart(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await charts(session)
        hidden = next(str(row["name"]) for row in session.app.store.metrics.rows if row["name"] not in screen.drawn)
        screen.action_toggle_metric(hidden)
        assert hidden in screen.drawn
        pushed_out = next(name for name in screen.view.shown if name not in screen.drawn)
        screen.action_toggle_metric(pushed_out)
        assert pushed_out in screen.drawn
        screen.action_toggle_metric(pushed_out)
        assert pushed_out not in screen.view.shown


async def test_pages_turn_through_all_metrics(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await charts(session)
        await session.until_text("page 1/", "(pgdn)")
        seen = set(screen.drawn)
        for page in range(2, screen.page_count + 1):
            await session.press("pagedown")
            await session.until_text(f"page {page}/")
            assert not seen & set(screen.drawn)
            seen |= set(screen.drawn)
        assert seen == {name for name, row in screen._logged.items() if not row["constant"]}
        await session.press("pagedown")
        await session.until_text(f"page {screen.page_count}/")
        await session.press(*["pageup"] * screen.page_count)
        await session.until(lambda: "reward" in screen.drawn)


async def test_a_filter_chooses_the_charts(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await charts(session)
        await session.press("pagedown", "slash", *"~std$", "enter")
        await session.until(lambda: screen.drawn and all(name.endswith("std") for name in screen.drawn))
        await session.press("slash", "escape")
        await session.until(lambda: "reward" in screen.drawn)
