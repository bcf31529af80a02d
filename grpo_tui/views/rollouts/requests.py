"""Requests of the rollouts view, and saving samples."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_tui.export import save_table
from grpo_tui.model.asking import CURSOR_S
from grpo_tui.model.formatting import percent
from grpo_tui.views.rollouts.model.samples import sample_table
from remote.protocol import RemoteError
from remote.protocol.index import MAX_OFFSETS

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk
    from grpo_tui.views.rollouts.model.rollouts import Rollouts, StepKey, TextsKey
    from grpo_tui.views.rollouts.model.samples import Sample
    from grpo_tui.views.rollouts.model.search import RolloutSearch, SearchKey
    from grpo_tui.views.rollouts.model.steps import StepsKey


async def refresh_steps(app: Desk, rollouts: Rollouts, key: StepsKey, moved: Callable[[], None]) -> None:
    """Request a part of the table of steps."""
    steps = rollouts.steps
    ends = {name: value for name, value in (("low", key.low), ("high", key.high)) if value is not None}
    try:
        steps.answer(key, await app.request("rollout_steps", timeout=60.0, run=rollouts.run, **ends))
    except RemoteError as error:
        steps.fail(key, error.message)
    moved()


async def refresh_step(app: Desk, rollouts: Rollouts, key: StepKey, moved: Callable[[], None]) -> None:
    """Request the samples of a step."""
    await asyncio.sleep(CURSOR_S)
    try:
        folder = rollouts.folder(key.step, key.run)
        reply = await app.request("rollout_step", timeout=60.0, run=key.run, step=key.step, folder=folder)
        rollouts.answer_step(key, reply)
    except RemoteError as error:
        rollouts.fail_step(key, error.message, error.code)
    moved()


async def refresh_texts(app: Desk, rollouts: Rollouts, key: TextsKey, moved: Callable[[], None]) -> None:
    """Request texts of samples."""
    await asyncio.sleep(CURSOR_S)
    folder, offsets, characters = key
    params = {"run": rollouts.run, "folder": folder, "offsets": list(offsets), "characters": characters}
    try:
        reply = await app.request("samples", timeout=60.0, **params)
        rollouts.answer_texts(key, reply)
    except RemoteError as error:
        rollouts.fail_texts(key, error.message)
    moved()


async def refresh_search(
    app: Desk, search: RolloutSearch, key: SearchKey, params: dict[str, Any], searched: Callable[[RolloutSearch], bool]
) -> None:
    """Request pages of a search until it ends, rests, or is no longer shown, as ``searched`` says after each."""
    await asyncio.sleep(CURSOR_S)
    following: tuple[SearchKey, dict[str, Any]] | None = (key, params)
    while following is not None:
        key, params = following
        try:
            search.answer(key, await app.request("search_rollouts", timeout=60.0, **params))
        except RemoteError as error:
            search.fail(key, error.message, error.code)
        following = search.request() if searched(search) else None


async def save_samples(
    app: Desk, rollouts: Rollouts, samples: Sequence[Sample], what: str, say: Callable[[str], None]
) -> None:
    """Save samples as CSV, with the answers and rewards that their list does not have."""
    try:
        table = sample_table(samples, await _details(app, rollouts, samples, say))
        save_table(app, f"{rollouts.evaluation or rollouts.run}_{what}", table, len(samples), "sample")
    except RemoteError as error:
        app.warn(f"{error.message}; E tries again", "not saved")
    finally:
        say("")


async def _details(
    app: Desk, rollouts: Rollouts, samples: Sequence[Sample], say: Callable[[str], None]
) -> list[Mapping[str, Any]]:
    """Each sample as it was logged, without its texts. What is known here is not requested."""
    found: list[Mapping[str, Any]] = [rollouts.details(sample) or {} for sample in samples]
    missing: dict[str, list[int]] = {}
    for at, sample in enumerate(samples):
        if not found[at]:
            missing.setdefault(rollouts.place(sample)[0], []).append(at)
    pages = [
        (folder, places[start : start + MAX_OFFSETS])
        for folder, places in missing.items()
        for start in range(0, len(places), MAX_OFFSETS)
    ]
    for number, (folder, page) in enumerate(pages):
        say(f"saving, {percent(number / len(pages))}")
        offsets = [samples[at]["offset"] for at in page]
        reply = await app.request(
            "samples", timeout=60.0, run=rollouts.run, folder=folder, offsets=offsets, characters=0
        )
        for at, row in zip(page, reply["samples"], strict=True):
            found[at] = row
    return found
