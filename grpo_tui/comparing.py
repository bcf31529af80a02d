"""Requests of the compare view. No Textual."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from grpo_tui.model.compare_facts import facts_of
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from grpo_tui.app import GrpoApp
    from grpo_tui.model.compare import Compared
    from grpo_tui.model.curves import MetricTable
    from grpo_tui.model.paired import PairedResults

PAIRS_S = 120.0
"""The engine is started on the box, and reads every completion of the compared steps."""


async def refresh_curves(app: GrpoApp, run: Compared, params: dict[str, Any]) -> None:
    """Request the curves of a compared run."""
    try:
        run.curves.take(await app.request("series", timeout=60.0, **params))
    except RemoteError as error:
        run.curves.fail(error.message)


async def refresh_facts(app: GrpoApp, run: Compared) -> None:
    """Request the configuration and the evaluations of a compared run."""
    try:
        reply = await app.request("show_run", run=run.name)
        run.facts = await asyncio.to_thread(facts_of, run.name, reply)
        run.facts_problem = ""
    except RemoteError as error:
        run.facts_problem = error.message


async def refresh_metrics(app: GrpoApp, run: str, table: MetricTable) -> None:
    """Request the list of a run's metrics."""
    with suppress(RemoteError):  # the usual metrics are shown
        table.answer(await app.request("metrics", timeout=60.0, run=run))


async def refresh_pairs(app: GrpoApp, paired: PairedResults, params: dict[str, Any]) -> None:
    """Request the paired comparison of evaluations."""
    try:
        paired.answer(await app.request("compare_evaluations", timeout=PAIRS_S, **params))
    except RemoteError as error:
        paired.fail(error.message)
