"""How a box's runs notify: boxes.yaml, and what a launch is given."""

from __future__ import annotations

import pytest

from grpo_train.config import load_config
from remote.base import BoxesError
from remote.box_notify import notify_overrides
from remote.boxes import parse_boxes

BOTH = {"command": ["/x/notify", "it's"], "url": "$NOTIFY_URL"}


def test_a_launch_gets_the_notify_of_its_box() -> None:
    text = 'boxes:\n  - {name: a, host: h, notify: {command: [/x/notify, "it\'s"], url: $NOTIFY_URL}}\n'
    (box,) = parse_boxes(text)
    assert box.notify == BOTH
    config = "run: {total_steps: 3}\ntask: {name: addition}\n"
    loaded = load_config(config, notify_overrides(box.notify, config, []))
    assert (loaded.notify.command, loaded.notify.url) == (BOTH["command"], BOTH["url"])


@pytest.mark.parametrize(
    ("text", "overrides"),
    [("notify: {url: $MINE}\n", []), ("run: {}\n", ["notify.command=[x]"]), ("run: [", []), ("- a\n", [])],
)
def test_the_own_notify_of_a_config_wins(text: str, overrides: list[str]) -> None:
    assert notify_overrides(BOTH, text, overrides) == []
    assert notify_overrides({}, "run: {}\n", []) == []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("3", "'command', 'url' or both"),
        ("{}", "'command', 'url' or both"),
        ("{events: [finished]}", "'command', 'url' or both"),
        ("{command: notify}", "'notify.command' must be a list"),
        ("{url: 'https://hooks.example.com/x'}", "a webhook's address is a secret"),
    ],
)
def test_a_mistake_names_file_line_and_key(value: str, problem: str) -> None:
    with pytest.raises(BoxesError) as caught:
        parse_boxes(f"boxes:\n  - name: a\n    host: h\n    notify: {value}\n", "b.yaml")
    assert str(caught.value).startswith("b.yaml:4: ")
    assert problem in str(caught.value)
    assert "hooks.example" not in str(caught.value)
