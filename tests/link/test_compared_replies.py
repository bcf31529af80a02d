"""Whatever a box replies about compared runs, the tables are made."""

from __future__ import annotations

from array import array
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.box.rows import RunRow
from grpo_tui.box.store import Store
from grpo_tui.kit.lists import Palette
from grpo_tui.kit.plot import Bitmap, evened, fitting_ticks, plot_marks, view_of_marks, x_labels
from grpo_tui.views.compare.model import Comparison, PairedResults, facts_of
from grpo_tui.views.compare.standing import TRACKED
from grpo_tui.views.compare.tables import CompareSource, ConfigSource, EvaluationsSource, StandingSource
from remote import gate
from remote.protocol import RemoteError
from remote.protocol.frames import pack
from tests.link.test_gate import EXAMPLES, unsafe
from tests.support.any_json import RESULTS, mutated

SERIES = {
    **RESULTS["series"], "state": "whole",
    "series": [
        {**RESULTS["series"]["series"][0], "metric": name, "columns": pack([array("d", [1.0, 2.0])] * 8)}
        for name in TRACKED
    ],
}  # fmt: skip
REPLIES = {name: {**RESULTS, "series": SERIES}[name] for name in ("series", "show_run", "compare_evaluations")}


@EXAMPLES
@given(
    st.sampled_from(sorted(REPLIES)).flatmap(lambda op: st.tuples(st.just(op), mutated([REPLIES[op]]))),
    st.sampled_from([1e-300, 1.0, -1e15, 1e299]),
)
def test_any_value_about_a_compared_run(reply: tuple[str, Any], size: float) -> None:
    comparison, paired, store = Comparison(), PairedResults(), Store("box", 2.5)
    comparison.follow(["middle", "last"], {"middle": RunRow("middle", "running", step=9, nproc=10**15)})
    comparison.show(["kl"], 2)
    received = {op: gate.reply(op, {"ok": True, "result": result}) for op, result in REPLIES.items()}
    with suppress(RemoteError):  # it was refused; the others stay
        received[reply[0]] = gate.reply(reply[0], {"ok": True, "result": reply[1]})
    for run in comparison.runs:
        run.curves.due()
        for row in received["series"]["series"]:
            if "columns" in row:
                row["columns"].sum[0] = size
        run.curves.take(received["series"])
        run.facts = facts_of("middle", received["show_run"])
    paired.due(comparison.pin, comparison.runs)
    paired.answer(received["compare_evaluations"])
    if (ends := comparison.ends) is not None:
        assert ends[0] < ends[1]
        for run in comparison.runs:
            for curve in run.curves.curves.values():
                view = view_of_marks(curve.marks, *ends)
                plot_marks(Bitmap(20, 5), view, curve.marks)
                for axis in ("step", "time", "elapsed"):
                    x_labels(view.x_low, view.x_high, 60, axis)
                evened(view, 6, False)
                fitting_ticks(view, 6, False)
    sources: list[CompareSource] = [
        StandingSource(store, comparison), ConfigSource(store, comparison, "u"),
        EvaluationsSource(store, comparison, paired, "F"),
    ]  # fmt: skip
    for source in sources:
        for width in (20, 200):
            assert not unsafe("".join(line.plain for line in source.layout(width, Palette())))
