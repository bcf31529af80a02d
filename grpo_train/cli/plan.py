"""``grpo-train plan``: the stages of a config or of a run, with their estimated time and cost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from grpo_train.cli.options import AsJson, Overrides, Root
from grpo_train.cli.output import fail, padded, table
from grpo_train.config import load_config, read_config_text
from grpo_train.config.schema import Config
from grpo_train.history.cost import dollars as dollars_of
from grpo_train.history.cost import span
from grpo_train.run_dir import open_run, resolve_root
from grpo_train.run_dir.display import duration, money, short_hours
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import to_float


def plan(
    cfg: Annotated[Path | None, typer.Option(help="Config file of a run to launch.")] = None,
    training_run: Annotated[str | None, typer.Option(help="Run whose remaining stages to show instead.")] = None,
    machine: Annotated[
        str | None, typer.Option(help="Kind of machine that it will run on, such as H100 (default: this machine).")
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0.0, help="Dollars per hour (default: budget.price_per_hour).")
    ] = None,
    set_: Overrides = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Show the stages of a config or a run with their estimated time and cost. Starts nothing.

    The estimate comes from earlier runs under the root with the same model, batch sizes, task and number of
    processes on the same kind of machine, or else from grpo-train bench on such a machine.
    """
    from grpo_train.supervisor.estimate import Estimates
    from grpo_train.supervisor.stages import all_stages
    from grpo_train.supervisor.workflow import remaining

    if (cfg is None) == (training_run is None):
        fail("either --cfg or --training-run is required", 2)
    folder = resolve_root(root)
    if cfg is not None:
        config = load_config(read_config_text(cfg), set_ or [], source=str(cfg))
        stages, start, used = all_stages(config), 0, 0.0
    else:
        run = open_run(folder, training_run or "")
        if not run.config_file.exists():
            fail(f"{run.name} has no config.yaml because it never started", 2)
        config = load_config(read_config_text(run.config_file), set_ or [], source=str(run.config_file))
        start = run.newest_step()
        stages = remaining(run, config, start)
        used = to_float((run.read_status() or {}).get("run_seconds")) or 0.0
    price = config.budget.price_per_hour if price is None else price
    estimates, (disk, problem) = Estimates(folder, config, machine), _disk(config, folder, start)
    forecast = estimates.forecast(stages, start)
    rows, total, unknown = [], (0.0, 0.0), 0
    for stage in stages:
        ends = estimates.seconds(stage, start)
        start = max(start, stage.until)
        unknown += ends is None
        total = (total[0] + (ends or (0.0,))[0], total[1] + (ends or (0.0,))[-1])
        likely, longest = ends or (None, None)
        names = {"stage": stage.name, "kind": stage.kind}
        times = {"seconds": likely, "seconds_high": longest}
        costs = {"dollars": _dollars(price, likely), "dollars_high": _dollars(price, longest)}
        rows.append({**names, **times, **costs})
    dollars, most = (_dollars(price, each) if len(rows) > unknown else None for each in total)
    budget = config.budget.limit_hours
    verdict = verdict_on(budget, used / 3600, total[1] / 3600, bool(unknown))
    if as_json:
        whole = {
            "seconds": total[0], "seconds_high": total[1], "dollars": dollars, "dollars_high": most,
            "unknown_stages": unknown, "used_seconds": used, "used_dollars": _dollars(price, used),
            "budget_hours": budget, "budget": verdict or None, **disk,
        }  # fmt: skip
        sure = {"estimated_from": estimates.sources, "estimate": {**forecast.to_json(), "lines": forecast.lines(price)}}
        print(json.dumps({"stages": rows, **whole, **sure}, indent=1))
        return
    columns = ("stage", "time", "cost")
    cells = [[str(row["stage"]), *_cells(price, row["seconds"], row["seconds_high"])] for row in rows]
    if len(rows) > unknown:
        cells.append(["total", *(f"{'at least ' if unknown else ''}{each}" for each in _cells(price, *total))])
    if used:
        cells.append(["used so far", *_cells(price, used, used)])
    table(columns, cells, plain=padded(columns, cells))
    for line in forecast.lines(price):
        print(line)
    if unknown and len(rows) > unknown:
        print(f"{unknown} of {len(rows)} stages cannot be estimated: nothing like them was measured")
    if size := disk["checkpoint_bytes"]:
        count, free = disk["checkpoints"], disk["free_bytes"] or 0
        print(f"checkpoints need room for {count} x {size / 1e9:.2f} GB; {free / 1e9:.1f} GB are free under {folder}")
    if problem:
        print(f"the size of its checkpoints is not estimated: {problem}")
    if budget is not None:
        print(_sentence(verdict, budget, used / 3600))


def kept_checkpoints(config: Config, start: int = 0) -> int:
    """Checkpoints that a run from step ``start`` on has on disk at most."""
    run = config.run
    saved = {*range(start + run.save_every, run.total_steps + 1, run.save_every), run.total_steps}
    if not run.keep_last:
        return len(saved)
    milestones = {step for step in saved if run.keep_every and step % run.keep_every == 0}
    newest = set(sorted(saved)[-run.keep_last :])
    return min(len(saved), len(milestones | newest) + 1)  # a save is complete before an older one is removed


def _disk(config: Config, root: Path, start: int) -> tuple[dict[str, int | None], str]:
    """Room that the checkpoints take, and that there is. None for the size of a model of unknown shape, with why."""
    from grpo_train.platforms.choices import find_shape
    from grpo_train.platforms.memory import checkpoint_bytes

    size, problem = None, ""
    try:
        size = checkpoint_bytes(find_shape(config.model.backbone, root), config)
    except UserError as error:
        problem = str(error)
    folder = next(path for path in (root, *root.parents) if path.exists())
    count = kept_checkpoints(config, start)
    return {"checkpoint_bytes": size, "checkpoints": count, "free_bytes": shutil.disk_usage(folder).free}, problem


def verdict_on(budget: float | None, used: float, left: float, has_unknown: bool) -> str:
    """How hours used and estimated compare with a budget of hours: ``within``, ``exceeds`` or ``unknown`` (stages
    without an estimate); "" without a budget."""
    if budget is None:
        return ""
    return "exceeds" if used + left > budget else "unknown" if has_unknown else "within"


def _sentence(verdict: str, budget: float, used: float) -> str:
    limit = f"the budget of {short_hours(budget)} h, at which the run saves and stops"
    if used >= budget:
        return f"{short_hours(used)} h are used, which is all of {limit}"
    so_far = f" with the {short_hours(used)} h already used" if used else ""
    if verdict == "unknown":
        return f"it is unknown whether the run{so_far} stays within {limit}"
    return f"the estimate{so_far} {'exceeds' if verdict == 'exceeds' else 'is within'} {limit}"


def _dollars(price: float | None, seconds: float | None) -> float | None:
    return None if price is None or seconds is None else round(dollars_of(price, seconds), 2)


def _cells(price: float | None, likely: object, longest: object) -> tuple[str, str]:
    """Time and cost, each from its likely to its longest."""
    if not isinstance(likely, float) or not isinstance(longest, float):
        return "?", "-"
    return span(duration(likely), duration(longest)), (
        "-" if price is None else span(money(dollars_of(price, likely)), money(dollars_of(price, longest)))
    )
