"""``grpo-train tiny-model``, ``fetch-model``, ``init``, ``import-config`` and ``schema``: write models and configs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from grpo_train.cli.output import fail
from grpo_train.config import read_config_text
from grpo_train.config import schema as config_schema
from grpo_train.config.reference import json_schema, markdown
from grpo_train.run_dir.configs import example_configs
from grpo_train.run_dir.errors import exiting_on_error, message_of
from grpo_train.tasks import refuse_unused
from grpo_train.tiny.architectures import Architecture
from grpo_train.train.preflight import check_engine


def tiny_model(
    out: Annotated[Path, typer.Option(help="Directory to write; backbone tiny is ROOT/models/tiny.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and data.")] = 0,
    task: Annotated[str, typer.Option(help="Generated task used for the warm start.")] = "addition",
    level: Annotated[int, typer.Option(min=1, max=10, help="Difficulty, as task.level.")] = 1,
    architecture: Annotated[
        Architecture | None,
        typer.Option(help="Random weights of this architecture instead, to try a config on.", show_default=False),
    ] = None,
) -> None:
    """Make a tiny Qwen2 model (1M parameters) that partly solves a generated task.

    With --architecture, the model has random weights and solves nothing: it shows that a config runs.
    """
    if (out / "config.json").exists():
        fail(f"{out} already holds a model; remove it or choose another --out")
    from grpo_train.cli.progress import progress_printer
    from grpo_train.tiny.model import make_random_model, make_tiny_model

    with progress_printer() as show_progress:
        try:
            check_engine()
            if architecture is not None:
                make_random_model(out, architecture, seed)
                print(f"wrote {out}")
                return
            settings = config_schema.TaskConfig(name=task, level=level)
            refuse_unused(settings)
            make_tiny_model(out, seed=seed, on_progress=show_progress, task=settings)
        except OSError as error:
            fail(f"cannot write the model to {out}: {message_of(error)}")
    print(f"wrote {out}")


def fetch_model(
    name: Annotated[str, typer.Argument(help="Short name (qwen2_5_05, …) or hub ID, optionally OWNER/NAME@COMMIT.")],
    to: Annotated[Path, typer.Option(help="Directory to write.")],
) -> None:
    """Download a model from the hub to a directory, for a machine without a network.

    A download that was interrupted continues when the command is run again.
    """
    from grpo_train.platforms.hub_models import download_model as fetch

    with exiting_on_error():
        commit = fetch(name, to.expanduser().absolute())
    print(f"wrote {to} (commit {commit}); set model.backbone to this directory")


def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to write.")] = Path("config")) -> None:
    """Write the example configs to a directory, without overwriting files."""
    with exiting_on_error():
        source = example_configs()
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_dir() or any(part.startswith(".") for part in name.parts):
            continue
        target = folder / name
        if target.exists():
            print(f"kept  {target} (already exists)")
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        print(f"wrote {target}")


def import_config(
    file: Annotated[Path, typer.Argument(help="YAML config of TRL or verl, or a script with the arguments of either.")],
    to: Annotated[Path | None, typer.Option(help="File to write (default: print).")] = None,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="Number of processes (default: as the file says, else 1).")
    ] = None,
) -> None:
    """Translate a config of TRL or verl. Comments say where each key is from, and what is not translated.

    Exits with 3 if an option that changes what is learned has no equivalent here.
    """
    from grpo_train.config.importing import import_config as translate

    draft = translate(read_config_text(file), file.name, nproc)
    if to is None:
        print(draft.text(), end="")
    else:
        if to.exists():
            fail(f"{to} already exists; remove it or choose another --to")
        with exiting_on_error():
            to.write_text(draft.text(), encoding="utf-8")
        print(f"wrote {to} ({len(draft.keys)} keys from {draft.library.label})")
    for note in draft.not_translated:
        print(f"not translated: {note}", file=sys.stderr)
    if draft.not_translated:
        raise typer.Exit(3)


def schema(
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a reference page instead.")] = False,
) -> None:
    """Print the JSON schema of training configs."""
    print(markdown() if as_markdown else json.dumps(json_schema(), indent=1), end="" if as_markdown else "\n")
