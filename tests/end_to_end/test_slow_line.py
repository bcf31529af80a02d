"""A large run over a hotel's line of 1 MB/s and 120 ms: what fits on the screen travels, and the log stays."""

from __future__ import annotations

import time
from pathlib import Path

from tests.end_to_end.test_views import go_to, open_app
from tests.support.large_logs import LEVEL, SPIKE, new_run, write_train_log
from tests.support.line import Line
from tests.support.ssh_box import ssh_box

ROUND_TRIP_S = 0.12
BYTES_PER_S = 1e6


def open_in_charts(folder: Path, steps: int) -> None:
    """Open a run with that many steps, zoom into its curves and go to a step; at most 1 MB comes from the box."""
    root, spike = folder / "root", steps // 3 * 2
    size = write_train_log(new_run(root, "large", steps), steps, spike)
    with ssh_box(folder, root) as box, Line(box.proxy.port, ROUND_TRIP_S, folder / "line", BYTES_PER_S) as line:
        box.move_to(line.port)
        with box.app() as screen:
            open_app(screen, f"{steps}/{steps}")
            began = time.monotonic()
            screen.press("2")
            screen.wait_for(f"range: 1–{steps:,}", "grad_norm", f"{LEVEL}")
            first_s = time.monotonic() - began
            screen.wait_gone("coarse", timeout=120)
            whole_s = time.monotonic() - began
            opened = came(line)
            go_to(screen, f"step {spike:,}", "the charts at this step")
            screen.wait_for(f"step {spike:,}", f"{SPIKE}")
            screen.press("+")
            screen.wait_gone(f"range: 1–{steps:,}")
            screen.press("0")
            screen.wait_for(f"range: 1–{steps:,}")
    print(
        f"{steps:,} steps, {size / 1e6:.0f} MB: first curves after {first_s:.1f} s, whole ones after {whole_s:.1f} s; "
        f"{opened / 1e3:.0f} kB came until then, {came(line) / 1e3:.0f} kB in all"
    )
    assert opened <= came(line) <= 1_000_000


def came(line: Line) -> int:
    """Bytes from the box so far."""
    return sum(chunk.size for chunk in line.chunks() if chunk.back)


def test_a_large_run_over_a_slow_line(tmp_path: Path) -> None:
    open_in_charts(tmp_path, 10_000)
