"""Requests that the app sends by itself (doctor, shown run, curves), and how often views are updated. No Textual."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_tui.box.asking import CURSOR_S, ENGINE_S, REST_S, monotonic
from grpo_tui.box.fleet import OTHER_MACHINE, OTHER_MACHINE_HINT
from grpo_tui.box.formatting import one_line, short_age
from grpo_tui.box.rows import checkpoint_views
from grpo_tui.box.unanswered import OUTCOMES
from remote.events import Link
from remote.protocol import RemoteError
from remote.protocol.rows import UNREADABLE

if TYPE_CHECKING:
    from grpo_tui.box.curves import Curves
    from grpo_tui.box.log import LogFiles
    from grpo_tui.box.needs import Need, Needs
    from grpo_tui.box.run_facts import KnownFacts, Trends
    from grpo_tui.box.store import MetricTable
    from grpo_tui.history.writer import HistoryWriter
    from grpo_tui.kit.desk import Desk
    from remote.events import QuestionAsked

BEAT_S = 0.25
AWAKE = 4
"""Beats with an update after an input."""
REST = 4
"""Beats from one update to the next while nothing is new, for ages in seconds; and from one with news to the next: rows
that arrive faster are shown together."""


class Pulse:
    """Decides at each beat whether to update the views. News after a rest are shown at the next beat."""

    def __init__(self) -> None:
        self._awake = AWAKE
        self._has_news = False
        self._since_update = self._since_news = 0

    def wake(self) -> None:
        """The user did something."""
        self._awake = AWAKE

    def answered(self) -> None:
        """An answer arrived, which may lead to the next request."""
        self._awake = max(self._awake, 1)

    def news(self) -> None:
        """The box sent something."""
        self._has_news = True

    def beat(self) -> bool:
        """Whether to update the views now."""
        self._since_update += 1
        self._since_news += 1
        is_due = self._since_update >= REST or (self._has_news and self._since_news >= REST)
        if not self._awake and not is_due:
            return False
        if self._has_news:
            self._has_news, self._since_news = False, 0
        self._awake, self._since_update = max(0, self._awake - 1), 0
        return True


ShowStep = Callable[..., None]
"""Shows the row at the crosshair; see ``ChartsScreen.show_step``."""
OUTPUT_LINES = 6
REFRESH_S = 10.0
"""Interval between requests for the checkpoints of a live run, besides those after an event."""
MACHINE_S = 60.0
"""Interval between requests for uptime and disks, which the header shows; the box view requests them more often."""
RECORD_S = 3.0
"""Interval between two runs that the history asks about."""
LAUNCH_AGAIN_S = 3_600.0
"""An older launch is not repeated either: its user has moved on."""
AGAIN_S = 60.0


class Refresher:
    """Keeps what is shown of one box up to date."""

    def __init__(self, app: Desk, writer: HistoryWriter | None) -> None:
        self._app, self._writer = app, writer
        self._shown_key: object = None
        self._machine_due = 0.0
        self._record_due = monotonic() + RECORD_S
        self._stores_are_read = False

    def tick(self) -> None:
        """Request what is due."""
        if self._app.store.connected:
            self._refresh_shown()
            self._refresh_curves()
            if monotonic() >= self._machine_due:
                self._machine_due = monotonic() + MACHINE_S
                self._app.work("machine", partial(refresh_machine, self._app))
            self._refresh_history()
            if self._app.termination.due():
                self._app.work("safe to terminate", partial(refresh_termination, self._app))

    def _refresh_shown(self) -> None:
        """Request checkpoints and evaluations of the selected run after an event, and at intervals."""
        store = self._app.store
        row = store.run
        if row is None or store.link.state is Link.STALE:
            return
        events = store.logs.version["events"] if store.logs else 0
        sessions = tuple(store.sessions_of(row.name))
        interval = (
            REFRESH_S if row.is_live or sessions else REST_S
        )  # a run that is over may be evaluated from elsewhere
        key = (row.name, row.state, events, sessions, int(store.now() // interval))
        if key != self._shown_key:
            self._shown_key = key
            self._app.work("show run", partial(refresh_shown, self._app, row.name))

    def _refresh_history(self) -> None:
        """Request what the history lacks of runs that are over, one after the other."""
        writer = self._writer
        if writer is not None and writer.due and monotonic() >= self._record_due:
            self._record_due = math.inf
            self._app.work("history", partial(self._record, writer.due.popleft()))
        if writer is not None and not self._stores_are_read and self._app.view == "history":
            self._stores_are_read = True
            self._app.work("history of backups", partial(read_stores, self._app))

    async def _record(self, run: str) -> None:
        app = self._app
        try:
            app.kept.note("show_run", {"run": run}, await app.request("show_run", reply_s=30.0, run=run))
            app.kept.note("metrics", {"run": run}, await app.request("metrics", reply_s=120.0, run=run))
        except RemoteError:
            pass  # asked again when the app starts next
        finally:
            self._record_due = monotonic() + RECORD_S

    def _refresh_curves(self) -> None:
        """Request the curves of the view that is shown."""
        app, store = self._app, self._app.store
        curves = store.curves.get(app.view)
        if curves is None or store.logs is None:
            return
        curves.extend(store.logs)
        if (params := curves.due()) is not None:
            app.work(f"curves of {app.view}", partial(refresh_curves, app, curves, params))


async def read_stores(app: Desk) -> None:
    """Read the history of the destinations of the box's backups. One that cannot be read is named."""
    from grpo_tui.history.writer import WITHOUT_BACKUPS, StorePages

    problems: list[str] = []
    try:
        rows = (await app.request("list_destinations", reply_s=40.0))["destinations"]
    except RemoteError as error:
        rows = []
        problems += [] if error.code in WITHOUT_BACKUPS else [error.message]
    for name in (row["name"] for row in rows if UNREADABLE not in row):
        pages = StorePages(name)
        try:
            while (params := pages.params) is not None:
                page = await app.request("stored_history", reply_s=ENGINE_S, **params)
                app.kept.note("stored_history", params, page)
                pages.take(page)
        except RemoteError as error:
            pages.problems.append(f"{error.message}; {error.hint}" if error.hint else error.message)
        if pages.problems:
            more = f" and {len(pages.problems) - 1} more" if len(pages.problems) > 1 else ""
            problems.append(f"{name}: {pages.problems[0]}{more}")
    if problems:
        app.warn("\n".join(problems), title=f"backups of {app.store.box}: not all could be read")


async def examine_box(app: Desk) -> None:
    """Run the box's doctor, which names what is missing; before, say that another machine answers."""
    if app.store.is_other_machine:
        app.store.is_other_machine = False
        app.show_error(f"{app.store.box}: another machine", OTHER_MACHINE, OTHER_MACHINE_HINT)
    app.store.doctor.start("doctor")
    try:
        reply = await app.request("doctor", reply_s=60.0)
    except RemoteError as error:
        app.store.doctor.end("doctor", error.message)
        return
    app.store.doctor.end("doctor")
    app.store.examined(reply)


async def refresh_machine(app: Desk) -> None:
    """Request uptime and disks, unless another request for them was just answered."""
    now, history = app.store.now(), app.history
    if history.machine is None or now - history.machine_at >= MACHINE_S / 2:
        with suppress(RemoteError):  # the header shows what is known
            reply = await app.request("box_facts", reply_s=15.0)
            history.facts(reply, app.store.now())
            app.kept.note("box_facts", {}, reply)


async def refresh_termination(app: Desk, *, now: bool = False) -> None:
    """Request whether the box can be terminated; ``now``: the engine's answer of now, with all that forbids it."""
    termination = app.termination
    about = termination.about()
    termination.asking.start(about)
    try:
        termination.answer(about, await app.request("safe_to_terminate", reply_s=ENGINE_S, now=now))
    except RemoteError as error:
        termination.fail(about, error.message)


async def refresh_shown(app: Desk, run: str) -> None:
    """Request the checkpoints and evaluations of a run."""
    try:
        reply = await app.request("show_run", reply_s=15.0, run=run)
    except RemoteError:
        return  # the panels show the age of their data
    app.store.show(run, reply)
    app.kept.keep("show_run", {"run": run}, reply)


async def refresh_curves(app: Desk, curves: Curves, params: dict[str, Any]) -> None:
    """Request the curves of a view."""
    logs, kept_under = app.store.logs, curves.kept_under
    try:
        reply = await app.request("series", reply_s=60.0, **params)
    except RemoteError as error:
        curves.fail(error.message)
        return
    if logs is not None and logs.run == curves.run:
        curves.answer(reply, logs)
        app.tick_view()
        app.kept.keep_curves(kept_under, reply)


async def refresh_run_facts(app: Desk, facts: KnownFacts, params: dict[str, Any]) -> None:
    """Request configurations and last metrics of runs in the list."""
    try:
        reply = await app.request("run_facts", reply_s=30.0, **params)
        facts.answer(params, reply)
        app.kept.note("run_facts", params, reply)
    except RemoteError as error:
        facts.asking.end("facts", error.message)


async def refresh_trend(app: Desk, trends: Trends, params: dict[str, Any]) -> None:
    """Request the reward of a run in the list, in a few columns."""
    try:
        trends.answer(await app.request("series", reply_s=60.0, **params))
    except RemoteError:
        trends.fail()


async def ask_resume_step(app: Desk, needs: Needs, need: Need) -> None:
    """Request where a resume of a failed run continues."""
    with suppress(RemoteError):  # then it is not said
        views = checkpoint_views(need.run, await app.request("show_run", reply_s=15.0, run=need.run))
        needs.answered(need, views)


async def refresh_metrics(app: Desk, run: str, table: MetricTable) -> None:
    """Request the list of a run's metrics."""
    try:
        reply = await app.request("metrics", reply_s=60.0, run=run)
    except RemoteError as error:
        table.asking.end("metrics", error.message)
        return
    table.answer(reply)
    if reply["state"] == "whole":
        app.kept.keep("metrics", {"run": run}, reply)


async def refresh_log_files(app: Desk, listing: LogFiles) -> None:
    """Request the list of a run's files."""
    try:
        listing.answer(await app.request("log_files", run=listing.run))
    except RemoteError as error:
        listing.asking.end("files", error.message)
    finally:
        listing.asking.cancel("files")
    app.tick_view()


async def refresh_step(
    app: Desk,
    run: str,
    x: float | None,
    axis: str,
    metrics: tuple[str, ...],
    show: ShowStep,
    show_problems: Callable[[Mapping[str, Any] | None], None],
) -> None:
    """Request the row at the crosshair, then which of its problems changed."""
    if x is None:
        show(None)
        return
    await asyncio.sleep(CURSOR_S)  # a held key moves it on; this worker is cancelled then
    try:
        found = await app.request("show_step", reply_s=15.0, run=run, at=x, x=axis, metrics=list(metrics))
    except RemoteError as error:
        show(None, error.message)
        return
    show(found, asked=x)
    try:
        show_problems(await app.request("problem_changes", reply_s=15.0, run=run, step=round(found["step"])))
    except RemoteError:  # a run may log no completions
        show_problems(None)


async def answer_host_key(app: Desk) -> None:
    """Let the user accept or reject the host key of an unknown box."""
    from grpo_tui.kit.dialog import HostKeyScreen

    offered, client = app.store.host_key, app.connection.client
    if offered is None or client is None:
        return
    accepted = await app.show_dialog(HostKeyScreen(offered.host, offered.key_type, offered.fingerprint))
    client.answer_host_key(bool(accepted))


async def answer_question(app: Desk, question: QuestionAsked) -> None:
    """Let the user answer a question of ssh."""
    from grpo_tui.kit.dialog import QuestionScreen

    client, box = app.connection.client, app.store.box
    answer = await app.show_dialog(QuestionScreen(box, question))
    if client is not None and question.kind != "touch":
        client.answer_question(answer)


def withdraw_question(app: Desk) -> None:
    """Close the dialog of a question that ssh no longer waits for."""
    from grpo_tui.kit.dialog import QuestionScreen

    for screen in app.screen_stack:
        if isinstance(screen, QuestionScreen) and screen.question.kind == "touch":
            screen.dismiss(None)


async def ask_again(app: Desk) -> None:
    """Ask the box what became of its unanswered requests, and tell the user."""
    if app.options.readonly:
        return
    kept, connection = app.unanswered, app.connection
    for request in kept.of(connection.box):
        age = max(0.0, time.time() - request.time)
        recall = request.op != "launch" or age > LAUNCH_AGAIN_S
        ago = f"{short_age(age)} ago"
        kept.in_flight.add(request.key)
        try:
            reply = await asyncio.wrap_future(
                connection.request(request.op, AGAIN_S, **{**request.params, "recall": recall})
            )
        except RemoteError as error:
            if error.code in ("timeout", "unreachable"):
                return  # asked once more after the next reconnect
            message = "It did not reach the box" if error.code == "not_received" else error.message
            title = f"{request.op} of {request.target} was not carried out"
            app.warn(f"{message} (requested {ago})", title, run=request.target)
        else:
            run = str(reply.get("run") or request.target)
            if request.op == "launch":
                from grpo_tui.kit.desk import SelectRun

                app.post_message(SelectRun(run))
            app.receipt(OUTCOMES[request.op].format(run=run), f"requested {ago}; the answer had been lost", run=run)
        finally:
            kept.in_flight.discard(request.key)
        kept.forget(request.key)


async def last_output(app: Desk, session: str) -> str:
    """The last lines that a closed tmux session printed, as one line; "" if it printed nothing."""
    try:
        text = str((await app.request("capture_pane", session=session, lines=50)).get("text", ""))
    except RemoteError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[-1].startswith("Pane is dead"):  # printed by tmux itself
        lines.pop()
    return one_line(" ".join(lines[-OUTPUT_LINES:]))[-600:]


async def open_forwards(app: Desk) -> None:
    """Open the forwards of the box in boxes.yaml, once it is connected."""
    connection = app.connection
    if connection.box.forward and connection.client is not None:
        problems = await asyncio.to_thread(connection.tunnels.open_forwards, connection.client, connection.box)
        for problem in problems:
            app.warn(problem, title=f"boxes.yaml: {connection.box.name}")
