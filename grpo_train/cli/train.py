"""``grpo-train train``, ``resume``, ``stop``, ``sweep`` and ``supervise``: start runs and end them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_train.cli.options import AsJson, Overrides, Root, TrainingRun
from grpo_train.cli.output import fail, on_terminal, padded, state_cell, table
from grpo_train.config import changed_keys, dump_config, load_config, read_config_text, with_changes
from grpo_train.policy.device import check_device
from grpo_train.run_dir import RunDir, RunDirError, StatusWriter, fields, open_run, resolve_root
from grpo_train.run_dir.display import metric_text
from grpo_train.run_dir.errors import UserError, code_of, exiting_on_error, message_of, prefixed
from grpo_train.run_dir.files import atomic_write, to_float
from grpo_train.run_dir.kill import kill_run
from grpo_train.run_dir.safe_json import Unreadable, parse_object
from grpo_train.run_dir.slurm_job import node_count
from grpo_train.run_dir.status import being_checked
from grpo_train.train.preflight import (
    PlannedJob,
    check_engine,
    check_nodes,
    check_start,
    kept_shape,
    make_demo_model,
    make_run,
)
from grpo_train.train.schedule import extension_note

if TYPE_CHECKING:
    from grpo_train.config.schema import Config
    from grpo_train.history.cost import Forecast
    from grpo_train.supervisor.resume import ResumePlan


def train(
    cfg: Annotated[Path, typer.Option(help="Config file (grpo-train init writes examples).")],
    ckpt: Annotated[
        Path | None, typer.Option(help="Starting weights: a peft adapter, a model, or step_N of a run.")
    ] = None,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="Number of processes, one per GPU (default: run.nproc).")
    ] = None,
    set_: Overrides = None,
    reward: Annotated[
        str | None, typer.Option(help="Negative control in place of the rewards: random, inverted or format-only.")
    ] = None,
    run_name: Annotated[str | None, typer.Option(help="Name of the run (default: run_DATE_TIME).")] = None,
    root: Root = None,
) -> None:
    """Train a new run in the foreground.

    Ctrl-C saves and stops after the current step; a second Ctrl-C ends the run without saving.
    """
    overrides = _overrides(set_, nproc)
    overrides += [f"task.reward_control={reward.replace('-', '_')}"] if reward else []
    weights = ckpt.expanduser().absolute() if ckpt else None
    check_destinations(load_config(read_config_text(cfg), overrides, source=str(cfg)))
    run, _ = make_run(
        cfg, overrides, weights, resolve_root(root), run_name, say=lambda line: None
    )  # the supervisor says
    print(f"grpo-train: {run.path}", flush=True)
    raise typer.Exit(_supervise(run, show_progress=on_terminal()))


def supervise(run: Annotated[str, typer.Argument(help="Run name or path.")], root: Root = None) -> None:
    """Supervise a run that has a directory but has not started (the command of its tmux session)."""
    raise typer.Exit(_supervise(open_run(resolve_root(root), run), show_progress=False))


def join(
    run: Annotated[str, typer.Argument(help="Run name or path, on the disk that the machines share.")],
    root: Root = None,
) -> None:
    """Take part, with this machine's GPUs, in the training of a run of several machines.

    Start the run on the first one, with run.nodes. This command waits for it and ends with it. Ctrl-C saves and stops
    the run; a second Ctrl-C leaves now.
    """
    from grpo_train.supervisor.join import JoinedMachine, wait_for_run

    check_engine()
    raise typer.Exit(JoinedMachine(wait_for_run(resolve_root(root), run)).join())


def check_launch(as_json: AsJson = False, root: Root = None) -> None:
    """Check a launch, read as JSON from standard input, as its start will; prints what there is to know about it.

    ``job``: what its SLURM job will have, whose nodes have no network. ``estimate``: true = also how long it may take.
    """
    from grpo_train.cli.transfer import failing

    notes: list[str] = []
    with failing(as_json):
        launch = _launch_from_input()
        job = PlannedJob(launch["job"].get("nodes") or 1, launch["job"].get("gpus") or 0) if launch.get("job") else None
        if job:
            os.environ["HF_HUB_OFFLINE"] = "1"
        overrides = _overrides(launch.get("overrides"), launch.get("nproc"))
        config = load_config(launch["config_text"], overrides, source=launch.get("config_name") or "config")
        check_destinations(config)
        folder = resolve_root(root)
        ckpt = folder / launch["ckpt"] if launch.get("ckpt") else None
        checked = check_start(config, folder, ckpt, notes.append, is_planned=True, job=job)
        estimate = _estimate_of(checked, folder, job) if launch.get("estimate") else None
    if as_json:
        print(json.dumps({"notes": notes, **({"estimate": estimate.to_json()} if estimate else {})}))
    else:
        print("\n".join([*notes, *(estimate.lines() if estimate else [])]))


def _estimate_of(config: Config, root: Path, job: PlannedJob | None) -> Forecast:
    """How long a launch may take; on which kind of machine a job runs is not known."""
    from grpo_train.supervisor.estimate import Estimates
    from grpo_train.supervisor.stages import all_stages

    return Estimates(root, config, "" if job else None).forecast(all_stages(config))


def _launch_from_input() -> dict[str, Any]:
    """The launch on standard input. Raises Unreadable."""
    with prefixed("standard input is not a launch: "):
        launch = parse_object(sys.stdin.buffer.read())
        fields.check_launch_fields(launch)
        if launch.get("config_text") is None:
            raise Unreadable("'config_text' is missing")
        if not isinstance(job := launch.get("job") or {}, dict):
            raise Unreadable("'job' must be an object")
        for key in ("nodes", "gpus"):
            fields.integer(job, key)
    return launch


def resume(
    training_run: TrainingRun,
    from_step: Annotated[str, typer.Option(help="Checkpoint: latest, final or a step number.")] = "latest",
    additional_steps: Annotated[
        int | None, typer.Option(min=1, help="Number of additional steps (default: up to run.total_steps).")
    ] = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Number of processes from now on.")] = None,
    set_: Overrides = None,
    no_torchrun: Annotated[
        bool, typer.Option("--no-torchrun", help="Use one process without torchrun, for this resume only.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm an edited workflow.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the remaining stages and edits of the workflow; change nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the dry run as JSON.")] = False,
    root: Root = None,
) -> None:
    """Resume a run from a checkpoint.

    The full state is restored: the run continues bit for bit as if it had never stopped, unless --nproc, --set or the
    environment changed. A run that ended before its first save starts again. Changed keys are listed and written to
    the run's config.yaml.
    """
    from grpo_train.cli.transfer import failing, print_json
    from grpo_train.supervisor.resume import has_never_saved, plan_resume, prepare_resume, refuse_live
    from grpo_train.supervisor.stop_rules import over_budget
    from grpo_train.supervisor.supervisor import Supervisor

    if nproc and no_torchrun:
        fail("--nproc and --no-torchrun exclude each other", 2)
    if as_json and not dry_run:
        fail("--json needs --dry-run", 2)
    with failing(True) if as_json else nullcontext():
        check_engine()
        run = open_run(resolve_root(root), training_run)
        refuse_live(run)
        if not run.config_file.exists():
            raise RunDirError(f"{run.name} has no config.yaml because it never started; launch it again")
        text, source = read_config_text(run.config_file), str(run.config_file)
        before = load_config(text, source=source)
        never_saved = from_step == "latest" and has_never_saved(run)
        step = 0 if never_saved else run.checkpoint(from_step).step
        ckpt = _starting_weights(run) if never_saved else None
        overrides = _overrides(set_, nproc)
        config = load_config(text, overrides, source=source)
        total = step + additional_steps if additional_steps else config.run.total_steps
        config = with_changes(config, run={"total_steps": total})
        if overrides:
            weights = ckpt if never_saved else run.checkpoint(from_step).path
            shape = {} if never_saved else kept_shape(before, config)
            config = check_start(config, run.root, weights, partial(print, file=sys.stderr if as_json else sys.stdout))
            config = with_changes(config, model=shape)
        else:
            check_nodes(config)
            check_device(config.model.device, 1 if no_torchrun else config.run.nproc // node_count(config.run.nodes))
        if spent := over_budget(config, to_float((run.read_status() or {}).get("run_seconds")) or 0.0):
            raise RunDirError(f"{run.name}: {spent}; raise the limit with --set", code="over_budget")
        planned = plan_resume(run, config, step)
    if dry_run:
        print_json(planned) if as_json else _show_plan(planned)
        return
    _confirm_edits(planned, yes)
    changes = changed_keys(before, config)
    supervisor = Supervisor(
        run, config, ckpt=str(ckpt) if ckpt else None, torchrun=not no_torchrun, show_progress=on_terminal()
    )
    prepare_resume(run, from_step, total, changes, stages_left=bool(planned.left))
    atomic_write(run.config_file, dump_config(config))
    print(f"grpo-train: {run.path} resumes from step {step}, up to step {total}", flush=True)
    for key, (old, new) in changes.items():
        print(f"  {key}: {old} -> {new}", flush=True)
    if note := extension_note(before, config, step):
        print(f"  {note}", flush=True)
    raise typer.Exit(supervisor.run())


def stop(
    training_run: TrainingRun,
    now: Annotated[bool, typer.Option("--now", help="End the run now, without saving.")] = False,
    root: Root = None,
) -> None:
    """Save and stop a run after its current step."""
    run = open_run(resolve_root(root), training_run)
    if now:
        with exiting_on_error():
            killed = kill_run(run, by="grpo-train stop --now")
        if killed.left:
            fail(f"these processes of {run.name} are still running (blocked in the kernel): {killed.left}")
        print(f"{run.name}: ended without saving; no processes left, the latest checkpoint is intact")
        return
    observed = run.observed_state()
    if not observed.is_live:
        fail(f"{run.name} is not running ({observed.state})")
    run.request_stop(by="grpo-train stop")
    print(f"{run.name}: stop requested; it saves its full state after the current step (--now ends it at once)")


def sweep(
    configs: Annotated[list[Path], typer.Argument(help="Configs, trained one after the other.")],
    set_: Overrides = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the sweep (default: sweep_DATE_TIME); an existing sweep is resumed.")
    ] = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Number of processes of each run.")] = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Train several configs one after the other and compare them.

    Ctrl-C saves and stops the current run; rerun with the same --name to continue.
    """
    from grpo_train.supervisor.sweep import run_sweep

    check_engine()
    overrides = _overrides(set_, nproc)
    run = partial(run_sweep, resolve_root(root), configs, overrides, name, check=check_destinations)
    if as_json:
        result = run(log=sys.stderr)
        print(json.dumps({"sweep": result.name, "runs": result.rows}, indent=1))
    else:
        result = run(_show_comparison)
    raise typer.Exit(result.exit_code)


def _show_plan(plan: ResumePlan) -> None:
    """Print what a resume would do."""
    print(f"{plan.run} would resume from step {plan.step}, up to step {plan.total_steps}: {len(plan.left)} stages")
    print("\n".join(f"  {name}" for name in plan.left))
    _show_edits(plan)


def _show_edits(plan: ResumePlan) -> None:
    from grpo_train.supervisor.workflow import diff_lines

    if plan.edits:
        print(f"the workflow of {plan.run} was edited (- before, + now):", flush=True)
        print("\n".join(f"  {line}" for line in diff_lines(plan.edits)), flush=True)


def _confirm_edits(plan: ResumePlan, yes: bool) -> None:
    """Show what was edited in the workflow since the last start, and have it confirmed."""
    _show_edits(plan)
    if not plan.edits or yes or (sys.stdin.isatty() and typer.confirm("Continue with it?", default=False)):
        return
    fail("the edited workflow was not confirmed; rerun with --yes to continue with it", 2)


def check_destinations(config: Config) -> None:
    """Raise DestinationError where a backup of the run would have no destination, before hours of training."""
    from grpo_train.backup.destinations import find_destination
    from grpo_train.supervisor.stages import all_stages

    names = {config.backup.to} if config.backup.every_save else set()
    names |= {stage.destination for stage in all_stages(config) if stage.kind in ("backup", "cleanup")}
    for name in names:
        find_destination(name)


def _starting_weights(run: RunDir) -> Path | None:
    """The weights that a run was launched with."""
    launched = run.launched().get("ckpt")
    return run.root / launched if launched else None


def _overrides(set_: Sequence[str] | None, nproc: int | None) -> list[str]:
    return [*(set_ or []), *([f"run.nproc={nproc}"] if nproc else [])]


def _show_comparison(rows: Sequence[dict[str, Any]]) -> None:
    from grpo_train.supervisor.sweep import COLUMNS

    def text(name: str, value: Any) -> str:
        return "-" if value is None else metric_text(name, value) if isinstance(value, float) else str(value)

    columns = [name for name in COLUMNS if name != "run"]
    cells = [[text(name, row.get(name)) for name in columns] for row in rows]
    colored = [
        [state_cell(cell) if name == "state" else cell for name, cell in zip(columns, line, strict=True)]
        for line in cells
    ]
    table(columns, colored, plain=padded(columns, cells))


def _supervise(run: RunDir, *, show_progress: bool) -> int:
    """Resolve the config of a launch and supervise the run; a rejected config becomes the run's error."""
    from grpo_train.supervisor.supervisor import Supervisor

    try:
        launch = run.launched()
        overrides = _overrides(launch.get("overrides"), launch.get("nproc"))
        if run.config_file.exists():
            raise RunDirError(
                f"{run.name} has already started; resume it with  grpo-train resume --training-run {run.name}"
            )
        if not launch.get("config_text"):
            raise RunDirError(f"{run.name}: launch.json has no config_text; launch the config again")
        config = load_config(launch["config_text"], overrides, source=launch.get("config_name") or "config")
        check_destinations(config)
        ckpt = _starting_weights(run)
        with being_checked(run.path):
            if ckpt is None:
                make_demo_model(config, run.root)
            config = check_start(config, run.root, ckpt)
        atomic_write(run.config_file, dump_config(config))
        return Supervisor(run, config, ckpt=str(ckpt) if ckpt else None, show_progress=show_progress).run()
    except (UserError, OSError) as error:
        if not run.config_file.exists():
            status = StatusWriter(run.path)
            failure: dict[str, Any] = {
                "code": code_of(error),
                "summary": message_of(error),
                "rank": None,
                "signal": None,
                "traceback": "",
                "console_tail": [],
            }
            status.update(state="crashed", stage="", exit_code=2, error=failure)
            status.close()
        print(f"error: {message_of(error)}", file=sys.stderr)
        return 2
