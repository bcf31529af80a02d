"""Quantities and signs: one way to write each, wherever a person reads it."""

from __future__ import annotations

import ast
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.history.fields import FIELDS
from grpo_train.report.page import _accuracy
from grpo_train.run_dir.display import (
    EVENT_WORDS,
    STATES,
    byte_size,
    compact_number,
    fraction,
    metric_text,
    metric_value,
    money,
    percent,
    setting,
    signed,
)
from grpo_train.run_dir.verdict import HELD_OUT, VERDICTS, RunVerdict
from grpo_train.train.step_log import console_line
from grpo_tui.box.charts import RUN_LOOKS
from grpo_tui.box.events import changed
from grpo_tui.box.needs import GLYPHS
from grpo_tui.box.rows import RunRow, checkpoint_views
from grpo_tui.box.run_columns import KNOWN, Cells, column
from grpo_tui.box.run_facts import KnownFacts, Trends
from grpo_tui.box.store import Store
from grpo_tui.kit.sources import MARKS
from grpo_tui.views.compare.model import facts_of
from tests.support.engine import REPOSITORY


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (metric_value, {0: "0", 6.2e-6: "6.2e-6", 0.61: "0.610", -0.9514: "-0.951", 190.62: "190.6", 1e9: "1G"}),
        (metric_value, {9.6e-4: "9.6e-4", 0.0012: "0.0012", -0.00249: "-0.0025", 0.00996: "0.010", 0.0449: "0.045"}),
        (fraction, {0: ".000", 0.41249: ".412", 1019 / 1024: ".995", 0.9996: ">.999", 1: "1.000", 1e-4: "<.001"}),
        (percent, {0: "0 %", 0.724: "72 %", 0.9996: ">99 %", 0.001: "<1 %", 1: "100 %"}),
        (money, {0: "$0.00", 0.012: "$0.012", 2e-5: "$2e-5", 0.4: "$0.40", 1840: "$1,840.00"}),
        (byte_size, {0: "0 B", 1_440_000_000: "1.4 GB", 230_100: "230 kB"}),
        (compact_number, {100_000_000: "100M", 12_345: "12.35k", 1.2e9: "1.2G"}),
    ],
)
def test_each_quantity_has_a_notation(text: Any, values: dict[float, str]) -> None:
    assert {value: text(value) for value in values} == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("3e-5", [3e-5, "3.0e-05", "0.00003", "3e-5"]),
        ("3e-4", [0.0003, "0.0003", "3.0e-4"]),
        ("1.13e-5", [1.13e-05]),
        ("0.04", [0.04, "0.040"]),
        ("1", [1, 1.0, "1.0"]),
        ("20", [20, "20"]),
        ("yes", [True]),
        ("–", [None]),
        ("1.5B", ["1.5B"]),
        ("0.123456789", ["0.123456789"]),
        ("0.1235", [0.123456789]),
    ],
)
def test_a_setting_is_the_same_however_it_was_written(text: str, values: list[object]) -> None:
    assert [setting(value) for value in values] == [text] * len(values)


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_a_share_that_is_not_all_is_not_written_as_all(share: float) -> None:
    assert fraction(share) not in ("1.000", ".000")
    assert percent(share) not in ("100 %", "0 %")


@given(st.floats())
def test_numbers_fit_their_columns(value: float) -> None:
    assert 1 <= len(metric_value(value)) <= 7


CELLS = Cells(Store("box"), KnownFacts(), Trends())
ROW = {"run": "r", "state": "finished", "step": 87}


def _cell(name: str, **fields: Any) -> str:
    return KNOWN[name].text(CELLS, RunRow.from_summary({**ROW, **fields})).strip()


def _console(**fields: float) -> str:
    row = {
        "step": 1, "reward": 0.0, "accuracy": 0.0, "loss": 0.0, "grad_norm": 1.0, "completions/mean_length": 3.0,
        "time/step": 1.0,
    } | fields  # fmt: skip
    return console_line(row, 2)


class _Step:
    numbers = {"accuracy": 1019 / 1024}  # noqa: RUF012


def _figure() -> str:
    table = [{"step": "20", "accuracy": str(1019 / 1024)}]
    (view,) = checkpoint_views("r", {"checkpoints": [{"step": 20}], "evaluations": [{"name": "r_x", "metrics": table}]})
    return view.evaluations[0].figure


@pytest.mark.parametrize("reward", [0.0, 6.2e-6, 0.61, -1.5])
def test_a_reward_is_the_same_everywhere(reward: float) -> None:
    text = metric_value(reward)
    assert _cell("last", reward=reward) == text
    assert _cell("reward", reward=reward) == f"{text} ~", "no mean is known yet"
    assert f"reward {text}  " in _console(reward=reward)
    assert FIELDS["reward"].text(reward) == metric_text("reward", reward) == text
    assert RunVerdict("flat", 1, 1, "reward", reward, reward).change == f"reward {text}"


def test_an_accuracy_is_the_same_everywhere() -> None:
    accuracy = 1019 / 1024
    held_out = {"accuracy": accuracy, "dataset": "gsm8k", "step": 200}
    assert _cell("held_out", held_out=held_out) == ".995 gsm8k"
    assert _cell("held_out_step", held_out=held_out) == "200"
    assert _figure() == _accuracy(_Step()) == FIELDS["held_out"].text(accuracy) == ".995"  # type: ignore[arg-type]
    assert "accuracy .995  " in _console(accuracy=accuracy)
    assert RunVerdict("suspicious", 1, 1, HELD_OUT, accuracy, 0.9).change == "held-out .995 ▼ .900"
    assert signed(accuracy - 1, fraction) == "-.005"
    assert metric_text("accuracy", accuracy) == ".995"


def test_a_learning_rate_is_the_same_everywhere() -> None:
    facts = KnownFacts()
    facts.configs["r"] = {"optimizer.learning_rate": 3e-5}
    cells = Cells(CELLS.store, facts, CELLS.trends)
    row = RunRow.from_summary(ROW)
    assert column("optimizer.learning_rate").text(cells, row) == metric_text("learning_rate", 3e-5) == "3e-5"
    config = facts_of("r", {"config_text": "optimizer:\n  learning_rate: 3.0e-05\n"}).config
    assert config["optimizer.learning_rate"] == "3e-5"
    assert changed({"optimizer.learning_rate": [3e-5, 0.0003]}) == "optimizer.learning_rate 3e-5 → 3e-4"


def test_a_run_that_was_resumed_shows_each_config() -> None:
    events = [{"event": "resumed", "step": 40, "changes": {"optimizer.learning_rate": [1e-4, 2e-3]}}]
    found = facts_of("r", {"config_text": "optimizer:\n  learning_rate: 0.002\n", "events": events})
    assert found.config["optimizer.learning_rate"] == "1e-4→2e-3"
    assert [event.step for event in found.events] == [40]


FORMATTED = re.compile(r"\{[^{}]*:[+,]?\.([2-9]f|[0-9]+[ge])\}")
OWN = (
    "box/formatting.py", "kit/svg.py", "history/", "views/box/", "views/history/", "remote/agent/",
    "views/rollouts/model/tokens.py",
)  # fmt: skip
"""Ticks, pictures, hours, what the box has, values of eight bits."""


def test_the_app_formats_no_metric_by_itself() -> None:
    for folder in ("grpo_tui", "remote"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            name = path.relative_to(REPOSITORY).as_posix()
            if not any(own in name for own in OWN):
                assert not FORMATTED.search(path.read_text()), f"{name}: use grpo_train/run_dir/display.py"


def signs() -> dict[str, str]:
    """The table of signs in the docs."""
    page = (REPOSITORY / "docs/views.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", page[page.index("## Signs") :], re.MULTILINE)
    return {sign: meaning for cells, meaning in rows[1:] for sign in cells.replace("`", "").split()}


def test_every_sign_has_one_meaning() -> None:
    known = signs()
    used = {mark for mark, *_ in (*VERDICTS.values(), *STATES.values())} | {*MARKS.values(), *GLYPHS.values()}
    assert {*used, *EVENT_WORDS} <= {*known, "Δ", "R", "S", "N", "@"}
    assert not {*EVENT_WORDS} & {look.letter for look in RUN_LOOKS}, "letters of runs"
    for folder in ("grpo_tui", "remote"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    shapes = {c for c in node.value if "\u25a0" <= c <= "\u27bf" or c in "≠∅"}
                    assert shapes <= set(known), f"{path.name}: {shapes - set(known)} is not in the table of signs"


def test_a_number_that_is_not_finite() -> None:
    assert [metric_text("accuracy", value) for value in (None, math.nan, math.inf)] == ["–", "NaN", "∞"]
