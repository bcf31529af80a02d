"""``grpo-train fit``: measure the batch sizes that this machine's memory holds."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_train.cli.options import AsJson, Overrides, Root
from grpo_train.cli.output import fail, table
from grpo_train.config import dump_config, load_config, read_config_text, with_changes
from grpo_train.run_dir import resolve_root
from grpo_train.train.preflight import check_start


def fit(
    cfg: Annotated[Path, typer.Option(help="Config file whose model and lengths are measured.")],
    set_: Overrides = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Measure train.microbatch_size and train.tf_micro_batch: run the longest passes, larger and larger.

    Prints the sizes as YAML for the config. Takes about a minute and uses the GPU.
    """
    folder = resolve_root(root)
    config = load_config(read_config_text(cfg), set_ or [], source=str(cfg))
    if config.model.backbone == "auto":
        fail("grpo-train fit measures one model: set model.backbone (grpo-train platform --cfg shows the choice)", 2)
    # The sizes are what is looked for.
    config = with_changes(config, train={"microbatch_size": 1, "tf_micro_batch": 1})
    config = check_start(config, folder, None, say=lambda line: print(line, file=sys.stderr))
    with tempfile.TemporaryDirectory(prefix="grpo-fit-") as scratch:
        file = Path(scratch) / "config.yaml"
        file.write_text(dump_config(config), encoding="utf-8")
        command = [sys.executable, "-m", "grpo_train.train.fit", str(file), str(folder)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode == 1:  # it has said why
        raise typer.Exit(1)
    if done.returncode:
        fail(f"the measurement ended with exit code {done.returncode}")
    result = json.loads(done.stdout.splitlines()[-1])
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        _show(result)
    if result["microbatch_size"] is None:
        fail("not even one prompt's completions fit: set train.gradient_checkpointing: true, or shorter lengths")


def _show(result: dict[str, Any]) -> None:
    total = result["memory_bytes"]
    rows = []
    for trial in result["trials"]:
        peak = trial["peak_bytes"]
        used = ["out of memory", ""] if peak is None else [f"{peak / 2**30:.2f} GiB", f"{100 * peak / total:.0f} %"]
        rows.append([trial["key"], str(trial["size"]), *used])
    print(f"# {result['device']}, {total / 2**30:.1f} GiB")
    table(("key", "size", "peak", "of the memory"), rows)
    print("train:")
    for key in ("microbatch_size", "tf_micro_batch"):
        if result[key] is not None:
            print(f"  {key}: {result[key]}")
