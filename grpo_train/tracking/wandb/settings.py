"""Where a run is tracked: the config, else the environment (which ``.env`` fills), else defaults."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from grpo_train.config.schema import Config
from grpo_train.run_dir.credentials import netrc_password
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.installation import install_command

PROJECT = "grpo-tui"
CLOUD = "https://api.wandb.ai"
ROUTE_S = 5.0


class WandbError(UserError):
    """W&B cannot be used; the message says what to do."""

    code = "no_wandb"


@dataclass(frozen=True)
class WandbSettings:
    """Where a run is tracked."""

    mode: str
    """``off``, ``offline`` or ``online``."""
    project: str
    group: str
    entity: str | None = None
    """None = the account's own."""
    tags: list[str] = field(default_factory=list)
    completions: int = 0
    """Rows of a step's table."""


def settings_of(config: Config, run: str, environment: Mapping[str, str] = os.environ, mode: str = "") -> WandbSettings:
    """The settings of a run. ``mode`` overrides the config's."""
    tracking = config.tracking
    tags = [tag.strip() for tag in environment.get("WANDB_TAGS", "").split(",") if tag.strip()]
    return WandbSettings(
        resolve_mode(mode or tracking.wandb, environment),
        tracking.wandb_project or environment.get("WANDB_PROJECT") or PROJECT,
        tracking.wandb_group or environment.get("WANDB_RUN_GROUP") or run,
        tracking.wandb_entity or environment.get("WANDB_ENTITY") or None,
        tracking.wandb_tags or tags,
        tracking.wandb_completions,
    )


def resolve_mode(mode: str, environment: Mapping[str, str] = os.environ) -> str:
    """``auto`` as ``online``, ``offline`` or ``off``; any other mode as it is."""
    if mode != "auto":
        return mode
    if not is_installed() or not has_key(environment):
        return "off"
    return "online" if has_route(server(environment)) else "offline"


def check(mode: str) -> None:
    """Raise WandbError if a mode needs a package that is not installed, or W&B would ignore the user's settings."""
    if mode not in ("offline", "online"):
        return
    if not is_installed():
        raise WandbError(f"tracking.wandb: {mode} needs the package wandb:  {install_command('wandb')}")
    own = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser() / "settings"
    if os.path.lexists(own) and not own.is_file():
        raise WandbError(f"{own} is not a file, so W&B would ignore it: remove it")


def is_installed() -> bool:
    """Whether the package can be imported."""
    return importlib.util.find_spec("wandb") is not None


def server(environment: Mapping[str, str] = os.environ) -> str:
    """Address of the server."""
    return (environment.get("WANDB_BASE_URL") or CLOUD).rstrip("/")


def has_key(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether there is an API key, in the environment or in ``~/.netrc``."""
    return bool(environment.get("WANDB_API_KEY") or netrc_password(urlsplit(server(environment)).hostname or "")[0])


def has_route(url: str) -> bool:
    """Whether the server takes a connection."""
    parts = urlsplit(url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=ROUTE_S):
            return True
    except OSError:
        return False
