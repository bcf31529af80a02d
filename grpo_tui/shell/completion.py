"""``grpo-tui completion``, and what TAB asks for: names from files of this machine. It never connects to a box, and
nothing is printed or created."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from argcomplete import CompletionFinder, shellcode, split_line
from argcomplete.completers import BaseCompleter

from grpo_train.run_dir.completing import CONFIGS, paths, run_names

Completer: TypeAlias = Callable[..., Iterable[str]]
SHELLS = ("bash", "zsh", "fish")
LOGS = ("console", "train_log.jsonl")
_EPILOG = """\
bash, in ~/.bashrc:                   eval "$(grpo-tui completion bash)"
zsh, in ~/.zshrc, after compinit:     eval "$(grpo-tui completion zsh)"
fish, in ~/.config/fish/config.fish:  grpo-tui completion fish | source
"""


def run(words: list[str]) -> int:
    """Print the script that completes grpo-tui in a shell."""
    print(shellcode(["grpo-tui"], shell=command_parser(words[0]).parse_args(words[1:]).shell))
    return 0


def command_parser(command: str) -> argparse.ArgumentParser:
    """The options of the command."""
    options = argparse.ArgumentParser(
        prog=f"grpo-tui {command}",
        description="Print the script that completes commands, options, boxes and runs with TAB.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("shell", choices=SHELLS, help="shell that the script is for")
    return options


def complete() -> None:
    """Answer a shell that completes a command line (``_ARGCOMPLETE``), and exit. An error yields nothing."""
    try:
        from grpo_tui.cli import COMMANDS, parser_of

        _, _, _, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
        command = words[1] if len(words) > 1 and words[1] in COMMANDS else ""
        os.environ["_ARGCOMPLETE"] = "2" if command else "1"  # the word that counts as the program
        parser = parser_of(command) if command else _options()
        CompletionFinder()(parser, always_complete_options=False, default_completer=_Names(command))
    finally:
        os._exit(1)


def _options() -> argparse.ArgumentParser:
    """The app's options, and the commands as the first word."""
    from grpo_tui.cli import COMMANDS, app_parser

    parser = app_parser()
    parser.add_argument("command", nargs="?", choices=list(COMMANDS), help="command")
    return parser


class _Names(BaseCompleter):
    """What an argument may be, by its name, and what to call it. Free text and paths on the box have none."""

    def __init__(self, command: str) -> None:
        self._by_name: dict[str, tuple[str, Completer]] = {
            "box": ("box", _boxes),
            "cfg": ("config", _configs),
            "query": ("instead of a query", _history_words),
            **dict.fromkeys(("run", "session", "what"), ("run", _runs)),
            **dict.fromkeys(("boxes", "config_dir", "file", "folder", "source"), ("file", _paths)),
        }
        if command == "tail":
            self._by_name["file"] = ("log", lambda **_: LOGS)

    def __call__(
        self, *, prefix: str, action: argparse.Action, parser: argparse.ArgumentParser, parsed_args: argparse.Namespace
    ) -> dict[str, str]:
        if action.dest not in self._by_name:
            return {}
        label, completer = self._by_name[action.dest]
        return dict.fromkeys(completer(prefix=prefix, parsed_args=parsed_args), label)


def _boxes(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    from remote.boxes import load_boxes

    return [box.name for box in load_boxes(getattr(parsed_args, "boxes", None))]


def _runs(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Runs of the box that the command would ask: those the app last saw there; on this machine, those of its root."""
    import platformdirs

    from grpo_train.run_dir.root import resolve_root
    from grpo_tui.box.kept import AnswerCache
    from grpo_tui.cli import first_box

    given = {name: getattr(parsed_args, name, None) for name in ("box", "host", "root", "boxes")}
    box = first_box(argparse.Namespace(**given, fresh=False))
    if box.is_local:
        return run_names(resolve_root(box.root))
    return AnswerCache(Path(platformdirs.user_cache_dir("grpo-tui"))).run_names(box)


def _configs(prefix: str, **_: Any) -> list[str]:
    """Files, and the names of the examples."""
    from grpo_train.run_dir.configs import config_folder, list_configs

    return [*paths(prefix, CONFIGS), *(config["name"] for config in list_configs(config_folder(None)))]


def _history_words(parsed_args: argparse.Namespace, **given: Any) -> Iterable[str]:
    return ("show", "rebuild") if not parsed_args.query else ()


def _paths(prefix: str, **_: Any) -> list[str]:
    return paths(prefix)
