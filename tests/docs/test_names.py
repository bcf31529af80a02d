"""What the pages name exists: files, links and anchors, commands and their options, config keys, variables, targets."""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from grpo_train.cli import app
from grpo_train.config import load_config
from grpo_train.config.importing import LIBRARIES
from grpo_train.config.schema import Config
from grpo_tui import cli
from remote.boxes import load_boxes
from tests.docs.pages import PAGES, blocks_of, page_text, prose
from tests.support.engine import REPOSITORY

MADE = {
    "a.yaml", "b.yaml", "eval.py", "grpo.yaml", "ours.yaml", "reward.py", "run.sh", "run.yaml", "run_grpo.sh",
    "train.py", "alarms.yaml", "backup.yaml", "boxes.yaml", "columns.yaml", "config.yaml", "eval_config.yaml",
    "keymap.yaml",
    "file.py", "load.py", "make_problems.py", "my_backend.py", "my_grader.py", "my_loss.py", "my_rewards.py",
    "my_task.py", "sums.yaml", "slurm.sh", "SKILL.md", "assistant.jsonl", "ACCOUNT.jsonl",
}  # fmt: skip
"""Files of users and of runs."""
FOREIGN = {
    "--apply_chat_template", "--cpus-per-task", "--ff-only", "--gres", "--mem", "--nodes", "--signal", "--test-only",
    "--torch-backend",
}  # fmt: skip
"""Options of lm-eval, SLURM, git and uv."""
FILES = (".json", ".jsonl", ".safetensors", ".csv", ".yaml")
COLUMNS = {"eval.accuracy", "eval.best", "eval.best_step", "eval.mean_length"}
"""Fields of queries that look like keys of a config."""
FILE = re.compile(r"(?<![\w~/.:])\b[\w.*/-]+\.(?:py|md|ya?ml|sh|svg|tcss)\b")
PLACE = re.compile(r"(?<![\w~/.-])(?:config|docs|grpo_train|grpo_tui|remote|scripts|tests)/[\w.*/-]*")


@cache
def tracked() -> tuple[str, ...]:
    """Files and folders of this repository, as paths below it."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return tuple({name for file in listed for name in (file, *map(str, Path(file).parents))})


def spans(page: str) -> Iterator[str]:
    """The texts in backticks outside of blocks."""
    yield from (" ".join(found.split()) for found in re.findall(r"`([^`]+)`", prose(page)))


def commands(page: str) -> Iterator[str]:
    """Commands of blocks and of the text."""
    yield from (command.line.partition(" #")[0] for block in blocks_of(page) for command in block.commands)
    yield from spans(page)


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    """Also by the end of a path, as ``train/loop.py``; NAME stands for any."""
    texts = [*spans(page), *(line for line in commands(page) if "config/" in line)]
    named = {name for text in texts for name in (*FILE.findall(text), *PLACE.findall(text))}
    assert [name for name in sorted(named) if Path(name).name not in MADE and not exists(name)] == []


def exists(name: str) -> bool:
    pattern = re.escape(name.strip("/.")).replace(r"\*", "[^/]*").replace("NAME", r"\w+")
    top = "" if PLACE.match(name) else "(?:.*/)?"
    return any(re.fullmatch(top + pattern, path) for path in tracked())


@pytest.mark.parametrize("page", PAGES)
def test_links_and_their_anchors_resolve(page: str) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (REPOSITORY / page).parent / path if path else REPOSITORY / page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    assert wrong == []


@cache
def anchors(file: Path) -> set[str]:
    """As GitHub makes them of headings."""
    text = prose(str(file.resolve().relative_to(REPOSITORY)))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower().strip()).replace(" ", "-") for heading in headings}


@cache
def programs() -> dict[str, dict[str, set[str]]]:
    """The options of each command of both programs; "" is the program itself."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    context = typer.Context(group)
    engine = {"": options_of_click(group)}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        engine[name] = options_of_click(command)
    parsers = {name: cli.parser_of(name) for name in ("", *cli.COMMANDS)}
    return {"grpo-train": engine, "grpo-tui": {name: options_of(parser) for name, parser in parsers.items()}}


def options_of_click(command: Any) -> set[str]:
    return {"--help", *(name for each in command.params for name in (*each.opts, *each.secondary_opts))}


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Those of its commands, too."""
    found = {name for action in parser._actions for name in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {name for below in action.choices.values() for name in options_of(below)}
    return found


@pytest.mark.parametrize("page", PAGES)
def test_named_commands_and_options_exist(page: str) -> None:
    wrong = []
    known = {name for program in programs().values() for names in program.values() for name in names} | FOREIGN
    scripts = "".join(
        file.read_text() for room in ("scripts", "tests/bench") for file in (REPOSITORY / room).glob("*.*")
    )
    for text in commands(page):
        for part in re.split(r"[;|]|&&", text):
            called = re.match(r" *(grpo-train|grpo-tui)(?: (?!DIR|\.|did )([a-z][\w-]*))?(?= |$)(.*)", part)
            if called and (called[2] or "") not in programs()[called[1]]:
                wrong.append(text)
            elif called:
                there = programs()[called[1]][called[2] or ""]
                wrong += [f"{called[2]} {name}" for name in options_in(called[3]) if name not in there]
            elif part.startswith("--"):
                wrong += [name for name in options_in(part) if name not in known and name not in scripts]
    assert wrong == []


def options_in(text: str) -> list[str]:
    return re.findall(r"(?<![\w-])--[a-z][\w-]*", text)


@pytest.mark.parametrize("page", PAGES)
def test_named_config_keys_exist(page: str) -> None:
    """``section.key`` of the text, and the sections of blocks of YAML."""
    sections = Config.model_fields
    wrong = []
    words = (word for line in commands(page) for word in re.findall(r"--set (\S+)", line))
    for text in (*spans(page), *words):
        found = re.fullmatch(r"([a-z_]+)\.([a-z_]+)([:=[].*)?", text)
        if found and found[1] in sections and not text.endswith(FILES) and "unknown key" not in text:
            wrong += (
                [text]
                if text not in COLUMNS | LIBRARIES["verl"].rows.keys() and found[2] not in keys_of(found[1])
                else []
            )
    assert wrong == []


def keys_of(section: str) -> set[str]:
    annotation = Config.model_fields[section].annotation
    models = [annotation, *getattr(annotation, "__args__", ())]
    return {key for model in models for key in getattr(model, "model_fields", {})}


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_yaml_are_valid(page: str, tmp_path: Path) -> None:
    """As a config, as boxes.yaml, or as keys of a box, each of which stands alone."""
    file = tmp_path / "shown.yaml"
    for block in (block for block in blocks_of(page) if block.language == "yaml"):
        text = dedent(block.text)
        if re.match("(activate|env|prices):", text):
            keys = re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]
            shown = ["boxes:\n- name: a\n  host: b\n  root: /c\n" + indent(key, "  ") for key in keys]
        else:
            shown = ["boxes:\n" + text] if text.startswith("- name:") else [text]
        for each in shown:
            file.write_text(each)
            assert load_boxes(file) if each.startswith("boxes:") else load_config(each)


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_python_are_valid(page: str) -> None:
    """They parse, and what they import of this project is there."""
    for block in (block for block in blocks_of(page) if block.language == "python"):
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grpo_train"):
                module = import_module(node.module or "")
                assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@pytest.mark.parametrize("page", PAGES)
def test_named_variables_and_targets_exist(page: str) -> None:
    sources = program_sources()
    variables = set(re.findall(r"\bGRPO_[A-Z_]+\b", page_text(page)))
    makefile = (REPOSITORY / "Makefile").read_text()
    lines = (text for text in commands(page) if text.startswith("make "))
    targets = {word for text in lines for word in text.split()[1:] if re.fullmatch(r"[a-z][a-z-]*", word)}
    wrong = [name for name in variables if name not in sources]
    assert wrong + [name for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


@cache
def program_sources() -> str:
    rooms = ("grpo_train", "grpo_tui", "remote")
    return "\n".join(file.read_text(encoding="utf-8") for room in rooms for file in (REPOSITORY / room).rglob("*.py"))
