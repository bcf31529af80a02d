"""Names and columns of the list of runs, without a screen."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from grpo_tui.box.formatting import GAP, Sized, fit
from grpo_tui.box.rows import RunRow
from grpo_tui.box.run_columns import fitting_name, short_names
from grpo_tui.box.run_facts import KnownFacts, Trends, trend_of
from grpo_tui.box.run_list import Order, RunList
from grpo_tui.box.store import Store
from grpo_tui.kit.lists import headings, row_text
from remote.protocol.logs import Columns

STAMPS = ("run_2026-11-20_22-10-41", "run_2026-11-20_18-02-07", "run_2026-11-19_09-30-00")
names = st.one_of(st.sampled_from(STAMPS), st.text("ab-_", min_size=1, max_size=8))
configs = st.dictionaries(
    st.sampled_from(("run.seed", "optimizer.learning_rate", "task.name", "x.y")),
    st.sampled_from((1, 2, 2e-6, "a", None)),
)
sizes = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9)), max_size=10)


@given(sizes, st.integers(0, 200), st.integers(1, 20), st.integers(1, 40))
def test_columns_fit_and_leave_in_order(columns: list[tuple[int, int]], room: int, least: int, more: int) -> None:
    sized = [Sized(str(index), width, rank) for index, (width, rank) in enumerate(columns)]
    first, *kept = fit(Sized("name", 60), sized, room, least, least + more)
    assert first.width + sum(GAP + column.width for column in kept) <= max(1, room)
    assert first.width >= least or not kept
    left = [column.rank for column in sized if column not in kept]
    assert all(column.rank <= min(left) for column in kept) if left else True
    assert kept == [column for column in sized if column in kept]


@given(st.integers(2, 30))
def test_names_that_differ_at_their_end_differ_when_cut(width: int) -> None:
    cut = [fitting_name(name, width) for name in ("collapsed_low_rate_a", "collapsed_low_rate_b")]
    assert cut[0] != cut[1]
    assert max(map(len, cut)) <= width


def test_columns_are_aligned_under_their_headings() -> None:
    columns = [Sized("a", 4, title="a", is_left=True), Sized("b", 5, title="b"), Sized("c", 0, title="c", gap=1)]
    text, spans = headings(columns, 1, "b", "↓")
    assert text.plain == " a        b↓ c"
    assert spans == [(1, 5, "a"), (7, 12, "b"), (13, 14, "c")]
    assert row_text(columns, [("xy", ""), Text("7"), ("long text", "")]).plain == "xy    7     long text"
    assert row_text(columns, [("sixsix", ""), ("7", ""), ("", "")]).plain == "six…      7 "


@given(st.dictionaries(names, configs, max_size=8))
def test_short_names_stay_different(known: dict[str, dict[str, object]]) -> None:
    found = short_names(list(known), known)
    shown = [found.short.get(run, run) for run in known]
    assert len(set(shown)) == len(known)
    assert all(shown)


def test_names_say_what_differs() -> None:
    base = {"task.name": "gsm8k", "model.backbone": "Qwen/Qwen2.5-1.5B", "model.adapter": "lora"}
    known: dict[str, dict[str, object]] = {
        STAMPS[0]: {**base, "optimizer.learning_rate": 2e-6, "run.seed": 1},
        STAMPS[1]: {**base, "optimizer.learning_rate": 2e-6, "run.seed": 2},
        STAMPS[2]: {**base, "optimizer.learning_rate": 1e-5, "run.seed": 1},
    }
    found = short_names(STAMPS, known)
    assert list(found.short.values()) == ["lr 2e-6 · seed 1", "lr 2e-6 · seed 2", "lr 1e-5 · seed 1"]
    assert found.same == "gsm8k · Qwen2.5-1.5B · LoRA"
    assert short_names(STAMPS[:1], known).short == {}
    given_names = short_names(("gsm8k-a-seed1", "gsm8k-b-seed1"), {})
    assert given_names.short == {"gsm8k-a-seed1": "a", "gsm8k-b-seed1": "b"}
    assert given_names.same == "gsm8k · seed1"


def row(name: str, step: int = 1, **more: object) -> RunRow:
    return RunRow(name, "running", step=step, started="2026-11-22T08:00:00Z", **more)  # type: ignore[arg-type]


def test_each_run_is_asked_for_once() -> None:
    clock = [0.0]
    facts = KnownFacts(lambda: clock[0])
    rows = [row(f"r{index}") for index in range(250)] + [row("old", layout="rl_runs")]
    asked = []
    while (params := facts.due(rows)) is not None:
        assert facts.due(rows) is None, "one is in flight"
        asked += params["runs"]
        facts.answer(params, {"facts": [{"run": run, "config": {"run.seed": 1}} for run in params["runs"]], "same": {}})
    assert asked == [f"r{index}" for index in range(250)]
    assert facts.config("r7", "seed") == 1
    facts.wanted = {"kl"}
    while (params := facts.due(rows)) is not None:
        assert params["config"] is False
        facts.answer(params, {"facts": [{"run": run, "metrics": {"kl": "NaN"}} for run in params["runs"]], "same": {}})
        clock[0] += 10
    rows[0] = row("r0", step=2)
    params = facts.due(rows)
    assert params is not None
    assert params["runs"] == ["r0"], "only the run that has logged since"
    facts.asking.end("facts", "no")
    assert facts.due(rows) is None
    clock[0] += 10
    assert facts.due(rows) is not None


def test_trends_are_asked_for_one_by_one() -> None:
    clock = [0.0]
    trends = Trends(lambda: clock[0])
    rows = [row("a", step=5), row("b", step=7), row("new", step=0)]
    first = trends.due(rows)
    assert first is not None
    assert first["run"] == "a"
    assert trends.due(rows) is None, "one is in flight"
    trends.answer({"state": "coarse", "series": []})
    assert trends.of("a") is None, "a coarse curve is not shown"
    second = trends.due(rows)
    assert second is not None
    assert second["run"] == "b"
    trends.fail()
    clock[0] += 2
    assert (trends.due(rows) or {})["run"] == "a"


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=16, max_size=16))
def test_a_curve_fills_its_cells(values: list[float | None]) -> None:
    smooth = array("d", [0.0 if value is None else value for value in values])
    count = array("d", [float(value is not None) for value in values])
    columns = Columns(smooth, smooth, smooth, smooth, smooth, count, array("d", [0.0] * 16))
    found = trend_of(columns)
    assert len(found.curve) == (8 if any(count) else 0)
    known = [value for value in values if value is not None]
    assert (found.last is None, found.best is None) == (not known, not known)
    for cell, text in enumerate(found.curve):
        assert (text == " ") is not any(count[2 * cell : 2 * cell + 2])


def _logged(values: list[float]) -> Columns:
    column = array("d", values)
    return Columns(column, column, column, column, column, array("d", [1.0] * len(values)), array("d", [0.0] * 1))


def test_the_best_reward_is_a_mean_and_has_its_step() -> None:
    rewards = [1.0] * 60 + [2.0] * 30 + [0.0] * 37 + [9.0]
    steps = [10.0 * step for step in range(1, 129)]
    found = trend_of(_logged(rewards), _logged(steps))
    assert found.best == 2.0, "9.0 is one lucky step"
    assert 640 <= (found.best_step or 0) <= 870
    assert found.last == 0.9


def test_the_average_of_a_short_run_is_of_more_than_one_step() -> None:
    assert trend_of(_logged([0.0, 0.0, 1.0, 0.0, 1.0, 0.0])).last == 1 / 3


def listed(runs: RunList, *rows: RunRow) -> list[str]:
    store = Store("box")
    store.runs = list(rows)
    runs.update(store)
    return [one.name for one in runs.rows]


def test_live_runs_come_first_unless_an_order_is_chosen() -> None:
    rows = [RunRow("new", "finished", step=5, reward=0.9), RunRow("old", "running", step=2, reward=0.1)]
    rows.append(RunRow("oldest", "stopped", step=9, reward=0.5))
    assert listed(RunList(), *rows) == ["old", "new", "oldest"]
    assert listed(RunList(order=Order("reward")), *rows) == ["new", "oldest", "old"]


def test_what_differs_gets_columns_where_there_is_room() -> None:
    runs = RunList()
    runs.facts.configs = {
        "a": {"optimizer.learning_rate": 3e-5, "model.lora_rank": 64, "run.save_every": 5, "task.name": "gsm8k"},
        "b": {"optimizer.learning_rate": 3e-4, "model.lora_rank": 16, "run.save_every": 9, "task.name": "gsm8k"},
    }
    rows = [RunRow(name, "finished", step=5, note=f"note of {name}", layout="run") for name in "ab"]
    listed(runs, *rows)
    assert runs.names.keys == ("optimizer.learning_rate", "model.lora_rank")
    titles = [one.title for one in runs.shown_columns()]
    assert titles[-3:] == ["lr", "r", "note"]
    assert titles.index("best avg") < titles.index("last") < titles.index("held-out") < titles.index("at step")
    runs.columns = ("state", "step")
    assert [one.id for one in runs.shown_columns()] == ["state", "step"], "what the user has chosen"


def test_keys_in_every_name_get_no_column() -> None:
    known: dict[str, dict[str, object]] = {
        STAMPS[0]: {"optimizer.learning_rate": 2e-6, "run.seed": 1},
        STAMPS[1]: {"optimizer.learning_rate": 1e-5, "run.seed": 1},
    }
    assert short_names(STAMPS[:2], known).keys == ()
    assert short_names([*STAMPS[:2], "mine"], {**known, "mine": known[STAMPS[0]]}).keys == ("optimizer.learning_rate",)


def test_a_number_in_a_name_stays_whole() -> None:
    names = short_names(["addition_lr3.0e-5", "addition_lr3.0e-4"], {})
    assert names.short == {"addition_lr3.0e-5": "lr3.0e-5", "addition_lr3.0e-4": "lr3.0e-4"}


def test_a_number_is_not_a_name() -> None:
    assert short_names(["lr_scan_0", "lr_scan_1"], {}).short == {"lr_scan_0": "scan_0", "lr_scan_1": "scan_1"}
    assert short_names(["seed_0", "seed_1"], {}).short == {}
