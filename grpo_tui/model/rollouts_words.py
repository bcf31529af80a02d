"""What the rollouts view says where it has no sample to show. No Textual."""

from __future__ import annotations

from collections.abc import Callable

from grpo_tui.model.rollout_reader import RolloutReader
from grpo_tui.model.store import Store

Key = Callable[[str], str]
"""Text of an action's key."""


def instead_of_sample(reader: RolloutReader | None, store: Store, key: Key) -> str:
    """What there is instead of a sample."""
    if reader is None:
        return f"no run selected; {key('home')} lists the runs of this box"
    rollouts = reader.rollouts
    if rollouts.evaluation and (rollouts.is_empty or not rollouts.steps.rows):
        return f"the evaluation of {rollouts.dataset} has no completions of this step yet"
    if rollouts.is_empty:
        hint = "they appear with its first step" if store.run and store.run.is_live else ""
        return f"{reader.rollouts.run} has not logged a completion yet" + (f"; {hint}" if hint else "")
    if problem := rollouts.of_step.problem:
        return f"✖ the completions of this step were not read: {problem}\n\nasked again every 5 s"
    if rollouts.page is None:
        if not store.connected:
            return f"not connected to the box, which has the completions; {key('reconnect')} reconnects"
        return rollouts.of_step.words() or "asking the box"
    if reader.flips and not reader.groups:
        return _no_flips(reader, key)
    if reader.search is not None and not reader.groups:
        if problem := reader.search.asking.problem:
            return f"✖ the search failed: {problem}"
        if reader.searches_file:
            return "no match in this step; n goes to the next one"
        return "no sample of this step matches; ctrl+f searches the whole file, esc clears the filter"
    return "this step has no samples"


def _no_flips(reader: RolloutReader, key: Key) -> str:
    if reader.mismatch:
        return (
            f"▲ step {reader.step or 0:,} cannot be compared problem by problem with {reader.reference_name}: "
            f"{reader.mismatch}\n\n{key('eval')} evaluates both with the same settings"
        )
    if reader.shares is None:
        return reader.rollouts.of_step.words() or "asking the box"
    if reader.search is not None:
        return f"no problem that was {reader.flips} against {reader.reference_name} matches the filter; esc clears it"
    return f"no problem was {reader.flips} against {reader.reference_name}"
