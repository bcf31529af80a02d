"""``grpo-train env``: which variables jobs get, and from where."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from grpo_train.cli.options import AsJson
from grpo_train.cli.output import table
from grpo_train.config.environment import ENVIRONMENT, origins
from grpo_train.run_dir.machine import env_files

PREFIXES = ("HF_", "WANDB_", "AWS_", "S3_", "GRPO_", "CUDA_", "NCCL_", "TRANSFORMERS_")
NAMES = ("LOCALFS_ROOT", "NOTIFY_URL", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "GITHUB_TOKEN")
"""Variables that the engine and its libraries read; others are listed if a file sets them."""


def env(as_json: AsJson = False) -> None:
    """List the variables that are set for jobs and where they come from: the environment, or a .env file.

    Values are never shown. The environment wins, then .env in the working directory, then ~/.grpo/.env.
    """
    known = [name for name in os.environ if name.startswith(PREFIXES) or name.upper() in NAMES]
    found = {**dict.fromkeys(known, ENVIRONMENT), **origins()}
    found = {name: source if source == ENVIRONMENT else os.path.abspath(source) for name, source in found.items()}
    files = [{"path": str(file.absolute()), "exists": file.exists(), "problem": _problem(file)} for file in env_files()]
    if as_json:
        variables = [{"name": name, "source": source} for name, source in sorted(found.items())]
        print(json.dumps({"variables": variables, "files": files}, indent=1))
        return
    if found:
        table(("variable", "from"), sorted(found.items()))
    for file in files:
        if problem := file["problem"] or ("" if file["exists"] else "no such file"):
            print(f"{file['path']}: {problem}")


def _problem(file: Path) -> str:
    """What is wrong with a file of secrets, or ""."""
    if not file.exists():
        return ""
    if not os.access(file, os.R_OK):
        return "cannot be read"
    is_exposed = stat.S_IMODE(file.stat().st_mode) & 0o077
    return f"other accounts can read it: chmod 600 {file.absolute()}" if is_exposed else ""
