"""The rollouts view: from the steps to the samples, by key, palette and mouse."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from grpo_tui.views.rollouts.page import SamplePanel
from grpo_tui.views.rollouts.screen import RolloutsScreen
from remote.events import Link, LinkChanged
from remote.protocol import RemoteError
from tests.tui.conftest import Session, Start
from tests.tui.fake import FakeClient, evaluated_box, learning_box, token_box
from tests.tui.fake_rows import LOGS, RUN, jsonl, rollout_rows, token_lines

LOG = f"{LOGS}/rollouts.jsonl"


async def rollouts(session: Session) -> RolloutsScreen:
    """Turn to the rollouts and wait for a sample."""
    await session.press("3")
    screen = session.app.views.rollouts
    await session.until(
        lambda: screen.reader and screen.reader.shown and screen.reader.rollouts.text(screen.reader.shown[0])
    )
    return screen


def focused(session: Session) -> str | None:
    return session.app.screen.focused.id if session.app.screen.focused else None


def at(screen: RolloutsScreen) -> tuple[int | None, int | None, int | None]:
    """Step, group and sample under the cursor."""
    reader = screen.reader
    assert reader is not None
    group, sample = reader.group, reader.sample
    return reader.step, group.number if group else None, sample["sample"] if sample else None


async def test_from_the_step_to_the_sample(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await rollouts(session)
        text = await session.until_text("step 87", "8 samples", "think", "answer", "expected")
        assert "follows" not in text
        await session.press("j")
        await session.until(lambda: at(screen)[0] == 86, "the step before")
        await session.press("enter", "j")
        await session.until(lambda: focused(session) == "groups" and screen.reader and screen.reader.group)
        group = at(screen)[1]
        await session.press("l", "G")
        await session.until(lambda: at(screen) == (86, group, 3), "the last sample")
        await session.press("enter", "left")
        assert focused(session) == "sample"
        await session.until(lambda: at(screen) == (86, group, 2), "the sample before")
        await session.press("escape", "escape", "escape")
        assert focused(session) == "steps"
        await session.press("escape")
        assert session.app.views.name == "home"


@pytest.mark.parametrize(
    ("state", "said"), [("stopped", "no completions were logged"), ("running", "no completions yet")]
)
async def test_a_run_without_completions_says_so(start: Start, state: str, said: str) -> None:
    """At a size without room for the text of a sample, too."""

    def script(client: FakeClient) -> None:
        learning_box(client)
        client.runs = [{**client.runs[0], "state": state}]
        del client.files[LOG]

    async with start(script, size=(80, 24), wait="87/200") as session:
        await session.press("3")
        await session.until_text(said)


async def test_only_what_is_shown_travels(start: Start) -> None:
    async with start(wait="87/200") as session:
        await rollouts(session)
        texts = [params for params in session.client.asked_for("samples") if params["characters"]]
        assert [len(params["offsets"]) for params in texts] == [1]
        assert len(session.client.asked_for("rollout_step")) == 1


async def test_a_crosshair_opens_its_step(start: Start) -> None:
    async with start(wait="87/200") as session:
        charts = session.app.views.charts
        await session.press("2")
        await session.until_text("range: 1–87")
        await session.press("left", "left", "left", "left")
        await session.until(lambda: charts.view.crosshair == 84)
        await session.press("enter")
        screen = session.app.views.rollouts
        await session.until(lambda: screen.reader and at(screen)[0] == 84 and screen.reader.group)
        await session.until(lambda: focused(session) == "groups")
        await session.press("enter", "escape", "escape")
        await session.until(lambda: session.app.views.name == "charts")
        assert charts.view.crosshair == 84
        await session.press("enter")
        await session.until(lambda: session.app.views.name == "rollouts")
        await session.press("2")
        assert charts.view.crosshair == 84


async def test_two_samples_against_each_other(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        ends = ("so 2", "so 3")
        rows = [{**rollout_rows(1)[i], "completion": f"One and one, {end}", "reward": i} for i, end in enumerate(ends)]
        client.files[LOG] = jsonl(rows)

    async with start(script, wait="87/200") as session:
        screen = await rollouts(session)
        await session.press("l", "l", "space", "j", "d")
        text = await session.until_text("sample 1 beside sample 0", "same beginning: 16 characters")
        assert text.count("reward") >= 3
        await session.press("escape")
        await session.until(lambda: screen.reader and not screen.reader.is_beside)
        await session.press("space")
        await session.until_text("1 marked (*)")


async def test_groups_are_sorted(start: Start) -> None:
    async with start(wait="87/200") as session:
        await rollouts(session)
        for key, label in (("o", "mean ↑"), ("O", "mean ↓"), ("o", "length ↓"), ("o", "log order")):
            await session.press(key)
            await session.until_text(f"groups by {label}")


async def test_a_filter_of_the_step(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await rollouts(session)
        await session.press("slash", *"wrong")
        await session.until_text(" of 8 samples", "of 2 groups" if len(_groups(screen)) < 2 else "2 groups")
        wrong = [row for row in rollout_rows(87) if row["reward"] == 0.0]
        assert screen.search is not None
        await session.until(lambda: screen.search and screen.search.is_done)
        await session.press(*" text~(")
        await session.until_text("^ a value with a parenthesis needs quotes")
        assert screen.choices.filter == "wrong text"
        assert wrong is not None
        await session.press(*["backspace"] * len(" text~("), *" bogus>3")
        text = await session.until_text("unknown field; known: ")
        above, below = text[: text.index("unknown field")].splitlines()[-2:]
        assert below.rstrip() == " " * above.index("bogus") + "^"
        (line,) = [line for line in text.splitlines() if "unknown field" in line]
        assert line.endswith("…")
        assert len(line) == 120


async def test_a_closed_filter_leaves_the_keys_to_what_it_found(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await rollouts(session)
        await session.press("slash", *"wrong", "enter")
        await session.until(lambda: screen.query_one("#groups").has_focus, "the groups")
        await session.press("slash", "escape")
        await session.until(lambda: screen.query_one("#steps").has_focus, "the steps")


async def test_discarded_groups_are_marked(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        rows = rollout_rows(1)
        left = [{**row, "group": 9, "reward": 1.0, "discarded": "no_spread"} for row in rows[:4]]
        client.files[LOG] = jsonl([*rows, *left])

    async with start(script, wait="87/200") as session:
        screen = await rollouts(session)
        await session.until_text("12 samples, 4 discarded", "3 groups, 1 discarded (×)", "× ")
        await session.press("l", "G")
        await session.until(lambda: at(screen)[1] == 9, "the discarded group is last")
        await session.until_text("── discarded ")
        await session.press("slash", *"kept")
        await session.until_text("8 of 12 samples, 4 discarded", "2 of 3 groups")


def _groups(screen: RolloutsScreen) -> list[Any]:
    return screen.reader.groups if screen.reader else []


async def test_the_whole_file_is_searched(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        rows = [row for step in range(1, 60) for row in rollout_rows(step)]
        rows[3]["completion"] += " Eureka"
        rows[200]["completion"] += " eureka"
        client.files[LOG] = jsonl(rows)

    async with start(script, wait="87/200") as session:
        screen = await rollouts(session)
        await session.press("ctrl+f")
        await session.until(lambda: session.app.screen.query_one("#filter", Input).has_focus)
        await session.press(*"eureka", "enter")
        await session.until_text("2 matches", "in the whole file")
        await session.press("n")
        await session.until(lambda: at(screen) == (26, 0, 0), "the newest match")
        await session.press("n")
        await session.until(lambda: at(screen) == (1, 0, 3), "the next one")
        await session.press("n", "N")
        await session.until(lambda: at(screen) == (26, 0, 0), "back")
        assert "no further match in the file" in session.messages()
        await session.press("escape")
        await session.until_text("59 indexed")


async def test_any_step_by_its_number(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await rollouts(session)
        await session.press("number_sign", *"81", "enter")
        await session.until(lambda: at(screen)[0] == 81 and _groups(screen))
        await session.press("number_sign", *"1", "escape")
        await session.press("number_sign", *"5,000", "enter")
        await session.until_text("the last one with completions at 5,000")
        assert at(screen)[0] == 87
        await session.press("colon", *"step 82")
        await session.until_text("its completions")
        await session.press("enter")
        await session.until(lambda: at(screen)[0] == 82 and session.app.views.name == "rollouts")


async def test_new_steps_are_followed(start: Start) -> None:
    def more(session: Session, step: int) -> None:
        session.client.append(LOG, jsonl(rollout_rows(step)))
        screen = session.app.views.rollouts
        assert screen.reader is not None
        screen.reader.rollouts.steps.invalidate()  # the pause between two requests is over

    async with start(wait="87/200") as session:
        screen = await rollouts(session)
        await session.until_text("step 87 (following)")
        more(session, 88)
        await session.until(lambda: at(screen)[0] == 88, "the new step")
        await session.press("l", "j")
        more(session, 89)
        await session.until(lambda: screen.reader and screen.reader.rollouts.steps.last == 89)
        assert at(screen)[0] == 88, "who reads is not moved"
        await session.press("f")
        await session.until(lambda: at(screen)[0] == 89)


async def test_lines_are_wrapped_or_cut(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await rollouts(session)
        await session.press("w")
        await session.until(lambda: not screen.choices.wraps)
        await session.press("p")
        await session.until(lambda: screen.choices.whole_prompt)
        await session.press("l", "z")
        await session.until(lambda: screen.maximized is not None and screen.maximized.id == "groups")
        await session.press("escape")
        await session.until(lambda: screen.maximized is None)


async def test_a_sample_is_copied(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start(wait="87/200") as session:
        screen = await rollouts(session)
        copied: list[tuple[str, str]] = []
        monkeypatch.setattr(session.app, "copy", lambda text, what: copied.append((text, what)))
        await session.press("y")
        await session.until(lambda: copied)
        row = next(row for row in rollout_rows(87) if (row["group"], row["sample"]) == at(screen)[1:])
        assert copied == [(row["prompt"] + row["completion"], f"sample {row['sample']} of step 87")]


async def test_the_mouse_chooses(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await rollouts(session)
        await session.pilot.click("#steps", offset=(5, 4))  # frame, heading, 87, 86
        await session.until(lambda: at(screen)[0] == 85)
        panel = screen.query_one("#samples")
        await session.until(lambda: _groups(screen) and panel.region.height == 7, "its four samples")
        await session.pilot.click("#samples", offset=(5, 4))
        await session.until(lambda: at(screen)[2] == 2)


async def test_a_box_that_refuses(start: Start) -> None:
    def refuse(client: FakeClient, params: object) -> None:
        raise RemoteError("no_index", "no folder accepts the index")

    def script(client: FakeClient) -> None:
        learning_box(client).answers["rollout_step"] = refuse

    async with start(script, wait="87/200") as session:
        await session.press("3")
        await session.until_text("were not", "no folder accepts the index", "9 indexed")


async def test_the_tasks_of_a_mixture(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        rows = [
            {"step": 3, "group": group, "task": task, "sample": 0, "reward": 1.0, "prompt": "p", "completion": task * 2}
            for group, task in enumerate(("sums", "comparison"))
        ]
        client.files[LOG] = jsonl(rows)

    async with start(script, wait="87/200") as session:
        await rollouts(session)
        await session.until_text("task sums")
        await session.press("slash", *"task:compar", "enter")
        await session.until_text("task comparison")


async def test_a_hostile_log(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        evil = {
            "step": 3, "group": 0, "sample": 0, "reward": "NaN", "advantage": 1e300, "length": 2**31,
            "prompt": "[bold]x[/] \x1b[31m" + "界" * 300,
            "completion": "[@click=app.quit]\t<think>" + "\u202e\x07a\n" * 99,
            "rewards": {"[red]": 1.0}, "facts": {"[/]": ["x"]}, "reason": "[/nope]", "answer": "[/]", "gold": "\n[b]",
        }  # fmt: skip
        client.files[LOG] = jsonl([evil, {**evil, "sample": 1, "group": None}]) + b"\xff{\n" + b"[]\n"

    async with start(script, size=(80, 24), wait="87/200") as session:
        await session.press("3")
        await session.until_text("1; 2 unreadable")
        await session.press("l", "l", "l")
        text = await session.until_text("[@click=app.quit]", "[/nope]")
        assert "\x1b" not in text
        assert "\x07" not in text


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (200, 60)])
async def test_every_size(start: Start, size: tuple[int, int]) -> None:
    async with start(size=size, wait="87/200") as session:
        screen = await rollouts(session)
        await session.press("enter", "enter", "d")
        await session.until_text("beside")
        shown = [screen.query_one(f"#{name}") for name in ("groups", "samples", "sample")]
        assert all(panel.size.height >= 1 and panel.size.width >= 20 for panel in shown)
        await session.pilot.resize_terminal(120, 40)
        await session.until_text("rewards of the step")


async def test_another_run_has_its_own_place(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        other = client.runs[1]["run"]
        client.files[f"training_runs/{other}/logs/rollouts.jsonl"] = jsonl(rollout_rows(7))

    async with start(script, wait="87/200") as session:
        screen = await rollouts(session)
        await session.press("j", "j")
        await session.until(lambda: at(screen)[0] == 85)
        await session.press("1", "down")
        await session.until(lambda: session.app.store.selected != RUN)
        await session.press("3")
        await session.until(lambda: screen.reader and at(screen)[0] == 7)
        await session.press("1", "up")
        await session.until(lambda: session.app.store.selected == RUN)
        await session.press("3")
        await session.until(lambda: screen.reader and at(screen)[0] == 85)


async def test_a_lost_link_keeps_what_is_known(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await rollouts(session)
        session.client.on_event(LinkChanged(Link.LOST, "broken pipe", retry_in_s=30.0))
        await session.until(lambda: not session.app.store.connected)
        await session.until(lambda: session.text().count("link lost") == 2, "the header and the line")
        await session.until_text("think", "expected")
        # What was due before the link was lost goes out: the lengths of the group's other samples.
        await session.until(lambda: session.client.asked_for("samples")[-1]["characters"] == 0)
        asked = len(session.client.asked)
        await session.press("j")
        await session.until_text("not connected to the box")
        assert at(screen)[0] == 86
        assert session.client.asked[asked:] == []
        session.client.on_event(LinkChanged(Link.CONNECTED, latency_ms=12.0))
        await session.until(lambda: _groups(screen), "the samples")


async def test_samples_are_saved(start: Start, downloads: Path) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        graded = {"reason": "=1+1", "answer": "7", "rewards": {"accuracy": 2, "format": 0.5}}
        rows = [{**row, **graded, "sample": place} for place, row in enumerate(rollout_rows(5, 40))]
        client.files[LOG] = jsonl(rollout_rows(4) + rows)

    async with start(script, wait="87/200") as session:
        screen = await rollouts(session)
        await session.press("E")
        await session.until((downloads / f"{RUN}_step_5.csv").exists, "the file")
        table = (downloads / f"{RUN}_step_5.csv").read_text().splitlines()
        assert table[0].startswith("step,group,sample,reward")
        assert table[0].endswith(",reason,answer,gold,task,role,rewards/accuracy,rewards/format")
        assert len(table) == 41
        golds = {row["sample"]: row["gold"] for row in csv.DictReader(table)}
        assert golds == {str(place): row["gold"] for place, row in enumerate(rollout_rows(5, 40))}
        assert all(line.startswith("5,") and line.endswith(",,,2.0,0.5") and ",'=1+1,7," in line for line in table[1:])
        await session.press("slash", *"reward=2", "enter", "ctrl+f")
        await session.until(lambda: screen.search and screen.search.step is None and screen.search.is_done)
        await session.press("E")
        await session.until((downloads / f"{RUN}_matches.csv").exists, "the file")
        right = [row for row in rollout_rows(5, 40) + rollout_rows(4) if row["reward"] == 2.0]
        assert len((downloads / f"{RUN}_matches.csv").read_text().splitlines()) == 1 + len(right)


# tokens --------------------------------------------------------------------------------------------------------------


async def test_tokens_are_colored_and_have_a_cursor(start: Start) -> None:
    async with start(token_box, wait="87/200", paints=True) as session:
        screen = await rollouts(session)
        await session.press("t")
        await session.until_text("probability  ≥.9", "token 1 of", "‘<think>’", "log p -0.00058", "not clipped")
        assert focused(session) == "sample"
        await session.press("right")
        await session.until_text("token 2 of", "clipped: ratio too low", "entropy")
        reader = screen.reader
        assert reader is not None
        assert reader.tokens is not None
        last = len(reader.tokens.tokens)
        await session.press(*["ctrl+right"] * 5)
        await session.until_text(f"token {last} of {last}", "end of the completion", "∎")
        await session.press("left")
        await session.until_text(f"token {last - 1} of {last}", "‘</answer>’")
        for title in ("entropy  <.1", "ratio  <.5", "clipped  kept"):
            await session.press("t")
            await session.until_text(title, f"token {last - 1} of {last}")
        sample = at(screen)
        await session.press("t")
        await session.until_text("think", "answer", "expected")
        assert reader.tokens is None
        await session.press("right")
        await session.until(lambda: at(screen) != sample, "without colors, another sample")


async def test_a_click_and_scrolling_find_a_token(start: Start) -> None:
    async with start(token_box, wait="87/200", size=(80, 24), paints=True) as session:
        screen = await rollouts(session)
        await session.press("l", "l", "l", "t", "w")
        await session.until_text("token 1 of")
        panel = screen.query_one(SamplePanel)
        reader = screen.reader
        assert reader is not None
        await session.press(*["ctrl+right"] * 5)
        await session.until_text("end of the completion")
        line = panel.source.line_of_token(reader.token)  # type: ignore[attr-defined]
        top = round(panel.scroll_offset.y)
        assert top <= line < top + panel.scrollable_content_region.height - panel.foot
        assert "reverse" in {str(span.style) for span in panel.source.line(line, panel.text_width, panel.palette).spans}
        await session.pilot.click(panel, offset=(2, 1 + line - top))
        await session.until(lambda: reader.tokens and reader.token < len(reader.tokens.tokens) - 1)
        assert panel.source.line_of_token(reader.token) == line  # type: ignore[attr-defined]


async def test_two_samples_with_tokens(start: Start) -> None:
    async with start(token_box, wait="87/200", size=(200, 60), paints=True) as session:
        screen = await rollouts(session)
        await session.press("l", "l", "space", "j", "d", "t")
        await session.until_text("beside", "token 1 of", "↵")
        await session.press("right")
        await session.until_text("token 2 of")
        assert screen.reader is not None
        assert screen.reader.is_beside


async def test_missing_values_have_a_reason(start: Start) -> None:
    """A completion without a gradient, one whose tokens are logged later, one of which none are, an evaluation's."""
    later = jsonl(token_lines(rollout_rows(86)))

    def script(client: FakeClient) -> None:
        evaluated_box(client)
        token_box(client)

    async with start(script, wait="87/200", paints=True) as session:
        screen = await rollouts(session)
        await session.press("l", "l", "G", "t")
        await session.until_text("entropy and ratio – (no gradient)", "log p")
        await session.press("t")
        await session.until_text("not known")
        await session.press("h", "h", "h", "j")
        await session.until(lambda: at(screen)[0] == 86)
        await session.until_text("no token values: each update keeps")
        session.client.files[f"{LOGS}/tokens.jsonl"] = later
        await session.press("t")
        await session.until_text("ratio  <.5", "token 1 of")
        await session.until(lambda: session.app.store.shown_at is not None)
        await session.press("v")
        await session.until_text("an evaluation keeps no token values")


async def test_wrong_problems_come_first(start: Start) -> None:
    async with start(evaluated_box, wait="87/200") as session:
        screen = await rollouts(session)
        await session.until(lambda: session.app.store.shown_at is not None)
        await session.press("v")
        await session.until_text("problems wrong first", "1 wrong · 4 problems")
        await session.until(lambda: at(screen)[1] == 2, "the wrong one")
        await session.press("O")
        await session.until_text("problems right first")
        await session.press("F")
        await session.until_text("1 lost, 1 gained · 1 of 4 problems")
