"""``grpo-train usage``: how a run and its evaluations used the GPUs."""

from __future__ import annotations

from grpo_train.cli.options import AsJson, Root, RunArgument
from grpo_train.cli.output import table
from grpo_train.cli.transfer import failing
from grpo_train.history.usage import Usage, usage_of
from grpo_train.run_dir import open_run, resolve_root
from grpo_train.run_dir.files import to_json


def usage(run: RunArgument, as_json: AsJson = False, root: Root = None) -> None:
    """Show GPU use, memory, energy and idle time of a run, per stage, and of its evaluations."""
    with failing(as_json):
        found = usage_of(open_run(resolve_root(root), run))
    if as_json:
        print(to_json(found.facts()))
        return
    if not found.whole.hours and not found.evaluations:
        print(f"{found.run}: no GPU samples (logs/gpu.jsonl); on a machine without a GPU there are none")
        return
    rows = [_row(name, one) for name, one in found.stages.items()]
    rows.append(_row("run", found.whole))
    rows += [_row(name, one) for name, one in found.evaluations.items()]
    table(("stage", "GPU hours", "use", "idle", "memory", "memory peak", "energy"), rows)


def _row(name: str, usage: Usage) -> list[str]:
    use = "-" if usage.use_percent is None else f"{usage.use_percent:.0f}%"
    shares = (usage.idle_share, usage.memory_share, usage.memory_peak_share)
    idle, memory, peak = ("-" if share is None else f"{share:.0%}" for share in shares)
    return [name, f"{usage.hours:.3f}", use, idle, memory, peak, f"{usage.energy_wh:,.1f} Wh"]
