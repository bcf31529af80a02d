"""Saving what a view shows, or a report of runs, into the downloads folder of the laptop."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from grpo_train import run_dir
from grpo_tui import files
from grpo_tui.box.asking import ENGINE_S, SOON_S
from grpo_tui.box.export import cell_of, header_of, lines_of, pages, request_of, steps_between
from grpo_tui.box.formatting import byte_size, counted, one_line, percent
from grpo_tui.kit.svg import png_of
from remote.protocol import RemoteError
from remote.protocol.box import MAX_RUNS

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk


def reported(app: Desk) -> list[str]:
    """The marked runs on Home and in the comparison, else the selected one."""
    marked = [row.name for row in app.store.runs or () if row.name in app.store.marks]
    if marked and app.view in ("home", "compare"):
        return marked
    return [app.store.selected] if app.store.selected else []


def guarded(page: bytes) -> bytes:
    """The page with a policy of this machine before anything of the box: no other script than the report's own runs in
    the browser, and nothing is loaded from elsewhere."""
    own = Path(run_dir.__file__).parents[1] / "report" / "page.js"
    script = base64.b64encode(hashlib.sha256(own.read_bytes()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script}'; base-uri 'none'; "
        "form-action 'none'"
    )
    head = f'<!DOCTYPE html>\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    return head.encode() + page.removeprefix(b"<!DOCTYPE html>\n")


async def save_report(app: Desk) -> None:
    """Save the report as one HTML file in the downloads folder."""
    runs = reported(app)
    if not 1 <= len(runs) <= MAX_RUNS:
        app.warn(f"a report is of 1 to {MAX_RUNS} runs; {len(runs)} are marked" if runs else "no run selected")
        return
    what = runs[0] if len(runs) == 1 else f"{len(runs)} runs"
    app.receipt(f"the box makes the report of {what} …")
    try:
        reply = await app.request("report", reply_s=ENGINE_S, runs=runs, price=app.store.price_per_hour)
        file = files.new_file(f"{runs[0]}.html" if len(runs) == 1 else f"{runs[0]}_and_{len(runs) - 1}_more.html")
        file.write_bytes(guarded(reply["page"]))
    except RemoteError as error:
        app.warn(f"{error.message} {error.hint}", title="no report")
    except OSError as error:
        app.warn(f"{error.filename}: {error.strerror}", title="not saved")
    else:
        app.receipt(f"saved the report of {what}, {byte_size(len(reply['page']))}", str(file))


def start_report(app: Desk) -> None:
    """Save the report in the background."""
    app.work("report", partial(save_report, app))


@dataclass(frozen=True)
class SavedRange:
    """What to save of a run."""

    run: str
    metrics: tuple[str, ...]
    x: str
    low: float
    high: float
    """On the axis ``x``."""


async def save_charts(app: Desk, wanted: SavedRange, svg: str, say: Callable[[str], None]) -> None:
    """Save the CSV of a range at full resolution, and its charts as SVG and PNG. ``say`` shows how far it is; "" at the
    end."""
    try:
        first, last = await _steps(app, wanted)
        table = files.new_file(f"{wanted.run}_{first}-{last}.csv")
        rows = await _save_table(app, wanted, first, last, table, say)
        pictures = await asyncio.to_thread(_save_pictures, table, svg)
        app.receipt(f"saved {counted(rows, 'step')}", f"{table} and {pictures}")
    except RemoteError as error:
        app.warn(f"{error.message}; E tries again", "not saved")
    except (OSError, ValueError) as error:
        app.warn(one_line(str(error)), "not saved")
    finally:
        say("")


async def _steps(app: Desk, wanted: SavedRange) -> tuple[int, int]:
    """First and last step of a range on any axis."""
    if wanted.x == "step":
        return steps_between(wanted.low, wanted.high)
    ends = [
        await app.request("show_step", reply_s=15.0, run=wanted.run, at=at, x=wanted.x)
        for at in (wanted.low, wanted.high)
    ]
    first, last = sorted(round(end["step"]) for end in ends)
    return first, last


async def _save_table(
    app: Desk, wanted: SavedRange, first: int, last: int, file: Path, say: Callable[[str], None]
) -> int:
    """Write the CSV; returns its rows."""
    with _whole(file) as out:
        out.write(header_of(wanted.metrics))
        return await _write(app, wanted, first, last, "", out, say)


async def save_runs(app: Desk, ranges: Sequence[SavedRange], svg: str, say: Callable[[str], None]) -> None:
    """Save every step of several runs, with the same metrics, as one CSV, and their charts as SVG and PNG. The first
    column is the run."""
    try:
        file, rows = files.new_file(f"{ranges[0].run}_and_{len(ranges) - 1}_more.csv"), 0
        with _whole(file) as out:
            out.write(f"run,{header_of(ranges[0].metrics)}")
            for each in ranges:
                first, last = steps_between(each.low, each.high)
                rows += await _write(app, each, first, last, f"{cell_of(each.run)},", out, say)
        pictures = await asyncio.to_thread(_save_pictures, file, svg)
        app.receipt(f"saved {rows:,} steps of {len(ranges)} runs", f"{file} and {pictures}")
    except RemoteError as error:
        app.warn(f"{error.message}; E tries again", "not saved")
    except (OSError, ValueError) as error:
        app.warn(one_line(str(error)), "not saved")
    finally:
        say("")


def save_table(app: Desk, name: str, table: str, rows: int, what: str) -> None:
    """Save a CSV table, and say so. ``what``: one of its rows."""
    try:
        file = files.new_file(f"{name}.csv")
        with _whole(file) as out:
            out.write(table)
    except OSError as error:
        app.warn(one_line(str(error)), "not saved")
    else:
        app.receipt(f"saved {counted(rows, what)}", str(file))


def _save_pictures(table: Path, svg: str) -> str:
    """Write the charts beside their CSV; returns the names."""
    drawn, painted = table.with_suffix(".svg"), table.with_suffix(".png")
    drawn.write_text(svg, encoding="utf-8")
    if (picture := png_of(svg)) is None:
        return f"{drawn.name} (no PNG: no font is installed here)"
    painted.write_bytes(picture)
    return f"{drawn.name}, {painted.name}"


@contextmanager
def _whole(file: Path) -> Iterator[TextIO]:
    """A new file to write; nothing is left of one that is not whole."""
    part = file.with_name(f".{file.name}.part")
    try:
        with part.open("x", encoding="utf-8", newline="") as out:
            yield out
        part.rename(file)
    finally:
        part.unlink(missing_ok=True)


async def _write(
    app: Desk, wanted: SavedRange, first: int, last: int, prefix: str, out: TextIO, say: Callable[[str], None]
) -> int:
    """Write the lines of a run, a page at a time; returns their number."""
    rows = 0
    for start, end in pages(wanted.metrics, first, last):
        say(f"saving, {percent((start - first) / (last - first + 1))}")
        for line in lines_of(await _page(app, wanted, start, end, say), start):
            out.write(prefix + line)
            rows += 1
    return rows


async def _page(app: Desk, wanted: SavedRange, start: int, end: int, say: Callable[[str], None]) -> dict[str, Any]:
    """The reply for some steps, from the whole index."""
    while True:
        reply = await app.request("series", reply_s=60.0, **request_of(wanted.run, wanted.metrics, start, end))
        if reply["state"] == "whole":
            return reply
        say(f"waiting for the index, {percent(reply['progress'])}")
        await asyncio.sleep(SOON_S)
