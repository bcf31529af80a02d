"""``grpo-tui``: the command line. ``--help`` and usage errors load nothing heavy."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from grpo_train.run_dir.errors import UserError, did_you_mean
from grpo_train.run_dir.version import FORMAT, VERSION
from grpo_tui.history import history_file
from grpo_tui.kit.ending import end_with_terminal, report_crashes_clean

if TYPE_CHECKING:
    from grpo_tui.files import Options
    from remote.boxes import Box

_ASK, _COPY, _SHELL = "grpo_tui.history.commands", "grpo_tui.shell.copying", "grpo_tui.shell.commands"
_ASSISTANT, _SKILL = "grpo_tui.assistant.server", "grpo_tui.assistant.skill"
SHELL_COMMANDS = (
    "boxes", "instances", "doctor", "up", "env", "sync", "runs", "show", "tail", "tensorboard", "gpu", "sessions",
    "capture", "attach", "launch", "resume", "eval", "stop", "kill",
)  # fmt: skip
COMMANDS = {
    "history": _ASK, "cost": _ASK, "get": _COPY, "put": _COPY, "mcp": _ASSISTANT, "skill": _SKILL,
    "completion": "grpo_tui.shell.completion", **dict.fromkeys(SHELL_COMMANDS, _SHELL),
}  # fmt: skip
"""First words that run a command in place of the app, and its module."""
_EXAMPLES = """\
examples:
  grpo-tui --demo                           train a tiny model on this machine
  grpo-tui                                  the first box in boxes.yaml, else this machine
  grpo-tui --box h200-a                     a box from boxes.yaml
  grpo-tui --box h200-a --host 192.0.2.17   the same box at another address
  grpo-tui --root ~/runs                    this machine, runs in ~/runs
  grpo-tui history 'task:gsm8k reward>0.5'  find runs of all boxes, also of boxes that are gone (history --help)
  grpo-tui cost --since 7d --by box         what they cost (cost --help)
  grpo-tui get run_gsm8k:400 ~/models       copy weights, runs or files from a box (get --help), and to it (put --help)

in a shell, without the app (docs/boxes.md; they take --box NAME and --json):
  grpo-tui doctor                           check whether a box is ready, with the command that fixes what is not
  grpo-tui up                               from a bare box to the first step: code, engine, launch of the demo (or CFG)
  grpo-tui sync                             bring the commit of this checkout to a box
  grpo-tui env put | env setup              put a .env with secrets on a box; set up its engine
  grpo-tui boxes                            every box at a glance: live runs, free GPUs, price, idle time
  grpo-tui instances                        what the providers of boxes.yaml rent out to you: state, address, price
  grpo-tui runs | show RUN | tail RUN       what a box has
  grpo-tui tensorboard RUN                  its curves in TensorBoard, on a port of this machine
  grpo-tui gpu | sessions | capture SESSION | attach SESSION
  grpo-tui launch CFG | resume RUN | eval RUN | stop RUN | kill RUN
  grpo-tui mcp                              let an assistant look at a box, or act within a grant (docs/assistants.md)
  grpo-tui skill                            a SKILL.md for an assistant that works in a shell
  grpo-tui completion bash | zsh | fish     complete commands, boxes and runs with TAB (docs/platforms.md)

Runs live in tmux on the box: closing this program does not end them. Press ? in the app to see all keys.
Exit codes: 0 done, 1 failed, 2 usage error.
"""


def app_parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="grpo-tui",
        description="Launch, watch, stop, evaluate and resume reinforcement-learning runs on a GPU box.",
        epilog=_EXAMPLES + _user_files(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--box", metavar="NAME", help="box from boxes.yaml, or 'local' for this machine")
    options.add_argument("--host", metavar="ADDRESS", help="address of the box, overriding boxes.yaml")
    options.add_argument(
        "--root",
        metavar="DIR",
        help="directory for runs on the box (LOCALFS_ROOT); without --box or --host, on this machine",
    )
    options.add_argument("--boxes", metavar="FILE", help="boxes.yaml to use")
    options.add_argument("--config-dir", metavar="DIR", help="directory of the training configs to offer")
    options.add_argument("--demo", action="store_true", help="train a tiny model on this machine within minutes")
    options.add_argument("--no-cache", action="store_true", help="keep no runs, curves and history on this machine")
    options.add_argument("--fresh", action="store_true", help="ignore and keep what the last start remembered")
    options.add_argument("--readonly", action="store_true", help="watch only: change nothing on the box")
    options.add_argument(
        "--version", action="version", version=f"grpo-tui {VERSION} (format {FORMAT})", help="print the version"
    )
    return options


def parser_of(command: str) -> argparse.ArgumentParser:
    """The options of a command; "" is the app."""
    if command in SHELL_COMMANDS:
        from grpo_tui.shell.options import parser

        return parser(command)
    from importlib import import_module

    made: argparse.ArgumentParser = (
        import_module(COMMANDS[command]).command_parser(command) if command else app_parser()
    )
    return made


def _user_files() -> str:
    import platformdirs

    folder = platformdirs.user_config_dir("grpo-tui")
    return (
        f"\nyour files: {folder}/boxes.yaml (see config/boxes.example.yaml)\n"
        f"            {folder}/keymap.yaml (see config/keymap.example.yaml)\n"
        f"            {folder}/columns.yaml (see config/columns.example.yaml)\n"
        f"            {folder}/alarms.yaml (see config/alarms.example.yaml)\n"
    )


def first_box(arguments: argparse.Namespace) -> Box:
    """The box to connect to first: the one asked for, else that of the last start. Raises BoxesError."""
    from grpo_tui.files import Preferences
    from remote.boxes import Box, at_address, find_box, load_boxes

    boxes = load_boxes(arguments.boxes)
    if arguments.box:
        box = find_box(boxes, arguments.box, arguments.boxes)
    elif arguments.host:
        given = at_address(Box(arguments.host), arguments.host)
        known = next((box for box in boxes if {arguments.host, given.host} & {box.host, box.name}), None)
        box = known or replace(given, name=given.host)
    elif arguments.root:
        box = _this_machine(boxes, arguments.root)
    else:
        last = Preferences.load(arguments.fresh).box
        box = next((box for box in boxes if box.name == last), boxes[0])
    return _overridden(box, arguments.host, arguments.root)


def _this_machine(boxes: list[Box], root: str) -> Box:
    """This machine, for a root without a box: the same path on a rented box is another directory. Raises BoxesError."""
    from remote.base import BoxesError
    from remote.boxes import LOCAL_NAME, find_box

    local = find_box(boxes, LOCAL_NAME)
    others = [box.name for box in boxes if not box.is_local]
    if others and local.is_local and not Path(root).expanduser().is_dir():
        names = ", ".join(others)
        hint = f"create it, or name the box that has it: --box NAME ({names})"
        raise BoxesError(f"--root: no directory {root} on this machine; {hint}")
    return local


def reload_box(box: Box, arguments: argparse.Namespace) -> Box:
    """The current entry of boxes.yaml for a box, or the box itself without one. Raises BoxesError."""
    from remote.boxes import load_boxes

    entry = next((other for other in load_boxes(arguments.boxes) if other.name == box.name), None)
    if entry is None:
        return box
    is_first = box.name == first_box(arguments).name
    return _overridden(entry, arguments.host if is_first else None, arguments.root if is_first else None)


def _overridden(box: Box, host: str | None, root: str | None) -> Box:
    """A box with what the command line and the environment override."""
    if host and not box.is_local:
        from remote.boxes import at_address

        box = replace(at_address(box, host), provider=None)
    if root:
        box = replace(box, root=str(Path(root).expanduser().absolute()) if box.is_local else root)
    if box.is_local and not box.tmux_socket:
        box = replace(box, tmux_socket=os.environ.get("GRPO_TUI_TMUX_SOCKET", ""))
    return box


def app_options(arguments: argparse.Namespace) -> Options:
    """The options of the app. Raises UserError."""
    import platformdirs

    from grpo_train.run_dir.configs import config_folder
    from grpo_tui.actions import read_keymap
    from grpo_tui.files import Options, read_alarms, read_columns
    from remote.boxes import load_boxes

    if arguments.demo and (arguments.box or arguments.host):
        given = "--box" if arguments.box else "--host"
        raise UserError(f"--demo runs on this machine and cannot be combined with {given}", code="bad_config")
    keymap, columns, alarms = read_keymap(), read_columns(), read_alarms()
    config_dir = config_folder(arguments.config_dir) if arguments.config_dir else None
    boxes_file = Path(arguments.boxes) if arguments.boxes else None
    cache = None if arguments.no_cache else Path(platformdirs.user_cache_dir("grpo-tui"))
    if arguments.demo:
        from grpo_tui.dialogs import demo

        if problem := demo.engine_problem():
            raise UserError(problem, code="no_engine")
        root = Path(arguments.root).expanduser().absolute() if arguments.root else demo.demo_root()
        return Options(
            demo.demo_box(root), boxes_file, config_dir, root, arguments.readonly, keymap, columns, alarms.rules,
            alarms.terminal, cache=cache, fresh=arguments.fresh,
        )  # fmt: skip
    return Options(
        first_box(arguments),
        boxes_file,
        config_dir,
        None,
        arguments.readonly,
        keymap,
        columns,
        alarms.rules,
        alarms.terminal,
        partial(reload_box, arguments=arguments),
        arguments.root or "",
        cache,
        None if arguments.no_cache else history_file(),
        arguments.fresh,
        not arguments.root and all(box.is_local for box in load_boxes(arguments.boxes)),
    )


def main(argv: list[str] | None = None) -> int:
    """Start the app, or run a command; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in COMMANDS:
        from importlib import import_module

        return int(import_module(COMMANDS[words[0]]).run(words))
    options_parser = app_parser()
    arguments, rest = options_parser.parse_known_args(words)
    if rest:
        options_parser.error(_unknown(rest))
    try:
        if arguments.demo:
            from grpo_tui.shell.engine import offer_engine

            offer_engine(words)
        options = app_options(arguments)
    except UserError as error:
        print(f"grpo-tui: {error}", file=sys.stderr)
        return 2
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("grpo-tui: not a terminal; start it in a terminal (over SSH: ssh -t)", file=sys.stderr)
        return 2

    from grpo_tui.box.link import EarlyClient

    client = EarlyClient(options.box, readonly=options.readonly)  # connects while the screens are imported
    from grpo_tui.app import GrpoApp

    end_with_terminal()
    app = GrpoApp(options, make_client=client.make)
    app.run()
    return app.return_code or 0


def _unknown(rest: list[str]) -> str:
    """What is wrong with words that are not options of the app."""
    if rest[0] in COMMANDS:
        return f"the command comes before its options: grpo-tui {' '.join(rest)} ..."
    if rest[0].startswith("-"):
        return f"unrecognized arguments: {' '.join(rest)}"
    return f"unknown command '{rest[0]}'; {did_you_mean(rest[0], COMMANDS)}"


def program() -> NoReturn:
    """The program ``grpo-tui``."""
    if "_ARGCOMPLETE" in os.environ:
        from importlib import import_module

        import_module(COMMANDS["completion"]).complete()
    report_crashes_clean()
    sys.exit(main())


if __name__ == "__main__":
    program()
