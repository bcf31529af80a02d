from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_train.run_dir.installation import install_command
from grpo_train.run_dir.version import FORMAT, VERSION
from grpo_tui import cli
from grpo_tui.actions import read_keymap
from grpo_tui.dialogs import demo
from grpo_tui.dialogs.boxes import box_from_form
from grpo_tui.kit import attach
from remote.base import BoxesError
from remote.boxes import Box
from tests.support.terminal import Terminal


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for kind in ("config", "state"):
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(tmp_path / kind))
    monkeypatch.delenv("GRPO_TUI_TMUX_SOCKET", raising=False)
    return tmp_path / "config" / "grpo-tui"


def chosen(*argv: str) -> Box:
    return cli.first_box(cli.app_parser().parse_args(list(argv)))


def test_misspelled_box_suggests_the_nearest(boxes_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--boxes", str(boxes_file), "--box", "h20-a"]) == 2
    assert "h200-a" in capsys.readouterr().err


@pytest.mark.parametrize("other", ["--box", "--host"])
def test_demo_cannot_have_a_box(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--demo", other, "h200-a"]) == 2
    assert f"cannot be combined with {other}" in capsys.readouterr().err


def test_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--box", "local"]) == 2
    assert "terminal" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"grpo-tui {VERSION} (format {FORMAT})\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tunnels"], "unknown command 'tunnels'; "),
        (["shwo", "run_a"], "unknown command 'shwo'; did you mean show?"),
        (["--box", "local", "show", "run_a"], "the command comes before its options: grpo-tui show run_a ..."),
        (["--bxo", "local"], "unrecognized arguments: --bxo local"),
    ],
)
def test_words_that_are_not_a_command(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert (ended.value.code, said in capsys.readouterr().err) == (2, True)


def test_missing_config_dir_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--box", "local", "--config-dir", str(tmp_path / "nowhere")]) == 2
    assert "nowhere is not a directory" in capsys.readouterr().err


def test_demo_without_the_engine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert cli.main(["--demo"]) == 2
    assert f"run: {install_command('train')}" in capsys.readouterr().err


def test_demo_without_tmux(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named before the engine is downloaded."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    monkeypatch.setattr(demo, "which", lambda name: None)
    assert cli.main(["--demo"]) == 2
    assert "--demo trains in tmux, which is not installed; run: " in capsys.readouterr().err


def test_choice_of_the_box(boxes_file: Path) -> None:
    file = str(boxes_file)
    assert chosen().name == "local"
    assert chosen("--boxes", file).name == "h200-a"
    assert chosen("--boxes", file, "--box", "h200-b", "--root", "/data").root == "/data"
    moved = chosen("--boxes", file, "--box", "h200-b", "--host", "192.0.2.77")
    assert (moved.name, moved.host) == ("h200-b", "192.0.2.77")
    assert chosen("--boxes", file, "--host", "192.0.2.11").name == "h200-b"
    assert chosen("--boxes", file, "--host", "198.51.100.5") == Box("198.51.100.5", host="198.51.100.5")


def test_root_without_a_box_is_on_this_machine(boxes_file: Path, tmp_path: Path) -> None:
    file = str(boxes_file)
    assert chosen("--boxes", file).name == "h200-a"
    box = chosen("--boxes", file, "--root", str(tmp_path))
    assert (box.name, box.root) == ("local", str(tmp_path))
    assert chosen("--boxes", file, "--host", "me@198.51.100.5") == Box("198.51.100.5", host="198.51.100.5", user="me")
    assert chosen("--boxes", file, "--host", "me@192.0.2.11").name == "h200-b"
    assert chosen("--boxes", file, "--host", "192.0.2.11", "--root", "/data") == replace(
        chosen("--boxes", file, "--box", "h200-b"), root="/data"
    )


def test_root_that_is_not_on_this_machine(boxes_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--boxes", str(boxes_file), "--root", "/no/such/dir"]) == 2
    message = capsys.readouterr().err
    assert "no directory /no/such/dir on this machine" in message
    assert "--box NAME (h200-a, h200-b)" in message


def test_root_of_a_machine_without_boxes_may_be_new(
    tmp_path: Path, own_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    box = chosen("--root", "new")
    assert (box.name, box.root) == ("local", str(tmp_path / "new"))


def test_bad_keymap_is_a_usage_error(own_config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_config.mkdir(parents=True)
    (own_config / "keymap.yaml").write_text("stpo: x\n")
    assert cli.main(["--box", "local"]) == 2
    assert "did you mean stop" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [("stop: [\n", ":2: invalid YAML"), ("stop:\n", "stop: empty key"), ("- a\n", "expected lines")],
)
def test_bad_keymap_names_its_file(
    own_config: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    own_config.mkdir(parents=True)
    (own_config / "keymap.yaml").write_text(text)
    assert cli.main(["--box", "local"]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert str(own_config / "keymap.yaml") in printed
    assert printed.count("\n") == 1


def test_keymap_may_list_keys(own_config: Path) -> None:
    own_config.mkdir(parents=True)
    (own_config / "keymap.yaml").write_text("stop: [s, f8]\n")
    assert read_keymap() == {"stop": "s,f8"}


def test_reloaded_box_keeps_the_overrides(boxes_file: Path) -> None:
    options = cli.app_parser().parse_args(["--boxes", str(boxes_file), "--box", "h200-a", "--host", "192.0.2.77"])
    box = cli.first_box(options)
    assert cli.reload_box(box, options) == box
    boxes_file.write_text(boxes_file.read_text().replace("name: h200-a", "name: h200-a\n    user: me"))
    assert cli.reload_box(box, options) == replace(box, user="me")
    assert cli.reload_box(Box("h200-b", host="old"), options).host == "192.0.2.11"
    assert cli.reload_box(Box("gone", host="old"), options).host == "old"


def test_unknown_box_names_the_file(boxes_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--boxes", str(boxes_file), "--box", "zz"]) == 2
    assert str(boxes_file) in capsys.readouterr().err


def test_local_tmux_socket_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_TUI_TMUX_SOCKET", "jobs")
    assert chosen("--box", "local").tmux_socket == "jobs"


# attach ----------------------------------------------------------------------------------------------------------


def test_attach_inside_tmux_names_both_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_attach_to_a_remote_box_uses_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "tmux_prefix", lambda socket: "C-a")
    monkeypatch.setattr(attach, "attach_command", lambda box, session: ["ssh", "-t", box.host, session])
    box = Box("x", host="192.0.2.1")
    assert attach.plan(box, "run_1", {}).detach == "ctrl+b d"
    assert attach.plan(box, "run_1", {"TMUX": "1"}).detach == "ctrl+a ctrl+b d"


def test_box_from_the_form() -> None:
    value = dict.fromkeys(("name", "host", "user", "port", "key", "repo", "root", "activate", "price_per_hour"), "")
    with pytest.raises(ValueError, match="name"):
        box_from_form(value)
    value |= {"name": "a", "host": "h", "port": "2222", "price_per_hour": "$2.5"}
    assert box_from_form(value) == Box("a", host="h", port=2222, price_per_hour=2.5)
    for text in ("ssh", "{", "70000"):
        with pytest.raises(BoxesError, match="'port' must be an integer between 1 and 65535, not "):
            box_from_form(value | {"port": text})
    with pytest.raises(BoxesError, match="'price_per_hour' must be a number"):
        box_from_form(value | {"price_per_hour": "free"})


def test_ctrl_c_ends_the_attached_command_alone() -> None:
    program = (
        "from grpo_tui.kit.attach import call_in_foreground as call\n"
        "status = call(['sh', '-c', 'echo attached; exec sleep 60'])\n"
        "print('back with', status, flush=True)\n"
    )
    with Terminal([sys.executable, "-c", program], {}) as terminal:
        terminal.wait_for("attached")
        terminal.press("C-c")
        terminal.wait_for("back with -2")
