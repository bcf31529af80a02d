"""``grpo-train``: train, stop, resume and evaluate runs from a shell on the box. No torch in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from dotenv import load_dotenv

from grpo_train.cli.check_dataset import register as register_check_dataset
from grpo_train.cli.evaluate import register as register_evaluation
from grpo_train.config import ConfigError, dump_config, load_config, read_config_text, schema, with_changes
from grpo_train.policy.locate import PolicyError, recorded_base
from grpo_train.run_dir import (
    RunDir,
    RunDirError,
    StatusWriter,
    create_run,
    list_evaluations,
    list_older_runs,
    list_runs,
    open_run,
    resolve_root,
)
from grpo_train.run_dir.files import atomic_write
from grpo_train.run_dir.kill import kill_run
from grpo_train.tasks import TaskError, describe, refuse_unused, task_files, task_names
from grpo_train.train.preflight import check_engine, check_start

USER_ERRORS = (ConfigError, RunDirError, TaskError, PolicyError)
"""Failures whose message is all that a user needs."""

app = typer.Typer(
    help="Train language models by reinforcement learning on this box: train, stop, evaluate, resume.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Root = Annotated[Path | None, typer.Option(help="Where runs live (default: LOCALFS_ROOT, else /lambda/nfs/localfs).")]
TrainingRun = Annotated[str, typer.Option(help="The run's name (grpo-train runs lists them), or its path.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def fail(message: object, code: int = 1) -> NoReturn:
    """End with an error in words."""
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(code)


@app.command()
def train(
    cfg: Annotated[Path, typer.Option(help="The config, a YAML file (see config/).")],
    ckpt: Annotated[
        Path | None,
        typer.Option(help="Start from these weights: a peft adapter's directory, a model's, or a step_N of a run."),
    ] = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Processes, one a GPU (default: run.nproc).")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="section.key=value", help="Override a key; repeatable.")
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(help="A control instead of the rewards: random, inverted or format-only (task.reward_control)."),
    ] = None,
    run_name: Annotated[str | None, typer.Option(help="Name of the run (default: run_DATE_TIME).")] = None,
    root: Root = None,
) -> None:
    """Make a new run and train it here, in the foreground. Ctrl-C stops after the step under way, saved."""
    overrides = [*(set_ or []), *([f"run.nproc={nproc}"] if nproc else [])]
    overrides += [f"task.reward_control={reward.replace('-', '_')}"] if reward else []
    ckpt = ckpt.expanduser().absolute() if ckpt else None
    try:
        text = read_config_text(cfg)
        check_start(load_config(text, overrides, source=str(cfg)), resolve_root(root), ckpt)
        launch = {
            "argv": sys.argv,
            "config_name": str(cfg),
            "config_text": text,
            "overrides": overrides,
            "ckpt": recorded_base(str(ckpt), resolve_root(root)) if ckpt else None,
            "by": "shell",
        }
        run = create_run(resolve_root(root), launch, run_name)
    except USER_ERRORS as error:
        fail(error, 2)
    print(f"grpo-train: {run.path}", flush=True)
    raise typer.Exit(_supervise_new(run))


@app.command(hidden=True)
def supervise(run: Annotated[str, typer.Argument(help="The run's name or path.")], root: Root = None) -> None:
    """Supervise a run that has been made already (what its tmux session runs)."""
    try:
        found = open_run(resolve_root(root), run)
    except RunDirError as error:
        fail(error, 2)
    raise typer.Exit(_supervise_new(found))


@app.command()
def resume(
    training_run: TrainingRun,
    from_step: Annotated[str, typer.Option(help="latest, final, or a step number.")] = "latest",
    additional_steps: Annotated[
        int | None, typer.Option(min=1, help="Train so many steps more (default: up to run.total_steps).")
    ] = None,
    no_torchrun: Annotated[bool, typer.Option("--no-torchrun", help="One process, without torchrun.")] = False,
    root: Root = None,
) -> None:
    """Go on from a checkpoint with the full state, as if the run had never stopped."""
    from grpo_train.supervisor.supervisor import Supervisor, prepare_resume, refuse_live

    try:
        check_engine()
        run = open_run(resolve_root(root), training_run)
        refuse_live(run)
        if not run.config_file.exists():
            fail(f"{run.name} has no config.yaml: it never started, launch it again", 2)
        config = load_config(run.config_file.read_text(encoding="utf-8"), source=str(run.config_file))
        step = run.checkpoint(from_step).step
        total = step + additional_steps if additional_steps else config.run.total_steps
        settings = {"total_steps": total, **({"nproc": 1} if no_torchrun else {})}
        config = with_changes(config, run=settings)
        supervisor = Supervisor(run, config, torchrun=not no_torchrun)  # holds the run's lock from here on
        prepare_resume(run, from_step, total)
        atomic_write(run.config_file, dump_config(config))
    except USER_ERRORS as error:
        fail(error, 2)
    print(f"grpo-train: {run.path} goes on from step {step} to {total}", flush=True)
    raise typer.Exit(supervisor.run())


@app.command()
def stop(
    training_run: TrainingRun,
    now: Annotated[bool, typer.Option("--now", help="End it now, without saving.")] = False,
    root: Root = None,
) -> None:
    """Ask a run to stop after the step under way, saved; with --now, end it at once."""
    try:
        run = open_run(resolve_root(root), training_run)
    except RunDirError as error:
        fail(error, 2)
    if not now:
        observed = run.observed_state()
        if not observed.is_live:
            fail(f"{run.name} is not running ({observed.state})")
        run.request_stop(by="grpo-train stop")
        print(f"{run.name}: stop requested; it saves its full state after the current step (--now ends it at once)")
        return
    try:
        killed = kill_run(run, by="grpo-train stop --now")
    except RunDirError as error:
        fail(error)
    if killed.left:
        fail(f"these processes of {run.name} are still running (blocked in the kernel): {killed.left}")
    print(f"{run.name}: ended without saving; no processes left, the latest checkpoint is intact")


@app.command()
def runs(as_json: AsJson = False, root: Root = None) -> None:
    """List the runs of the root, newest first."""
    folder = resolve_root(root)
    rows = [run.summary() for run in list_runs(folder)] + list_older_runs(folder)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    if not rows:
        print(f"no runs under {folder} yet: grpo-train train --cfg config/testconfig.yaml")
    for row in rows:
        total = row.get("total_steps") or "?"
        reward = row.get("reward")
        shown = f"{reward:.3f}" if isinstance(reward, float) else str(reward or "-")
        state = f"{row['state']} on {row['host']}" if row.get("host") else row["state"]
        print(f"{row['run']:<32} {state:<12} {row['step']:>6}/{total:<6} reward {shown}")


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="The run's name or path.")], as_json: AsJson = False, root: Root = None
) -> None:
    """Show a run: state, error, checkpoints, evaluations."""
    try:
        found = open_run(resolve_root(root), run)
    except RunDirError as error:
        fail(error, 2)
    facts: dict[str, Any] = {
        **found.summary(),
        "path": str(found.path),
        "health": found.last_step_row().get("health", []),
        "launch": found.read_launch(),
        "checkpoints": [
            {"step": c.step, "path": str(c.path), "complete": not c.problem, "problem": c.problem}
            for c in found.checkpoints()
        ],
        "evaluations": list_evaluations(found.root, found.name),
    }
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    print(f"{facts['run']}: {facts['state']}, step {facts['step']}/{facts['total_steps']}, reward {facts['reward']}")
    print(f"  {facts['path']}")
    for line in facts["health"]:
        print(f"  {line}")
    if facts["error"]:
        print(f"  error: {facts['error']['summary']}")
        told = facts["error"].get("traceback") or "\n".join(facts["error"].get("console_tail") or [])
        for line in told.splitlines():
            print(f"    | {line}")
    for checkpoint in facts["checkpoints"]:
        print(f"  step_{checkpoint['step']:<6} {checkpoint['problem'] or 'complete'}")
    for evaluation in facts["evaluations"]:
        for row in evaluation["metrics"]:
            print(f"  {evaluation['name']}: step {row['step']} accuracy {row['accuracy']}")


register_evaluation(app)
register_check_dataset(app)


@app.command()
def sweep(
    configs: Annotated[list[Path], typer.Argument(help="The configs, run one after the other.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="section.key=value", help="Override a key in all of them.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the sweep (default: sweep_DATE_TIME); an existing one goes on.")
    ] = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Processes of each run.")] = None,
    root: Root = None,
) -> None:
    """Train several configs one after the other and compare them. Ctrl-C stops the run under way, saved."""
    from grpo_train.supervisor.sweep import SweepError, run_sweep

    overrides = [*(set_ or []), *([f"run.nproc={nproc}"] if nproc else [])]
    try:
        check_engine()
        raise typer.Exit(run_sweep(resolve_root(root), configs, overrides, name))
    except (*USER_ERRORS, SweepError) as error:
        fail(error, 2)


@app.command()
def tasks(as_json: AsJson = False) -> None:
    """List the tasks that can be trained and evaluated."""
    if as_json:  # every name that task.name takes, labels too
        print(json.dumps({"tasks": {name: describe(file) for name, file in sorted(task_names().items())}}))
        return
    for file in task_files():
        print(describe(file))


@app.command("tiny-model")
def tiny_model(
    out: Annotated[Path, typer.Option(help="Directory to write; ROOT/models/tiny is what backbone: tiny means.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and data.")] = 0,
    task: Annotated[str, typer.Option(help="The task it half knows, one that is generated.")] = "addition",
    level: Annotated[int, typer.Option(min=1, max=10, help="How hard, as task.level.")] = 1,
) -> None:
    """Make and warm-start a tiny Qwen2 model (about 1M parameters) that half knows two-digit addition, or --task."""
    if (out / "config.json").exists():
        fail(f"{out} holds a model already: remove it first, or choose another --out")
    from grpo_train.cli.progress import progress_printer
    from grpo_train.tiny.model import make_tiny_model

    with progress_printer() as show_progress:
        try:
            check_engine()
            settings = schema.Task(name=task, level=level)
            refuse_unused(settings)
            make_tiny_model(out, seed=seed, on_progress=show_progress, task=settings)
        except (PolicyError, TaskError) as error:
            fail(error, 2)
        except OSError as error:
            fail(f"cannot write the model to {out}: {error.strerror or error}")
    print(f"wrote {out}")


def _supervise_new(run: RunDir) -> int:
    """Resolve the launch's config and supervise; a config that is refused is the run's last error."""
    from grpo_train.supervisor.supervisor import Supervisor

    launch = run.read_launch()
    overrides = list(launch.get("overrides") or [])
    if launch.get("nproc"):
        overrides.append(f"run.nproc={launch['nproc']}")
    try:
        if run.config_file.exists():
            raise RunDirError(f"{run.name} has started before: go on with  grpo-train resume --training-run {run.name}")
        config = load_config(launch.get("config_text", ""), overrides, source=launch.get("config_name") or "the config")
        ckpt = str(run.root / launch["ckpt"]) if launch.get("ckpt") else None
        config = check_start(config, run.root, Path(ckpt) if ckpt else None)
        atomic_write(run.config_file, dump_config(config))
        return Supervisor(run, config, ckpt=ckpt).run()
    except (*USER_ERRORS, OSError) as error:
        if not run.config_file.exists():
            status = StatusWriter(run.path)
            summary: dict[str, Any] = {
                "summary": str(error),
                "rank": None,
                "signal": None,
                "traceback": "",
                "console_tail": [],
            }
            status.update(state="crashed", stage="", exit_code=2, error=summary)
            status.close()
        print(f"error: {error}", file=sys.stderr)
        return 2


def main() -> None:
    """The console script's entry. Variables of a ``.env`` file in the working directory are taken where unset."""
    load_dotenv(Path(".env"))
    try:
        app()
    except OSError as error:  # a full disk, a file system that turned read-only
        print(f"error: {error.filename or 'input/output'}: {error.strerror or error}", file=sys.stderr)
        raise SystemExit(1) from None
