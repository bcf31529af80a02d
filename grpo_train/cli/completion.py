"""``grpo-train completion``, and what TAB asks for: names from files of this machine. Nothing is printed or created."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from grpo_train.config.environment import load_environment
from grpo_train.run_dir.completing import CONFIGS, paths, run_names
from grpo_train.run_dir.root import resolve_root

Shell = Literal["bash", "zsh", "fish"]
_RUNS = ("run", "runs", "training_run")
"""Parameters of commands that name runs of the root."""


def completion(shell: Annotated[Shell, typer.Argument(help="Shell that the script is for.")]) -> None:
    """Print the script that completes grpo-train in a shell.

    For bash, add this line to ~/.bashrc: eval "$(grpo-train completion bash)". docs/platforms.md has those for zsh and
    fish.
    """
    from argcomplete import shellcode

    print(shellcode(["grpo-train"], shell=shell))


def complete(app: typer.Typer, commands: Mapping[str, str]) -> None:
    """Answer a shell that completes a command line (``_ARGCOMPLETE``), and exit. An error yields nothing.

    ``commands`` are those of the program with their modules and functions.
    """
    try:
        from argcomplete import CompletionFinder, SuppressCompleter, split_line

        _, _, _, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
        command = words[1] if len(words) > 1 and words[1] in commands else ""
        os.environ["_ARGCOMPLETE"] = "2" if command else "1"  # the word that counts as the program
        parser = _parser_of(app, command, commands[command]) if command else _first_word(commands)
        CompletionFinder()(parser, always_complete_options=False, default_completer=SuppressCompleter())
    finally:
        os._exit(1)


def _first_word(commands: Iterable[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("grpo-train")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("command", choices=list(commands), help="command")
    return parser


def _parser_of(app: typer.Typer, name: str, place: str) -> argparse.ArgumentParser:
    """A command's options and arguments as argcomplete reads them."""
    load_environment()
    module, _, function = place.partition(".")
    hints = get_type_hints(getattr(import_module(f"grpo_train.cli.{module}"), function))
    parser = argparse.ArgumentParser(name)
    group: Any = typer.main.get_command(app)
    for option in group.get_command(None, name).params:
        hint = hints.get(option.name)
        choices, text = _choices(hint), (getattr(option, "help", None) or "").replace("%", "%%")
        added: Any
        if option.param_type_name == "argument":
            added = parser.add_argument(option.name, nargs="*" if option.nargs < 0 else "?", choices=choices)
        elif option.hidden:
            continue
        elif option.is_flag:
            parser.add_argument(*option.opts, *option.secondary_opts, action="store_true", help=text)
            continue
        else:
            action = "append" if option.multiple else "store"
            added = parser.add_argument(*option.opts, action=action, dest=option.name, choices=choices, help=text)
        if choices is None and (completer := _completer(option.name or "", hints.get(option.name or ""))):
            added.completer = completer
    return parser


def _choices(hint: Any) -> list[str] | None:
    """The words that a parameter takes; None for free text."""
    for part in (hint, *get_args(hint)):
        if get_origin(part) is Literal:
            return [str(word) for word in get_args(part)]
        if isinstance(part, type) and issubclass(part, Enum):
            return [str(member.value) for member in part]
    return None


def _completer(name: str, hint: Any) -> Callable[..., dict[str, str]] | None:
    """What a parameter may be, and what to call it; None for free text."""
    if name in _RUNS:
        return _run_names
    if name in ("cfg", "configs"):
        return lambda prefix, **_: dict.fromkeys(paths(prefix, CONFIGS), "config")
    return (lambda prefix, **_: dict.fromkeys(paths(prefix), "file")) if Path in (hint, *get_args(hint)) else None


def _run_names(parsed_args: argparse.Namespace, **_: Any) -> dict[str, str]:
    return dict.fromkeys(run_names(resolve_root(getattr(parsed_args, "root", None))), "run")
