"""Requests of the compare view. No Textual."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_tui.model.asking import ENGINE_S
from grpo_tui.views.compare.model import facts_of
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk
    from grpo_tui.model.metric_table import MetricTable
    from grpo_tui.views.compare.model import Compared, Comparison, PairedResults


async def refresh_curves(app: Desk, run: Compared, params: dict[str, Any]) -> None:
    """Request the curves of a compared run."""
    kept_under = run.curves.kept_under
    try:
        reply = await app.request("series", timeout=60.0, **params)
    except RemoteError as error:
        run.curves.fail(error.message)
        return
    run.curves.take(reply)
    app.kept.keep_curves(kept_under, reply)


async def refresh_facts(app: Desk, run: Compared) -> None:
    """Request the configuration and the evaluations of a compared run."""
    try:
        reply = await app.request("show_run", run=run.name)
    except RemoteError as error:
        run.asking.end("facts", error.message)
        return
    run.facts = await asyncio.to_thread(facts_of, run.name, reply)
    run.facts_recalled_at = None
    run.asking.end("facts")
    app.kept.keep("show_run", {"run": run.name}, reply)


def kept_under(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters under which the laptop keeps a comparison of evaluations."""
    return {name: params[name] for name in ("run", "others", "steps")}


def recall(app: Desk, comparison: Comparison, logged: tuple[str, MetricTable], paired: PairedResults) -> None:
    """Read what is kept of the compared runs, once, where the box has not answered."""
    if not app.kept.has_answers:
        return

    def once(name: str, of: object, show: Callable[[], Awaitable[None]]) -> None:
        if app.kept.is_wanted(name, of):
            app.work(f"kept {name}", show)

    for run in comparison.runs:
        if run.facts is None:
            once(f"facts of {run.name}", run, partial(recall_facts, app, run))
        curves = run.curves
        if not curves.curves and curves.metrics:
            of = (run, curves.window, curves.metrics)
            once(f"curves of {run.name}", of, partial(app.kept.show_curves, curves))
    if not logged[1].rows:
        once("metrics of the pinned run", logged[1], partial(recall_metrics, app, *logged))
    if not app.store.connected and (params := paired.wanted(comparison.pin, comparison.runs)) is not None:
        once("pairs", repr(params), partial(recall_pairs, app, paired, params))


async def recall_facts(app: Desk, run: Compared) -> None:
    """Show the configuration and evaluations that the laptop kept of a run."""
    kept = await app.kept.get("show_run", {"run": run.name})
    if kept is not None and run.facts is None:
        facts = await asyncio.to_thread(facts_of, run.name, kept.answer)
        if run.facts is None:
            run.facts, run.facts_recalled_at = facts, kept.at


async def recall_metrics(app: Desk, run: str, table: MetricTable) -> None:
    """Show the list of metrics that the laptop kept."""
    kept = await app.kept.get("metrics", {"run": run})
    if kept is not None and not table.rows:
        table.recall(kept.answer)


async def recall_pairs(app: Desk, paired: PairedResults, params: dict[str, Any]) -> None:
    """Show the paired comparison that the laptop kept."""
    kept = await app.kept.get("compare_evaluations", kept_under(params))
    if kept is not None:
        paired.recall(kept.answer)


async def refresh_pairs(app: Desk, paired: PairedResults, params: dict[str, Any]) -> None:
    """Request the paired comparison of evaluations."""
    try:
        reply = await app.request("compare_evaluations", timeout=ENGINE_S, **params)
        paired.answer(reply)
        app.kept.keep("compare_evaluations", kept_under(params), reply)
    except RemoteError as error:
        paired.fail(error.message)
