"""The logs view: files of any size, lines by place, levels, searches, copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual import events

from grpo_tui.views.logs.lines import LogLinesPanel
from grpo_tui.views.logs.model.window import LogWindow
from grpo_tui.views.logs.panels import LogFilesPanel
from grpo_tui.views.logs.screen import LogsScreen
from remote.events import Link, LinkChanged
from remote.protocol import RemoteError
from tests.tui.conftest import Session, Start
from tests.tui.fake import FakeClient, ailing_box, learning_box
from tests.tui.fake_rows import LOGS, RUN, jsonl, train_rows

CONSOLE = f"{LOGS}/console.log"


def long_box(client: FakeClient, lines: int = 5_000) -> None:
    """A live run with a long console, warnings and errors."""
    learning_box(client)
    rows = [f"[{number}] step {number} of many" for number in range(1, lines + 1)]
    rows[999], rows[2_499], rows[3_999] = "UserWarning: slow", "ValueError: first", "ValueError: second"
    client.files[CONSOLE] = ("\n".join(rows) + "\n").encode()
    client.files[f"eval_runs/{RUN}_addition/status.json"] = jsonl([{"training_run": RUN, "state": "finished"}])
    client.files[f"eval_runs/{RUN}_addition/step_30/completions.jsonl"] = jsonl([{"completion": "a\nb", "reward": 2}])


def window(session: Session) -> LogWindow:
    found = session.app.views.logs.window
    assert found is not None
    return found


async def logs(session: Session, *texts: str) -> LogsScreen:
    """Turn to the logs and wait for the end of the console."""
    await session.press("4")
    await session.until_text(*(texts or ("line 5,000 of 5,000", "following")))
    return session.app.views.logs


async def test_the_end_is_followed_until_the_reader_moves(start: Start) -> None:
    async with start(long_box, wait="87/200") as session:
        await logs(session)
        session.client.append(CONSOLE, b"[5001] more\n")
        await session.until_text("[5001] more", "line 5,001 of 5,001")
        await session.press("up", "up")
        top = await session.until_text("line 4,999 of 5,001 ")
        session.client.append(CONSOLE, b"".join(b"[%d] new\n" % number for number in range(5_002, 5_216)))
        await session.until_text("paused, 214 new lines", "line 4,999 of 5,215")
        assert "[5001] more" in top
        assert "] new" not in session.text(), "who has scrolled is not moved"
        await session.press("f")
        await session.until_text("following", "[5215] new", "line 5,215")
        await session.press("f")
        await session.until_text("paused")
        await session.press("G")
        await session.until_text("following")


async def test_any_line_is_reached(start: Start) -> None:
    async with start(long_box, wait="87/200") as session:
        await logs(session)
        await session.press("number_sign", *"1,234", "enter")
        await session.until_text("line 1,234 of 5,000", "[1234] step 1234 of many", "paused")
        await session.press(*["j"] * 30)
        await session.until_text("line 1,264 of 5,000")
        await session.press("g")
        await session.until_text("[1] step 1 of many", "line 1 of 5,000")
        await session.press("pagedown", "pageup")
        await session.until_text("line 1 of 5,000")
        await session.press("number_sign", *"50 %", "enter")
        await session.until(lambda: abs((window(session).number or 0) - 2_510) < 90, "the middle")
        await session.press("number_sign", *"none", "enter")
        await session.until(lambda: "'none' is neither a line number" in session.messages())
        known = window(session)
        lines = session.app.views.logs.query_one(LogLinesPanel)
        for _ in range(160):  # faster than they are loaded
            lines.action_move(-10)
        await session.until(lambda: known.current is not None and known.current.offset == 0, "the first line")
        await session.pilot.click("#lines", offset=(20, 3))
        await session.until_text("line 3 of 5,000")


async def test_held_keys_lose_no_line(start: Start) -> None:
    async with start(long_box, wait="87/200") as session:
        await logs(session)
        for _ in range(300):  # no pause between them
            session.app.post_message(events.Key("k", "k"))
        await session.until_text("line 4,700 of 5,000")


async def test_warnings_of_health_are_named(start: Start) -> None:
    def script(client: FakeClient) -> None:
        ailing_box(client)
        client.files[CONSOLE] = b"step 1\nstep 2\n"

    async with start(script, wait="87/200") as session:
        await logs(session, "line 2 of 2")
        await session.press("o")
        await session.until_text("no warnings in this file; health has 1 warning: train_log.jsonl has it, 1 shows it")
        await session.press("o")
        await session.until_text("no errors in this file")


async def test_levels_are_counted_and_shown_alone(start: Start) -> None:
    async with start(long_box, wait="87/200") as session:
        screen = await logs(session)
        await session.until(lambda: (window(session).warnings, window(session).errors) == (1, 2), "counts")
        await session.until_text(f"warnings{1:>15}", f"errors{2:>17}")
        await session.press("o")
        await session.until_text("only warnings", "▲ UserWarning: slow")
        await session.press("o")
        await session.until_text("only errors", "✖ ValueError: first", "✖ ValueError: second")
        assert "step" not in session.text().partition("┏━ console.log")[2].partition("┃ ▌✖")[0]
        session.client.append(CONSOLE, b"ok\nTypeError: third\n")
        await session.until_text("TypeError: third", f"errors{3:>17}")
        await session.press("escape")
        await session.until(lambda: window(session).level == "" and window(session).is_answered)
        files = screen.query_one(LogFilesPanel)
        await session.press("left", "end", "enter")  # by the list
        await session.until_text("only errors")
        row = next(index for index in range(files.count) if files._rows[index].text == "everything")
        await session.pilot.click("#files", offset=(5, row + 1))
        await session.until(lambda: window(session).level == "")
        assert screen.query_one(LogLinesPanel).has_focus


async def test_a_name_takes_the_room_of_its_size(start: Start) -> None:
    async with start(long_box, size=(80, 24), wait="87/200") as session:
        await logs(session)
        text = session.text()
        assert "kB" in text.partition("▸console.log ")[2].partition("│")[0]
        assert " completions.jsonl " in text, "a name that would be cut"


async def test_search_finds_the_next_match(start: Start) -> None:
    async with start(long_box, wait="87/200") as session:
        await logs(session)
        await session.press("slash", *"valueerror", "enter")
        await session.until_text("match 2 of 2 (searched on the box:", "line 4,000 of 5,000")
        assert window(session).current.marks == ((0, 10),)  # type: ignore[union-attr]
        await session.press("N")
        await session.until_text("match 1 of 2", "line 2,500 of 5,000")
        assert "earlier match" not in session.messages()
        await session.press("N")
        await session.until(lambda: "no earlier match; n goes back" in session.messages())
        await session.press("n")
        await session.until_text("match 2 of 2", "line 4,000 of 5,000")
        session.client.append(CONSOLE, b"ValueError: third\n")
        await session.until_text("match 2 of 3")
        await session.press("n")
        await session.until_text("match 3 of 3")
        await session.press("slash", *"(a", "enter")
        await session.until_text("not a regular expression")
        await session.press("escape")
        await session.until(lambda: session.app.views.logs.view.search is None)  # type: ignore[union-attr]
        await session.press("n")
        await session.until(lambda: "/ searches" in session.messages())
        assert session.app.views.name == "logs"
        await session.press("number_sign", "3", "enter")
        await session.until_text("line 3 of ", "paused, 1 new line")
        session.client.append(CONSOLE, b"one\ntwo\n")
        await session.until_text("paused, 3 new lines")
        await session.press("escape")
        assert session.app.views.name == "home"


async def test_many_matches_are_loaded_as_they_are_stepped_through(start: Start) -> None:
    async with start(long_box, wait="87/200") as session:
        await logs(session)
        await session.press("g", "slash", *"0 of many", "enter")
        await session.until_text("match 1 of 497")
        for _ in range(249):
            session.app.post_message(events.Key("n", "n"))
        await session.until_text("match 250 of 497")
        assert len(session.client.asked_for("search_log")) < 60


async def test_a_row_is_shown_as_fields(start: Start) -> None:
    async with start(long_box, wait="87/200") as session:
        screen = await logs(session)
        await session.press("left", "down", "enter")
        await session.until_text("train_log.jsonl", "line 87 of 87", "step: 87", "reward_std: 0.")
        await session.press("enter")
        await session.until(lambda: screen.maximized is not None)
        await session.until_text("time/step: 3.1")
        await session.press("escape")
        await session.until(lambda: screen.maximized is None and screen.query_one(LogLinesPanel).has_focus)
        await session.press("left", *["down"] * 3, "enter")
        await session.until(lambda: window(session).path.endswith("status.json"), "a file of an evaluation")
        await session.press("left", "down", "enter")
        await session.until_text("completion: a", "            b ", "reward: 2")


async def test_a_long_line_is_cut_and_says_so(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        row = {"step": 1, "text": "x" * 1_000_000, "last": 5}
        client.files[CONSOLE] = b"first\n" + jsonl([row])

    async with start(script, wait="87/200") as session:
        await logs(session, "line 2 of 2", "the first 64 kB of 1.0 MB", "step: 1", "text: xxx")
        sizes = [params.get("characters", 2_000) for params in session.client.asked_for("read_log")]
        assert max(sizes) == 64_000
        await session.press("w")
        await session.until(lambda: session.text().count("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx ┃") > 12, "wrapped")


async def test_a_match_far_to_the_right_is_seen(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        client.files[CONSOLE] = b"a" * 500 + b" needle " + b"b" * 500 + b"\nlast\n"

    async with start(script, wait="87/200") as session:
        await logs(session, "line 2 of 2")
        await session.press("slash", *"needle", "enter")
        await session.until_text("…aaaa", "aaa needle bbb", "match 1 of 1")


async def test_lines_are_copied_and_files_saved(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("grpo_tui.files.folder", lambda: tmp_path)
    async with start(long_box, wait="87/200") as session:
        await logs(session)
        await session.press("y")
        await session.until(lambda: "copied: line 5,000 of console.log, 24 characters" in session.messages())
        assert session.app.clipboard == "[5000] step 5000 of many"
        await session.press("left", "y")
        await session.until(lambda: "copied: path of console.log" in session.messages())
        assert session.app.clipboard == f"/data/{CONSOLE}"
        await session.press("E")
        await session.until(lambda: "saved: console.log" in session.messages())
        assert (tmp_path / f"{RUN}-console.log").read_bytes() == session.client.files[CONSOLE]
        monkeypatch.setattr("grpo_tui.views.logs.screen.MAX_SAVED", 1_000)
        await session.press("E")
        await session.until(lambda: f"scp h200-a:/data/{CONSOLE} ." in session.messages())
        assert (tmp_path / f"{RUN}-console-2.log").read_bytes() == session.client.files[CONSOLE][-1_000:]


async def test_a_file_that_is_replaced_is_read_again(start: Start) -> None:
    async with start(long_box, wait="87/200") as session:
        await logs(session)
        session.client.files[CONSOLE] = b"fresh\n"
        await session.until_text("the file was replaced or truncated", "fresh", "line 1 of 1")


async def test_a_refusal_leaves_the_rest_alive(start: Start) -> None:
    def script(client: FakeClient) -> None:
        long_box(client)

        def refuse(client: FakeClient, params: dict[str, Any]) -> None:
            raise RemoteError("io", "the disk does not answer")

        client.answers["read_log"] = refuse

    async with start(script, wait="87/200") as session:
        await logs(session, "the disk does not answer", "train_log.jsonl")
        del session.client.answers["read_log"]
        await session.until_text("line 5,000 of 5,000")
        session.client.on_event(LinkChanged(Link.LOST, "gone"))
        await session.until_text("link lost 0 s ago; these lines may be out of date", "line 5,000 of 5,000")


async def test_a_run_without_files(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("down")
        await session.until(lambda: session.app.store.selected != RUN)
        session.client.answers["log_files"] = {"run": "x", "files": [], "left_off": 0}
        await logs(session, "this run has no files yet")
        panel = session.app.views.logs.query_one(LogLinesPanel)
        view = panel._view()
        assert view is not None
        view.listing.asking.is_answered = False  # as before the answer, which may come after the first picture
        await session.until(lambda: panel.render_line(0).text.startswith("asking the box"), "the words")
        painted = panel.state()
        view.listing.asking.is_answered = True
        assert panel.state() != painted, "the answer is painted"
        await session.until_text("this run has no files yet")


async def test_each_run_keeps_its_place(start: Start) -> None:
    async with start(long_box, wait="87/200") as session:
        await logs(session)
        await session.press("number_sign", *"77", "enter")
        await session.until_text("line 77 of 5,000")
        await session.press("1", "down")
        await session.until(lambda: session.app.store.selected != RUN)
        await session.press("up")
        await session.until(lambda: session.app.store.selected == RUN)
        await session.press("4")
        await session.until_text("line 77 of 5,000", "[77] step 77 of many")


async def test_a_small_terminal_shows_the_lines(start: Start) -> None:
    async with start(long_box, size=(60, 15), wait="87/200") as session:
        screen = await logs(session, "5,000", "[5000] step 5000 of many")
        assert not screen.query_one("#whole").display
        assert screen.query_one(LogLinesPanel).size.height >= 5


async def test_actions_are_in_the_palette(start: Start) -> None:
    async with start(long_box, wait="87/200") as session:
        await logs(session)
        await session.press("colon", *"only errors")
        await session.until_text("level: Show every line, only warnings, or only errors")
        await session.press("enter")
        await session.until_text("only warnings")


async def test_training_rows_grow_live(start: Start) -> None:
    async with start(long_box, wait="87/200") as session:
        await logs(session)
        await session.press("left", "down", "enter")
        await session.until_text("line 87 of 87")
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl(train_rows(90)[87:]))
        await session.until_text("line 90 of 90", "step: 90")
