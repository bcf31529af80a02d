from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from grpo_tui import attach, cli
from grpo_tui.screens.boxes import box_from_form
from remote.boxes import Box


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GRPO_TUI_TMUX_SOCKET", raising=False)
    return tmp_path / "config" / "grpo-tui"


def chosen(*argv: str) -> Box:
    return cli.choose_box(cli.parser().parse_args(list(argv)))


def test_a_wrong_box_suggests_the_nearest(boxes_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--boxes", str(boxes_file), "--box", "h20-a"]) == 2
    assert "h200-a" in capsys.readouterr().err


@pytest.mark.parametrize("other", ["--box", "--host"])
def test_the_demo_takes_no_other_machine(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--demo", other, "h200-a"]) == 2
    assert f"leave {other} out" in capsys.readouterr().err


def test_without_a_terminal_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--box", "local"]) == 2
    assert "terminal" in capsys.readouterr().err


def test_which_box(boxes_file: Path) -> None:
    file = str(boxes_file)
    assert chosen().name == "local"
    assert chosen("--boxes", file).name == "h200-a"
    assert chosen("--boxes", file, "--box", "h200-b", "--root", "/data").root == "/data"
    moved = chosen("--boxes", file, "--box", "h200-b", "--host", "192.0.2.77")
    assert (moved.name, moved.host) == ("h200-b", "192.0.2.77")
    assert chosen("--boxes", file, "--host", "192.0.2.11").name == "h200-b"
    assert chosen("--boxes", file, "--host", "198.51.100.5") == Box("198.51.100.5", host="198.51.100.5")


def test_a_bad_keymap_is_told_before_the_app_starts(own_config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_config.mkdir(parents=True)
    (own_config / "keymap.yaml").write_text("stpo: x\n")
    assert cli.main(["--box", "local"]) == 2
    assert "did you mean stop" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [("stop: [\n", ":2: no YAML"), ("stop:\n", "no key is given to stop"), ("- a\n", "expected lines")],
)
def test_a_keymap_that_cannot_be_used_names_its_file(
    own_config: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    own_config.mkdir(parents=True)
    (own_config / "keymap.yaml").write_text(text)
    assert cli.main(["--box", "local"]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert str(own_config / "keymap.yaml") in told
    assert told.count("\n") == 1


def test_a_keymap_may_list_keys(own_config: Path) -> None:
    own_config.mkdir(parents=True)
    (own_config / "keymap.yaml").write_text("stop: [s, x]\n")
    assert cli.read_keymap() == {"stop": "s,x"}


def test_a_box_is_looked_up_with_what_the_command_line_said(boxes_file: Path) -> None:
    options = cli.parser().parse_args(["--boxes", str(boxes_file), "--box", "h200-a", "--host", "192.0.2.77"])
    box = cli.choose_box(options)
    assert cli.look_up(box, options) == box
    boxes_file.write_text(boxes_file.read_text().replace("name: h200-a", "name: h200-a\n    user: me"))
    assert cli.look_up(box, options) == replace(box, user="me")
    assert cli.look_up(Box("h200-b", host="old"), options).host == "192.0.2.11"
    assert cli.look_up(Box("gone", host="old"), options).host == "old"


def test_an_unknown_box_names_the_file_that_was_read(boxes_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--boxes", str(boxes_file), "--box", "zz"]) == 2
    assert str(boxes_file) in capsys.readouterr().err


def test_the_tmux_socket_of_local_jobs_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_TUI_TMUX_SOCKET", "jobs")
    assert chosen("--box", "local").tmux_socket == "jobs"


# attach ----------------------------------------------------------------------------------------------------------


def test_attach_inside_tmux_nests_and_says_both_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "tmux_prefix", lambda socket: "C-a" if socket else "C-b")
    local = Box("local", kind="local")
    outside = attach.plan(local, "run_1", {})
    assert outside.argv[-3:] == ["attach-session", "-t", "=run_1"]
    assert outside.detach == "ctrl+b d"
    inside = attach.plan(local, "run_1", {"TMUX": "/tmp/x,1,0"})
    assert inside.argv[:3] == ["env", "-u", "TMUX"]
    assert inside.detach == "ctrl+b ctrl+b d"
    other = attach.plan(Box("local", kind="local", tmux_socket="jobs"), "run_1", {})
    assert "-L jobs" in " ".join(other.argv)
    assert other.detach == "ctrl+a d"


def test_attach_to_a_remote_box_goes_through_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "tmux_prefix", lambda socket: "C-a")
    monkeypatch.setattr(attach, "attach_command", lambda box, session: ["ssh", "-t", box.host, session])
    box = Box("x", host="192.0.2.1")
    assert attach.plan(box, "run_1", {}).detach == "ctrl+b d"
    assert attach.plan(box, "run_1", {"TMUX": "1"}).detach == "ctrl+a ctrl+b d"


def test_a_form_becomes_a_box() -> None:
    value = dict.fromkeys(("name", "host", "user", "port", "key", "repo", "root", "activate", "price_per_hour"), "")
    with pytest.raises(ValueError, match="name"):
        box_from_form(value)
    value |= {"name": "a", "host": "h", "port": "2222", "price_per_hour": "$2.5"}
    assert box_from_form(value) == Box("a", host="h", port=2222, price_per_hour=2.5)
    with pytest.raises(ValueError, match="port"):
        box_from_form(value | {"port": "ssh"})
