"""Installs the keeper: a systemd user service with a timer, else crontab entries. Torch-free."""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from grpo_train.config.environment import without_files
from grpo_train.run_dir.files import atomic_write
from grpo_train.run_dir.sessions import root_mark
from grpo_train.supervisor.keeper import KeeperError

EVERY_MINUTES = 2
PREFIXES = ("HF_", "TRANSFORMERS_", "CUDA_", "NCCL_", "XDG_CACHE")
NAMES = ("PATH", "LD_LIBRARY_PATH", "TMUX_TMPDIR", "LANG", "PYTHONPATH")
SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
"""A unit is readable to others: what may be secret comes from ``.env``, which each job reads itself."""


def install(root: Path) -> list[str]:
    """Install or replace the keeper of a root; returns what was done, and what is left to do, line by line.

    Raises KeeperError where neither systemd nor cron is there.
    """
    if _systemd_works():
        folder = _unit_folder()
        folder.mkdir(parents=True, exist_ok=True)
        name = unit_name(root)
        for suffix, text in (("service", service(root, without_files())), ("timer", timer())):
            atomic_write(folder / f"{name}.{suffix}", text)
        _run("systemctl", "--user", "daemon-reload")
        _run("systemctl", "--user", "enable", "--now", f"{name}.timer")
        done = f"installed {folder / name}.timer: runs at boot and every {EVERY_MINUTES} minutes"
        return [done, *_linger()]
    if shutil.which("crontab"):
        _write_crontab([*_crontab_of_others(root), *cron_lines(root, without_files())])
        return ["installed in your crontab (crontab -l): runs at boot and every 2 minutes"]
    raise KeeperError(
        "neither a systemd user instance nor crontab is available; have your box run this at boot: "
        f"{shlex.join(command(root))}"
    )


def uninstall(root: Path) -> list[str]:
    """Remove the keeper of a root; returns what was removed, line by line."""
    done = []
    name, folder = unit_name(root), _unit_folder()
    units = [path for suffix in ("timer", "service") if (path := folder / f"{name}.{suffix}").exists()]
    if units:
        subprocess.run(["systemctl", "--user", "disable", "--now", f"{name}.timer"], capture_output=True)
        for unit in units:
            unit.unlink(missing_ok=True)
            done.append(f"removed {unit}")
        subprocess.run(["systemctl", "--user", "daemon-reload"], capture_output=True)
    if shutil.which("crontab"):
        left = _crontab_of_others(root)
        if len(left) != len(_crontab()):
            _write_crontab(left)
            done.append("removed from your crontab")
    return done or ["the keeper is not installed for this root"]


def command(root: Path) -> list[str]:
    """What the keeper runs."""
    return [sys.executable, "-m", "grpo_train.cli", "keeper", "--once", "--root", str(root)]


def unit_name(root: Path) -> str:
    """Name of the units of a root."""
    return f"grpo-train-keeper-{root_mark(root)[:8]}"


def service(root: Path, environment: Mapping[str, str]) -> str:
    """Text of the service. Sessions that it starts outlive it: only its own process ends with it."""
    variables = "".join(f"Environment={_quoted(f'{key}={value}')}\n" for key, value in _kept(environment).items())
    return (
        f"[Unit]\nDescription=Resume the runs of {_escaped(str(root))} that a reboot interrupted\n\n"
        f"[Service]\nType=oneshot\nKillMode=process\n{variables}"
        f"ExecStart={' '.join(map(_quoted, command(root)))}\n"
    )


def timer() -> str:
    """Text of the timer."""
    return (
        "[Unit]\nDescription=Resume interrupted runs at boot and every few minutes\n\n"
        f"[Timer]\nOnStartupSec=20s\nOnUnitInactiveSec={EVERY_MINUTES}min\n\n[Install]\nWantedBy=timers.target\n"
    )


def cron_lines(root: Path, environment: Mapping[str, str]) -> list[str]:
    """Lines of a crontab; ``%`` would begin the command's input there."""
    variables = [f"{key}={value}" for key, value in _kept(environment).items()]
    line = shlex.join(["env", *variables, *command(root)]).replace("%", r"\%")
    mark = _cron_mark(root)
    return [
        f"@reboot sleep 20; {line} >/dev/null 2>&1 {mark}",
        f"*/{EVERY_MINUTES} * * * * {line} >/dev/null 2>&1 {mark}",
    ]


def _kept(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that runs need and that no login shell sets at boot."""
    return {
        key: value
        for key, value in sorted(environment.items())
        if (key in NAMES or key.startswith(PREFIXES)) and not any(word in key for word in SECRETS) and "\n" not in value
    }


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """A word of a unit file."""
    return '"' + _escaped(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$") + '"'


def _unit_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"


def _systemd_works() -> bool:
    """Whether this account has a systemd instance to install into."""
    if not shutil.which("systemctl"):
        return False
    return subprocess.run(["systemctl", "--user", "show-environment"], capture_output=True).returncode == 0


def _linger() -> list[str]:
    """Enable the instance without a login; what the user must do where that is not allowed."""
    user = getpass.getuser()
    shown = subprocess.run(["loginctl", "show-user", user, "--property=Linger"], capture_output=True, text=True)
    if shown.stdout.strip() == "Linger=yes":
        return []
    if subprocess.run(["loginctl", "enable-linger", user], capture_output=True).returncode == 0:
        return ["enabled lingering: it also runs while nobody is logged in"]
    return [f"it does not run at boot yet, because {user} may not enable lingering: sudo loginctl enable-linger {user}"]


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise KeeperError(f"{shlex.join(words)} failed: {done.stderr.strip() or done.returncode}")


def _cron_mark(root: Path) -> str:
    return f"# {unit_name(root)}"


def _crontab() -> list[str]:
    """Lines of this account's crontab. Raises KeeperError where it cannot be read: it must not be replaced then."""
    done = subprocess.run(["crontab", "-l"], capture_output=True, text=True)
    if done.returncode and "no crontab" not in done.stderr:
        raise KeeperError(f"crontab -l failed: {done.stderr.strip() or done.returncode}")
    return done.stdout.splitlines() if done.returncode == 0 else []


def _crontab_of_others(root: Path) -> list[str]:
    return [line for line in _crontab() if not line.endswith(_cron_mark(root))]


def _write_crontab(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(["crontab", "-"], input=text, capture_output=True, text=True)
    if done.returncode:
        raise KeeperError(f"crontab could not be written: {done.stderr.strip() or done.returncode}")
