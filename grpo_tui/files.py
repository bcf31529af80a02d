"""The user's files on this machine, what the app remembers, and what the command line asks of it. No Textual.

One small file in the state directory of this machine. ``--fresh`` neither reads nor writes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grpo_train.config.yaml_text import InvalidYaml, load_yaml
from grpo_train.run_dir.errors import UserError, did_you_mean
from grpo_train.run_dir.files import atomic_write
from grpo_tui.box.events import BELL, WAYS, AlarmRule
from grpo_tui.box.run_columns import KNOWN
from remote.boxes import Box


def user_file(name: str) -> Path:
    """Where a file of the user is."""
    import platformdirs

    return Path(platformdirs.user_config_dir("grpo-tui")) / name


def read_user_file(file: Path, error_type: type[UserError]) -> Any:
    """The content of a file, ``{}`` of an empty one, None without one. Raises ``error_type`` with file and line."""
    if not file.exists():
        return None
    try:
        return load_yaml(file.read_text(encoding="utf-8")) or {}
    except InvalidYaml as error:
        raise error_type(error.at(str(file))) from error
    except (OSError, UnicodeDecodeError) as error:
        raise error_type(f"{file}: cannot read: {error}") from error


MOST_COLUMNS = 40
_HEADER = """\
# Columns of the list of runs, in order, beside the name. config/columns.example.yaml lists them.
columns:
"""


class ColumnsError(UserError):
    """A columns.yaml that is not a list of names."""

    code = "bad_config"


def columns_path() -> Path:
    """Where the file is."""
    return user_file("columns.yaml")


def read_columns() -> tuple[str, ...]:
    """The user's columns; () without the file. Raises ColumnsError."""
    file = columns_path()
    if (found := read_user_file(file, ColumnsError)) is None:
        return ()
    names = found.get("columns") if isinstance(found, dict) else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ColumnsError(f"{file}: expected 'columns:' with a list of names, such as {', '.join(list(KNOWN)[1:4])}")
    if len(set(names)) < len(names) or len(names) > MOST_COLUMNS:
        raise ColumnsError(f"{file}: a column is listed twice, or there are more than {MOST_COLUMNS}")
    return tuple(name for name in names if name != "name")


def write_columns(columns: tuple[str, ...]) -> None:
    """Keep the user's columns. Raises OSError."""
    import yaml

    file = columns_path()
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(
        file, _HEADER + "".join(f"  - {yaml.safe_dump(name, width=1000).splitlines()[0]}\n" for name in columns)
    )


MOST_RULES = 64


class AlarmsError(UserError):
    """An alarms.yaml that is not a list of rules."""

    code = "bad_config"


def alarms_path() -> Path:
    """Where the file is."""
    return user_file("alarms.yaml")


@dataclass(frozen=True)
class Alarms:
    """Content of an alarms.yaml."""

    rules: tuple[AlarmRule, ...] = ()
    terminal: tuple[str, ...] = (BELL,)
    """Signals to the terminal for new entries of "needs you", see :mod:`grpo_tui.kit.terminal`."""


def read_alarms() -> Alarms:
    """The user's alarms; those of an empty file without one. Raises AlarmsError."""
    file = alarms_path()
    if (found := read_user_file(file, AlarmsError)) is None:
        return Alarms()
    if not isinstance(found, dict):
        raise AlarmsError(f"{file}: expected 'alarms:' with a list of rules, such as ess/token < 0.5")
    if unknown := [str(key) for key in found if key not in ("alarms", "terminal")]:
        raise AlarmsError(f"{file}: unknown key '{unknown[0]}'; {did_you_mean(unknown[0], ['alarms', 'terminal'])}")
    return Alarms(_rules(file, found.get("alarms", [])), _terminal(file, found.get("terminal", [BELL])))


def _terminal(file: Path, ways: object) -> tuple[str, ...]:
    if not isinstance(ways, list) or not all(way in WAYS for way in ways):
        raise AlarmsError(f"{file}: expected 'terminal:' with a list of {', '.join(WAYS)}; [] for none")
    return tuple(dict.fromkeys(ways))


def _rules(file: Path, rules: object) -> tuple[AlarmRule, ...]:
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise AlarmsError(f"{file}: expected 'alarms:' with a list of rules, such as ess/token < 0.5")
    if len(rules) > MOST_RULES:
        raise AlarmsError(f"{file}: more than {MOST_RULES} rules")
    try:
        return tuple(AlarmRule.parse(rule) for rule in rules)
    except ValueError as error:
        raise AlarmsError(f"{file}: {error}") from error


MOST_KEPT = 50
"""Boxes, and tasks."""


def preferences_path() -> Path:
    """Where the file is."""
    import platformdirs

    return Path(platformdirs.user_state_dir("grpo-tui")) / "preferences.json"


@dataclass
class Preferences:
    """The choices of the last start."""

    theme: str = ""
    charts: str = "braille"
    """What charts are drawn in: ``braille`` or ``blocks``."""
    box: str = ""
    view: str = ""
    order: str = ""
    """Column that the list is sorted by; "" = by start."""
    descending: bool = True
    full_names: bool = False
    axes: dict[str, Any] = field(default_factory=dict)
    """The axes and the smoothing of the charts, see :meth:`grpo_tui.box.charts.ChartsView.to_json`."""
    metrics: dict[str, list[str]] = field(default_factory=dict)
    """Task to the metrics that are shown in the charts; none = the usual ones."""
    runs: dict[str, str] = field(default_factory=dict)
    """Box to the run that was selected."""
    looks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Box to what was dismissed there, see :func:`grpo_tui.box.needs.dismissed_in`."""

    def __post_init__(self) -> None:
        self._is_kept = True
        self._written = ""

    @property
    def in_blocks(self) -> bool:
        return self.charts == "blocks"

    @classmethod
    def load(cls, fresh: bool = False) -> Preferences:
        """Those of the last start; the default ones where the file is missing or damaged, field by field."""
        found: dict[str, Any] = {}
        if not fresh:
            with suppress(OSError, ValueError, RecursionError):
                read = json.loads(preferences_path().read_text(encoding="utf-8"))
                found = read if isinstance(read, dict) else {}
        default = cls()
        usable = {key: found[key] for key, value in asdict(default).items() if type(found.get(key)) is type(value)}
        preferences = cls(**usable)
        preferences.runs = {box: run for box, run in preferences.runs.items() if isinstance(run, str)}
        chosen = {task: names for task, names in preferences.metrics.items() if isinstance(names, list)}
        preferences.metrics = {task: [str(name) for name in names] for task, names in chosen.items()}
        preferences._is_kept = not fresh
        preferences._written = preferences._text()
        return preferences

    def save(self) -> None:
        """Write the file if anything changed. A disk that takes none does not prevent anything."""
        for kept in (self.runs, self.looks, self.metrics):
            while len(kept) > MOST_KEPT:
                del kept[next(iter(kept))]
        text = self._text()
        if not self._is_kept or text == self._written:
            return
        self._written = text
        with suppress(OSError):
            file = preferences_path()
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic_write(file, text, mode=0o600)

    def _text(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


NO_HISTORY = "started with --no-cache: the history is neither read nor written"


@dataclass(frozen=True)
class Options:
    """Options of one start of the app."""

    box: Box
    boxes_file: Path | None = None
    config_dir: Path | None = None
    """Folder with training configs; None: see :func:`grpo_train.run_dir.configs.config_folder`."""
    demo_root: Path | None = None
    readonly: bool = False
    keymap: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    """Columns of the list of runs, of columns.yaml; () = the default ones."""
    alarms: tuple[AlarmRule, ...] = ()
    """The rules of alarms.yaml."""
    terminal: tuple[str, ...] = ("bell",)
    """Signals to the terminal for new entries of "needs you", of alarms.yaml: ``bell``, ``osc9``, ``osc777``."""
    reload_box: Callable[[Box], Box] = lambda box: box
    """The current entry of boxes.yaml for a box; the box itself without one. Raises BoxesError."""
    root: str = ""
    """``--root``; "" if it is not given."""
    cache: Path | None = None
    """Folder for the answers of boxes that are kept; None = none are."""
    history: Path | None = None
    """File of the history of runs; None = nothing is written there."""
    fresh: bool = False
    """Whether what was remembered is neither used nor changed."""
    has_no_boxes: bool = False
    """Whether boxes.yaml names no box besides this machine, and no root is given: a first start."""

    @property
    def demo(self) -> bool:
        return self.demo_root is not None

    @property
    def no_history(self) -> str:
        """Why there is no history; "" if there is one."""
        if self.history is not None:
            return ""
        return "the demo keeps no history" if self.demo else NO_HISTORY


def folder() -> Path:
    """The downloads folder, or the home directory without one."""
    import platformdirs

    downloads = Path(platformdirs.user_downloads_dir())
    return downloads if downloads.is_dir() else Path.home()


def new_file(name: str) -> Path:
    """A file in the folder that does not exist yet, of a name that is one on any machine. Raises FileExistsError."""
    plain = "".join(c if c.isalnum() or c in "._-+=" else "_" for c in name)[-120:].lstrip(".") or "_"
    stem, suffix = os.path.splitext(plain)
    place = folder()
    for number in range(1, 1_000):
        file = place / f"{stem}{f'-{number}' if number > 1 else ''}{suffix}"
        if not os.path.lexists(file):
            return file
    raise FileExistsError(17, "too many files of this name", str(file))
