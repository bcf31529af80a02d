"""The report of the selected run, or of the marked ones, from the palette."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from grpo_train import run_dir
from grpo_tui.kit.save import guarded
from remote.protocol import RemoteError
from tests.tui.conftest import Start
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import RUN
from tests.tui.test_palette import find

FINISHED = "run_2026-11-20_22-10-41"


def reporting(client: FakeClient) -> None:
    learning_box(client).answers["report"] = lambda client, params: {"page": b"<html>" + str(params).encode()}


async def test_the_report_of_a_run_is_saved(start: Start, downloads: Path) -> None:
    async with start(reporting, wait="87/200") as session:
        await session.press("2")
        await find(session, "save a report", "report: Save a report")
        file = downloads / f"{RUN}.html"
        await session.until(file.exists, "the report")
        await session.until(lambda: "saved the report of run_gsm8k_demo" in session.messages())
        assert session.client.asked_for("report") == [{"runs": [RUN], "price": 2.49}]
        assert file.read_bytes().endswith(b"<html>{'runs': ['run_gsm8k_demo'], 'price': 2.49}")


async def test_the_marked_runs_are_reported(start: Start, downloads: Path) -> None:
    async with start(reporting, wait="87/200") as session:
        await session.press("space", "down", "space")
        await session.until(lambda: len(session.app.store.marks) == 2)
        await find(session, "save a report", "report: Save a report")
        await session.until((downloads / f"{RUN}_and_1_more.html").exists, "the report")
        assert session.client.asked_for("report")[0]["runs"] == [RUN, FINISHED]


async def test_a_refused_report_says_why(start: Start, downloads: Path) -> None:
    def refuse(client: FakeClient, params: Any) -> None:
        raise RemoteError("no_report", "the engine on this box is too old to make a report")

    def script(client: FakeClient) -> None:
        learning_box(client).answers["report"] = refuse

    async with start(script, wait="87/200") as session:
        await find(session, "save a report", "report: Save a report")
        await session.until(lambda: "too old to make a report" in session.messages())
        assert not list(downloads.iterdir())


def test_a_script_of_the_box_is_not_allowed() -> None:
    """The policy comes first, and has the hash of the report's own script only."""
    own = (Path(run_dir.__file__).parents[1] / "report" / "page.js").read_bytes()
    hashed = base64.b64encode(hashlib.sha256(own).digest()).decode()
    page = guarded(b"<!DOCTYPE html>\n<script>alert(1)</script>").decode()
    head, _, rest = page.partition("<script>")
    assert rest == "alert(1)</script>"
    assert head.count("script-src") == 1
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hashed}'; base-uri 'none'" in head
