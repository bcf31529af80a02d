"""Where this agent works: the root, the checkout, the engine's command, all from the client's settings."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.run_dir import ROOT_VARIABLE, resolve_root
from remote.protocol import RemoteError, Settings

ENGINE = "grpo-train"


@dataclass(frozen=True)
class Place:
    """One box as one client sees it."""

    settings: Settings
    root: Path
    repo: Path | None

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Place:
        """From the settings of a hello; unknown keys (a newer client's) are passed over."""
        known = {key: value for key, value in settings.items() if key in Settings.__dataclass_fields__}
        given = Settings(**known)
        repo = Path(given.repo).expanduser() if given.repo else None
        return cls(given, resolve_root(given.root or None), repo)

    @property
    def directory(self) -> Path:
        """Where the engine's commands run: the checkout, else the root."""
        return self.repo if self.repo and self.repo.is_dir() else self.root

    def session_environment(self) -> dict[str, str]:
        """What a session gets besides tmux's own. It stands in tmux's command line, so no secret may be in it."""
        return {ROOT_VARIABLE: str(self.root)}

    def relative(self, path: Path) -> str:
        """A path as the client may use it: relative to the root where it lies inside."""
        try:
            return str(path.relative_to(self.root))
        except ValueError:
            return str(path)


@dataclass(frozen=True)
class Engine:
    """How the engine is called here."""

    argv: list[str]
    how: str
    """In words: why this one."""


def find_engine(place: Place) -> Engine:
    """The engine's command. Raises RemoteError ``no_engine`` with the one command that installs it."""
    given = place.settings
    if given.engine:
        argv = [os.path.expanduser(given.engine[0]), *given.engine[1:]]
        if not shutil.which(argv[0]):
            raise RemoteError(
                "no_engine",
                f"the engine's command {argv[0]} does not exist on this box",
                "correct 'engine' in boxes.yaml, or leave it out to use REPO/.venv or the PATH",
            )
        return Engine(argv, "'engine' in boxes.yaml")
    if given.activate:
        bash = shutil.which("bash")
        if not bash:
            raise RemoteError("no_engine", "'activate' needs bash, which this box does not have", "install bash")
        return Engine([bash, "-c", f'{given.activate} && exec "$@"', "--", ENGINE], "'activate' in boxes.yaml")
    if place.repo:
        script = place.repo / ".venv" / "bin" / ENGINE
        if os.access(script, os.X_OK):
            return Engine([str(script)], "the checkout's .venv")
    if found := shutil.which(ENGINE):
        return Engine([found], "the PATH")
    raise no_engine(place)


def no_engine(place: Place) -> RemoteError:
    """What to say where the engine is not installed."""
    if place.repo and place.repo.is_dir():
        return RemoteError(
            "no_engine", f"the engine is not installed in {place.repo}", f"on the box: cd {place.repo} && make setup"
        )
    where = f"the checkout {place.repo} does not exist" if place.repo else "no checkout is set for this box"
    target = place.repo or "grpo-tui"
    return RemoteError(
        "no_engine",
        f"the engine is not installed: {where}, and {ENGINE} is not on the PATH",
        f"on the box: git clone URL_OF_GRPO_TUI {target} && cd {target} && make setup; then set 'repo' in boxes.yaml",
    )


def verify_engine(place: Place, engine: Engine) -> None:
    """Run the user's activation snippet and see that it leads to the engine. Raises RemoteError ``no_engine``."""
    if not place.settings.activate or place.settings.engine:
        return
    probe = [*engine.argv[:2], f"{place.settings.activate} && command -v {ENGINE}"]
    try:
        done = subprocess.run(probe, capture_output=True, timeout=25, text=True, errors="replace", cwd="/")
    except subprocess.TimeoutExpired:
        raise RemoteError(
            "no_engine", "the activation snippet did not end within 25 s", "correct 'activate' in boxes.yaml"
        ) from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        error = no_engine(place)
        raise RemoteError(
            "no_engine", f"after 'activate' there is no {ENGINE}: {words[0]}", f"correct 'activate', or {error.hint}"
        )
