"""What the command line asks of the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grpo_tui.model.alarms import Rule
from remote.boxes import Box


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
    alarms: tuple[Rule, ...] = ()
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

    @property
    def demo(self) -> bool:
        return self.demo_root is not None
