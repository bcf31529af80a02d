"""``grpo-tui``: the command line. ``--help`` and a wrong ``--box`` answer before anything heavy is imported."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote.boxes import Box

_EXAMPLES = """\
examples:
  grpo-tui --demo                    see it work on this machine, on a tiny model
  grpo-tui                           this machine, or the first box of your boxes.yaml
  grpo-tui --box h200-a              a box of your boxes.yaml
  grpo-tui --box h200-a --host 192.0.2.17   the same box, whose address has changed

Runs live in tmux on the box: closing this program never ends one. Press ? inside for every key.
"""


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="grpo-tui",
        description="Launch, watch, stop, evaluate and resume reinforcement-learning runs on a GPU box.",
        epilog=_EXAMPLES + _places(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--box", metavar="NAME", help="a box of boxes.yaml, or 'local' for this machine")
    made.add_argument(
        "--host", metavar="ADDRESS", help="its address today, where that is another one than in boxes.yaml"
    )
    made.add_argument("--root", metavar="DIR", help="where runs live on the box (LOCALFS_ROOT)")
    made.add_argument("--boxes", metavar="FILE", help="another boxes.yaml")
    made.add_argument("--demo", action="store_true", help="this machine, a tiny model, a config that learns in minutes")
    made.add_argument("--readonly", action="store_true", help="look only: nothing on the box is launched or ended")
    return made


def _places() -> str:
    import platformdirs

    folder = platformdirs.user_config_dir("grpo-tui")
    return (
        f"\nyour files: {folder}/boxes.yaml (see config/boxes.example.yaml)\n"
        f"            {folder}/keymap.yaml (see config/keymap.example.yaml)\n"
    )


def choose_box(options: argparse.Namespace) -> Box:
    """The box to begin with. Raises BoxesError with the nearest name."""
    from remote.boxes import Box, find_box, load_boxes

    boxes = load_boxes(options.boxes)
    if options.box:
        box = find_box(boxes, options.box, options.boxes)
    elif options.host:
        known = next((one for one in boxes if options.host in (one.host, one.name)), None)
        box = known or Box(options.host, host=options.host)
    else:
        box = boxes[0]
    return _today(box, options)


def look_up(box: Box, options: argparse.Namespace) -> Box:
    """A box as boxes.yaml has it now, or as it is where that has none of its name. Raises BoxesError."""
    from remote.boxes import load_boxes

    written = next((one for one in load_boxes(options.boxes) if one.name == box.name), None)
    if written is None:
        return box
    began_with = box.name == choose_box(options).name
    return _today(written, options if began_with else argparse.Namespace(host=None, root=None))


def _today(box: Box, options: argparse.Namespace) -> Box:
    """A box with what the command line and the environment say of it."""
    if options.host and not box.is_local:
        box = replace(box, host=options.host)
    if options.root:
        box = replace(box, root=options.root)
    if box.is_local and not box.tmux_socket:
        box = replace(box, tmux_socket=os.environ.get("GRPO_TUI_TMUX_SOCKET", ""))
    return box


def read_keymap() -> dict[str, str]:
    """The user's keymap.yaml, {} where there is none. Raises KeymapError."""
    import platformdirs

    file = Path(platformdirs.user_config_dir("grpo-tui")) / "keymap.yaml"
    if not file.exists():
        return {}
    import yaml

    from grpo_tui.actions import KeymapError, with_keymap

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise KeymapError(f"{file}{line}: no YAML: {error.problem}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise KeymapError(f"{file}: {error}") from error
    if not isinstance(found, dict):
        raise KeymapError(f"{file}: expected lines of 'action: key'")
    keymap = {}
    for name, keys in found.items():
        if isinstance(keys, list):
            keys = ",".join(map(str, keys))
        keymap[str(name)] = "" if keys is None else str(keys)
    try:
        with_keymap(keymap)
    except KeymapError as error:
        raise KeymapError(f"{file}: {error}") from error
    return keymap


def main(argv: list[str] | None = None) -> int:
    """Start the app; returns the exit code."""
    options = parser().parse_args(argv)
    if options.demo and (options.box or options.host):
        given = "--box" if options.box else "--host"
        print(f"grpo-tui: --demo is on this machine: leave {given} out, or leave --demo out", file=sys.stderr)
        return 2
    from grpo_tui.actions import KeymapError, with_keymap
    from remote.boxes import BoxesError

    demo_root = None
    try:
        keymap = read_keymap()
        actions = with_keymap(keymap)
        again: Callable[[Box], Box] = lambda box: box  # noqa: E731
        if options.demo:
            from grpo_tui.demo import demo_box
            from grpo_tui.demo import demo_root as default_root

            demo_root = Path(options.root).expanduser().absolute() if options.root else default_root()
            box = demo_box(demo_root)
        else:
            box = choose_box(options)
            again = partial(look_up, options=options)
    except (BoxesError, KeymapError) as error:
        print(f"grpo-tui: {error}", file=sys.stderr)
        return 2
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("grpo-tui: this is a full-screen program; start it in a terminal (ssh -t, not a pipe)", file=sys.stderr)
        return 2

    from grpo_tui.app import GrpoApp, Options
    from grpo_tui.hangup import end_with_terminal

    end_with_terminal()

    boxes_file = Path(options.boxes) if options.boxes else None
    app = GrpoApp(Options(box, boxes_file, demo_root, options.readonly, keymap, actions, again))
    app.run()
    return app.return_code or 0


if __name__ == "__main__":
    sys.exit(main())
