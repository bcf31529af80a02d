"""boxes.yaml: reading, error messages, and adding a box without losing anything."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.config import load_config
from remote import boxes
from remote.base import BoxesError
from remote.boxes import (
    Box,
    Provider,
    add_box,
    at_address,
    change_box,
    find_box,
    load_boxes,
    local_box,
    notify_overrides,
    parse_boxes,
    remove_box,
)  # fmt: skip

EXAMPLE = Path(__file__).resolve().parents[2] / "config" / "boxes.example.yaml"
NOTIFY = {"command": ["/x/notify", "it's"], "url": "$NOTIFY_URL"}


def test_the_example_is_valid_and_local_is_added() -> None:
    found = load_boxes(EXAMPLE)
    names = ["h200-a", "h100-conda", "workstation", "lab", "h100-lambda", "cluster", "local"]
    assert [box.name for box in found] == names
    assert found[0].price_per_hour == 2.49
    assert found[2].engine == ["/opt/grpo/bin/grpo-train"]
    assert found[-1].is_local
    assert found[0].settings().root == "/lambda/nfs/localfs"
    assert found[3].settings().umask == "007"
    assert not found[3].settings().follow_links


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("boxes:\n  - name: a\n    hots: x\n", ["b.yaml:3", "'hots'", "did you mean host?"]),
        ("boxs: []\n", ["b.yaml:1", "'boxs'"]),
        ("boxes:\n  - name: a\n    host: h\n    umask: 99\n", ["b.yaml:4", "'umask'", "'99'"]),
        ("boxes:\n  - name: a\n    host: h\n    follow_links: 3\n", ["b.yaml:4", "'follow_links'"]),
        ("boxes:\n  - host: x\n", ["b.yaml:2", "'name'"]),
        ("boxes:\n  - name: a\n", ["b.yaml:2", "'host'", "kind: local"]),
        ("boxes:\n  - {name: a, host: x, port: ssh}\n", ["b.yaml:2", "'port'", "'ssh'"]),
        ("boxes:\n  - {name: a, host: x, port: 70000}\n", ["'port'", "70000"]),
        ("boxes:\n  - {name: a, host: x, price_per_hour: free}\n", ["'price_per_hour'", "'free'"]),
        ("boxes:\n  - {name: a, host: x, engine: grpo-train}\n", ["'engine'", "list"]),
        ("boxes:\n  - {name: a, host: x, kind: cloud}\n", ["'kind'", "'cloud'"]),
        ("boxes:\n  - {name: a b, host: x}\n", ["'a b'"]),
        ("boxes:\n  - {name: a, host: -oProxyCommand=x}\n", ["'host'", "-oProxyCommand"]),
        ("boxes:\n  - {name: a, host: 'me@-oX'}\n", ["'host'", "-oX"]),
        ("boxes:\n  - {name: a, host: '@h'}\n", ["b.yaml:2", "'host' '@h'", "expected HOST, USER@HOST"]),
        ("boxes:\n  - {name: a, host: 'h:x'}\n", ["b.yaml:2", "'host' 'h:x'"]),
        ("boxes:\n  - {name: a, host: 'ssh://h/x'}\n", ["b.yaml:2", "'host' 'ssh://h/x'"]),
        ("boxes:\n  - {name: a, host: me@h, user: you}\n", ["'host' 'me@h' has another user than 'user': you"]),
        ("boxes:\n  - {name: a, host: 'h:22', port: 23}\n", ["'host' 'h:22' has another port than 'port': 23"]),
        ("boxes:\n  - {name: a, host: x}\n  - {name: a, host: y}\n", ["b.yaml:3", "duplicate"]),
        ("boxes: {a: b}\n", ["b.yaml:1", "list"]),
        ("boxes:\n  - just a text\n", ["b.yaml:2"]),
        ("boxes:\n  - name: [a\n", ["b.yaml:", "YAML"]),
        ("- a\n", ["b.yaml:1"]),
    ],
)
def test_errors_name_line_and_key(text: str, parts: list[str]) -> None:
    with pytest.raises(BoxesError) as caught:
        parse_boxes(text, "b.yaml")
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("spelled", "host", "user", "port"),
    [
        ("root@127.0.0.1", "127.0.0.1", "root", 0),
        ("ssh://me@Box.example.org:2222/", "Box.example.org", "me", 2222),
        ("me@corp@host:22", "host", "me@corp", 22),
        ("[fe80::1%eth0]:22", "fe80::1%eth0", "", 22),
        ("me@fe80::1", "fe80::1", "me", 0),
    ],
)
def test_a_host_in_any_spelling_of_ssh(spelled: str, host: str, user: str, port: int) -> None:
    wanted = Box("a", host=host, user=user, port=port)
    assert parse_boxes(f"boxes: [{{name: a, host: '{spelled}'}}]", "b.yaml") == [wanted]
    assert at_address(Box("a", user="other", port=9), spelled) == replace(wanted, user=user or "other", port=port or 9)


def test_only_a_named_file_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BoxesError, match="file not found"):
        load_boxes(tmp_path / "none.yaml")
    monkeypatch.setattr(boxes, "default_path", lambda: tmp_path / "none.yaml")
    assert [box.name for box in load_boxes()] == ["local"]
    with pytest.raises(BoxesError, match="no box named 'lokal'"):
        find_box(load_boxes(), "lokal")
    assert find_box(load_boxes(), "local") == local_box()


@pytest.mark.parametrize(
    "before",
    [
        "",
        "boxes:\n",
        "boxes: []\n",
        "# mine\nboxes:\n- name: old\n  host: x # here\n# the end\n",
        "boxes:\n    - name: old\n      host: x\n\n    # the end",
        "boxes:\n  - {name: old, host: x}\n",
        "boxes:\n  - name: old\n    host: x\n    activate: |\n      source a\n      source b\n# the end\n",
    ],
)
def test_adding_keeps_comments_and_boxes(tmp_path: Path, before: str) -> None:
    file = tmp_path / "deep" / "boxes.yaml"
    file.parent.mkdir()
    if before:
        file.write_text(before)
    old = parse_boxes(before)
    first = Box("new", host="h", port=2222, activate="a && b # 'c'", engine=["x", "y z"], price_per_hour=1.5)
    second = Box("newer", host="h")
    add_box(file, first)
    add_box(file, second)
    assert parse_boxes(file.read_text()) == [*old, first, second]
    for comment in ("# mine", "# here", "# the end"):
        assert (comment in before) == (comment in file.read_text())
    with pytest.raises(BoxesError, match="already exists"):
        add_box(file, second)


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        (
            "- name: a  # x\n  host: u@h:22  # y\n", {"host": "g"},
            "- name: a  # x\n  host: g  # y\n  port: 22\n  user: u\n",
        ),
        ("- {name: a, host: h}\n", {"user": "u", "name": "b"}, "- {name: b, host: h, user: u}\n"),
        (
            "- name: a\n  price_per_hour: 2\n  # z\n  host: h\n", {"price_per_hour": None},
            "- name: a\n  # z\n  host: h\n",
        ),
        (
            "- name: a\n  host: h\n  activate: |\n    a\n    b\n", {"activate": "c"},
            "- name: a\n  host: h\n  activate: c\n",
        ),
        (
            "- name: a\n  host: h\n  env: {X: '1'}", {"root": "/r # s"},
            "- name: a\n  host: h\n  env: {X: '1'}\n  root: '/r # s'\n",
        ),
    ],
)  # fmt: skip
def test_a_change_keeps_the_rest(tmp_path: Path, before: str, change: dict[str, Any], after: str) -> None:
    file = tmp_path / "boxes.yaml"
    file.write_text(f"# mine\nboxes:\n{before}")
    box = replace(parse_boxes(file.read_text())[0], **change)
    change_box(file, "a", box)
    assert file.read_text() == f"# mine\nboxes:\n{after}"
    assert parse_boxes(file.read_text()) == [box]
    remove_box(file, box.name)
    assert file.read_text() == "# mine\nboxes:\n"
    with pytest.raises(BoxesError, match="no box named"):
        remove_box(file, box.name)


def test_a_layout_that_cannot_be_edited_is_left(tmp_path: Path) -> None:
    file = tmp_path / "boxes.yaml"
    file.write_text("boxes: [{name: a, host: h}, {name: b, host: i}]\n")
    with pytest.raises(BoxesError, match="edit it in an editor"):
        remove_box(file, "a")
    with pytest.raises(BoxesError, match="already exists"):
        change_box(file, "a", Box("b", host="h"))
    assert [box.name for box in load_boxes(file)] == ["a", "b", "local"]


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_changed_boxes_are_read_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    boxes = data.draw(st.lists(wanted_boxes, min_size=1, max_size=4, unique_by=lambda box: box.name))
    file = tmp_path_factory.mktemp("boxes") / "boxes.yaml"
    for box in boxes:
        add_box(file, box)
    at = data.draw(st.integers(0, len(boxes) - 1))
    drawn = data.draw(wanted_boxes)
    new = replace(boxes[at], repo=drawn.repo, root=drawn.root, port=drawn.port, activate=drawn.activate)
    change_box(file, new.name, new)
    assert parse_boxes(file.read_text()) == [*boxes[:at], new, *boxes[at + 1 :]]
    remove_box(file, new.name)
    assert parse_boxes(file.read_text()) == [*boxes[:at], *boxes[at + 1 :]]


texts = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
wanted_boxes = st.builds(
    Box,
    st.from_regex(r"[a-z][a-z0-9._-]{0,8}", fullmatch=True),
    host=st.just("h"),
    repo=texts,
    activate=texts,
    root=texts,
    port=st.integers(0, 65_535),
    engine=st.lists(texts),
)


@given(st.lists(wanted_boxes, max_size=4, unique_by=lambda box: box.name))
@settings(deadline=None, max_examples=40)
def test_added_boxes_are_read_back(tmp_path_factory: pytest.TempPathFactory, wanted: list[Box]) -> None:
    file = tmp_path_factory.mktemp("boxes") / "boxes.yaml"
    for box in wanted:
        add_box(file, box)
    assert [box for box in (load_boxes(file) if wanted else []) if not box.is_local] == wanted


def test_an_unwritable_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BoxesError, match="cannot write"):
        add_box(tmp_path / "file" / "boxes.yaml", Box("a", host="h"))


@pytest.mark.parametrize(
    "line",
    [
        "activate: export HF_TOKEN=qqqq && conda activate rl",
        'activate: "export X=1; export HTTPS_PROXY=http://me:qqqq@proxy:3128"',
        "engine: [env, WANDB_API_KEY=qqqq, grpo-train]",
    ],
)
def test_secrets_in_command_lines_are_refused(line: str) -> None:
    with pytest.raises(BoxesError) as caught:
        parse_boxes(f"boxes:\n  - name: a\n    host: b\n    {line}\n", "b.yaml")
    assert caught.value.code == "secret"
    assert str(caught.value).startswith(f"b.yaml:4: '{line.split(':')[0]}': ")
    assert "qqqq" not in str(caught.value)
    assert ".env" in str(caught.value)


def test_a_snippet_may_refer_to_a_secret() -> None:
    text = "boxes:\n  - name: a\n    host: b\n    activate: export HF_TOKEN=$(cat ~/.hf_token) && . ~/.secrets\n"
    assert parse_boxes(text)[0].activate.startswith("export HF_TOKEN")


@pytest.mark.parametrize("table", [Box, Provider])
def test_the_page_has_every_key(table: type) -> None:
    page = (EXAMPLE.parents[1] / "docs" / "boxes.md").read_text()
    for key in dataclasses.fields(table):
        assert f"| `{key.name}` | {key.metadata['about']} | {key.metadata['unset']} |" in page


def env_of(text: str) -> dict[str, str]:
    return parse_boxes(f"boxes:\n  - name: a\n    host: b\n    env:\n      OK: 1\n      {text}\n", "b.yaml")[0].env


def test_variables_are_kept_as_written(tmp_path: Path) -> None:
    wanted = {"OK": "1", "HF_HUB_OFFLINE": "true", "PATH": "~/bin:$PATH", "TOKENIZERS_PARALLELISM": "0", "E": ""}
    found = env_of('HF_HUB_OFFLINE: true\n      PATH: ~/bin:$PATH\n      TOKENIZERS_PARALLELISM: 0\n      E: ""')
    assert found == wanted
    add_box(tmp_path / "boxes.yaml", Box("a", host="h", env=wanted))
    assert load_boxes(tmp_path / "boxes.yaml")[0].env == wanted
    assert Box("a", env=wanted).settings().env == wanted


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("HF_TOKEN: qqqq", "secret", "put it in .env"),
        ("WANDB_API_KEY: qqqq", "secret", "put it in .env"),
        ("MY_SECRET_WORD: qqqq", "secret", "put it in .env"),
        ("password: qqqq", "secret", "put it in .env"),
        ("HTTPS_PROXY: http://me:qqqq@proxy:3128", "secret", "put it in .env"),
        ("2X: qqqq", "bad_config", "not a variable's name"),
        ("LOCALFS_ROOT: /qqqq", "bad_config", "set 'root'"),
        ("X: [qqqq]", "bad_config", "must be a string"),
        ("X:", "bad_config", "must be a string"),
        (r'X: "qqqq\n"', "bad_config", "one line"),
    ],
)
def test_variables_that_are_refused(text: str, code: str, reason: str) -> None:
    with pytest.raises(BoxesError) as caught:
        env_of(text)
    assert (caught.value.code, str(caught.value).startswith("b.yaml:6: 'env': ")) == (code, True)
    assert reason in str(caught.value)
    assert "qqqq" not in str(caught.value)


def test_variables_are_a_mapping() -> None:
    with pytest.raises(BoxesError, match=r"b\.yaml:4: 'env': expected variables"):
        parse_boxes("boxes:\n  - name: a\n    host: b\n    env: [X=1]\n", "b.yaml")


def test_a_launch_gets_the_notify_of_its_box() -> None:
    text = 'boxes:\n  - {name: a, host: h, notify: {command: [/x/notify, "it\'s"], url: $NOTIFY_URL}}\n'
    (box,) = parse_boxes(text)
    assert box.notify == NOTIFY
    config = "run: {total_steps: 3}\ntask: {name: addition}\n"
    loaded = load_config(config, notify_overrides(box.notify, config, []))
    assert (loaded.notify.command, loaded.notify.url) == (NOTIFY["command"], NOTIFY["url"])


@pytest.mark.parametrize(
    ("text", "overrides"),
    [("notify: {url: $MINE}\n", []), ("run: {}\n", ["notify.command=[x]"]), ("run: [", []), ("- a\n", [])],
)
def test_the_own_notify_of_a_config_wins(text: str, overrides: list[str]) -> None:
    assert notify_overrides(NOTIFY, text, overrides) == []
    assert notify_overrides({}, "run: {}\n", []) == []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("3", "'command', 'url' or both"),
        ("{}", "'command', 'url' or both"),
        ("{events: [finished]}", "'command', 'url' or both"),
        ("{command: [x, 3]}", "'notify.command' must be a list"),
        ("{command: notify}", "'notify.command' must be a list"),
        ("{url: 'https://hooks.example.com/x'}", "a webhook's address is a secret"),
    ],
)
def test_a_mistake_in_notify_names_file_line_and_key(value: str, problem: str) -> None:
    with pytest.raises(BoxesError) as caught:
        parse_boxes(f"boxes:\n  - name: a\n    host: h\n    notify: {value}\n", "b.yaml")
    assert str(caught.value).startswith("b.yaml:4: ")
    assert problem in str(caught.value)
    assert "hooks.example" not in str(caught.value)
