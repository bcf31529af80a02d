"""SKILL.md: its commands exist, and another skill is not replaced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from grpo_tui.assistant.skill import run, skill_text
from grpo_tui.cli import COMMANDS
from grpo_tui.shell.options import HELP, parser


def test_every_command_and_option_in_it_exists() -> None:
    _, head, text = skill_text().split("---\n", 2)
    assert set(yaml.safe_load(head)) == {"name", "description"}
    named = re.findall(r"grpo-tui ([a-z]+)((?: +\S+)*)", text)
    assert {"runs", "stop", "resume", "doctor"} <= {command for command, _ in named} <= set(COMMANDS)
    for command, words in named:
        for option in re.findall(r"--[a-z-]+", words.partition("#")[0].partition("`")[0]):
            assert command in ("mcp", "cost") or option in parser(command).format_help(), (command, option)


def test_what_it_says_of_all_commands_is_true() -> None:
    for command in HELP:
        shown = parser(command).format_help()
        assert ("--box NAME" in shown) == (command not in ("boxes", "instances")), command
        assert "--json" in shown, command
    assert not {"backup", "archive"} & set(COMMANDS)
    assert "--yes" in parser("kill").format_help()


def test_it_is_written_and_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "skills" / "grpo-tui"
    assert run(["skill", "--to", str(folder)]) == run(["skill", "--to", str(folder)]) == 0
    assert (folder / "SKILL.md").read_text() == skill_text()
    (folder / "SKILL.md").write_text("---\nname: other\n---\n")
    assert run(["skill", "--to", str(folder)]) == 2
    assert "is another skill" in capsys.readouterr().err
    assert run(["skill"]) == 0
    assert capsys.readouterr().out == skill_text()
