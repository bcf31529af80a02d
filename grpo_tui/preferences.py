"""What the app remembers between starts: theme, box, run, view, order of the list, charts, what was dismissed.

One small file in the state directory of this machine. ``--fresh`` neither reads nor writes it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grpo_train.run_dir.files import atomic_write

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
    """The axes and the smoothing of the charts, see :meth:`grpo_tui.model.charts_view.ChartsView.to_json`."""
    metrics: dict[str, list[str]] = field(default_factory=dict)
    """Task to the metrics that are shown in the charts; none = the usual ones."""
    runs: dict[str, str] = field(default_factory=dict)
    """Box to the run that was selected."""
    looks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Box to what is kept of the looks at it, see :class:`grpo_tui.model.needs.Look`."""

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
