"""Options that name a box, the same for every command and for the app."""

from __future__ import annotations

import argparse

USAGE_ERRORS = frozenset(
    (
        "bad_config", "provider_key", "bad_request", "bad_name", "no_run", "no_checkpoint", "no_file", "exists",
        "no_config", "no_log", "no_session", "no_terminal", "not_confirmed", "secret",
        "bad_model", "no_model", "bad_checkpoint", "bad_task", "no_dataset", "gated", "no_sandbox", "no_gpu",
        "no_memory", "no_wandb", "no_tensorboard", "no_destination", "bad_destination",
    )
)  # fmt: skip
"""Codes of errors that another command line or config avoids: exit code 2, as ``grpo-train`` has for them."""


def add_box_options(options: argparse.ArgumentParser) -> None:
    """``--box``, ``--host``, ``--root``, ``--boxes``."""
    options.add_argument("--box", metavar="NAME", help="box from boxes.yaml, or 'local' for this machine")
    options.add_argument("--host", metavar="ADDRESS", help="address of the box, overriding boxes.yaml")
    options.add_argument("--root", metavar="DIR", help="directory for runs on the box")
    options.add_argument("--boxes", metavar="FILE", help="boxes.yaml to use")
    options.set_defaults(fresh=False)


def exit_code(code: str) -> int:
    """Exit code of a failed command, from the code of its error."""
    return 2 if code in USAGE_ERRORS else 1
