"""Tables with a column per run: what is kept in place where they are too wide."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from grpo_tui.kit.lists import Palette
from grpo_tui.views.compare.tables import last_value, run_table

LETTERS = "ABCDEFGHIJKL"


def table(runs: int, rows: int, cells: int) -> list[list[Text]]:
    head = [Text("key"), *(Text(letter) for letter in LETTERS[:runs])]
    body = [[Text(f"section.key_{row}"), *(Text(LETTERS[run] * cells) for run in range(runs))] for row in range(rows)]
    return [head, *body]


def lines(runs: int, rows: int, cells: int, width: int, pinned: int = 0, current: int = 0) -> list[str]:
    return [line.plain for line in run_table(table(runs, rows, cells), width, Palette(), pinned, current)]


def test_a_table_that_fits_is_whole() -> None:
    assert lines(3, 2, 4, 80)[0].split() == ["key", "A", "B", "C"]


def test_few_rows_are_turned() -> None:
    found = lines(12, 2, 6, 40)
    assert [line.split()[0] for line in found] == ["key", *LETTERS]


def test_key_and_pinned_run_stay() -> None:
    for current in range(12):
        head, first, *_ = lines(12, 9, 8, 56, pinned=2, current=current)
        assert first.startswith("section.key_0")
        assert head.split()[0] == "key"
        shown = [word for word in head.split() if word in LETTERS]
        assert shown[0] == "C"
        assert LETTERS[current] in shown
        assert first.split()[1] == "C" * 8


def test_the_best_run_stays() -> None:
    for current in range(12):
        head = run_table(table(12, 9, 8), 56, Palette(), 2, current, best=9)[0].plain
        assert [word for word in head.split() if word in LETTERS][:2] == ["C", "J"]
    turned = run_table(table(12, 2, 6), 40, Palette(), 2, 0, best=9)
    assert [line.plain.split()[0] for line in turned][:4] == ["key", "C", "J", "A"]


def test_all_runs_are_shown_before_values_are_whole() -> None:
    head, first, *_ = lines(5, 9, 12, 72)
    assert head.split() == ["key", *"ABCDE"]
    assert "…" in first


def test_a_changed_value_is_cut_to_what_it_is_now() -> None:
    cells = [last_value(Text(value)).plain for value in ("1e-4→0.03 ≠", "1e-4→…→2e-3", "0.05", "–")]
    assert cells == ["→0.03 ≠", "→2e-3", "0.05", "–"]


def test_the_heading_counts_the_runs_beside() -> None:
    head = lines(12, 9, 8, 56, current=6)[0]
    shown = [word for word in head.split() if word in LETTERS]
    before, after = (int(word.strip("‹›")) for word in head.split() if "‹" in word or "›" in word)
    assert before + after + len(shown) == 12
    assert LETTERS[before + 1] == shown[1]


@given(
    runs=st.integers(2, 12),
    rows=st.integers(1, 9),
    cells=st.integers(1, 40),
    width=st.integers(20, 160),
    pinned=st.integers(0, 11),
    current=st.integers(0, 11),
)
def test_the_current_run_is_always_there(
    runs: int, rows: int, cells: int, width: int, pinned: int, current: int
) -> None:
    found = lines(runs, rows, cells, width, pinned % runs, current % runs)
    words = {line.split()[0] for line in found} | set(found[0].split())
    assert LETTERS[current % runs] in words
    assert LETTERS[pinned % runs] in words


def test_columns_of_a_run_stay_together() -> None:
    head = [Text("step"), *(Text(letter) for letter in "ABC"), Text("B − A"), Text("C − A")]
    rows = [[Text("100"), *(Text("." * 14) for _ in range(5))]]
    found = run_table([head, *rows], 70, Palette(), 0, 2, [[2, 4], [3, 5]])
    assert found[0].plain.split() == ["step", "‹1", "A", "C", "C", "−", "A"]
