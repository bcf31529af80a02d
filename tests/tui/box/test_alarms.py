"""Rules for metrics."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui import files
from grpo_tui.box.events import AlarmRule
from grpo_tui.files import Alarms, AlarmsError, read_alarms

REPO = Path(__file__).parents[3]


def test_a_rule_is_read() -> None:
    rule = AlarmRule.parse(" ess/token<0.5 ")
    assert rule == AlarmRule("ess/token", "<", 0.5)
    assert (rule.words, str(rule)) == ("alarm below 0.5", "ess/token < 0.5")
    assert AlarmRule.parse("grad_norm >= 1e1").words == "alarm above 10"


def test_a_rule_is_broken() -> None:
    rule = AlarmRule.parse("kl > 0.1")
    assert [rule.is_broken(value) for value in (0.1, 0.2, math.nan, math.inf, None)] == [False, True, True, True, False]
    assert AlarmRule.parse("kl >= 0.1").is_broken(0.1)


@given(st.text(max_size=30))
def test_no_text_is_too_strange(text: str) -> None:
    try:
        rule = AlarmRule.parse(text)
    except ValueError:
        return
    assert AlarmRule.parse(f"{rule.metric} {rule.operator} 1") == AlarmRule(rule.metric, rule.operator, 1.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("alarms: [ess/token is low]", "'ess/token is low' is not a rule"),
        ("alarms: [kl < nan]", "'kl < nan' is not a rule"),
        ("alarms: 3", "a list of rules"),
        ("alarms: [", ":1: invalid YAML"),
        ("- kl > 1", "a list of rules"),
        ("terminal: bell", "a list of bell, osc9, osc777"),
        ("terminal: [osc99]", "a list of bell, osc9, osc777"),
        ("terminals: [bell]", "did you mean terminal"),
    ],
)
def test_a_mistake_is_pointed_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str) -> None:
    file = tmp_path / "alarms.yaml"
    monkeypatch.setattr(files, "alarms_path", lambda: file)
    assert read_alarms() == Alarms((), ("bell",))
    file.write_text(text)
    with pytest.raises(AlarmsError, match=r"alarms\.yaml") as raised:
        read_alarms()
    assert problem in str(raised.value)


def test_the_example_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    file = REPO / "config" / "alarms.example.yaml"
    monkeypatch.setattr(files, "alarms_path", lambda: file)
    assert [str(rule) for rule in read_alarms().rules] == yaml.safe_load(file.read_text())["alarms"]
