"""The app's speed: ``python tests/bench/face.py [FOLDER]``. Frames and keys are ratios to a bare Textual app, taken in
turn with it; long logs to ``json.loads``, all in the same call.

Makes 200 small runs and one of 100,000 steps (198 MB), all finished, in FOLDER (kept) or a temporary one. The long one
is live while it is followed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_train.run_dir.files import utc_now
from grpo_train.run_dir.processes import identity
from tests.bench import leet
from tests.bench.index import METRICS, cpu, loads, row, write_run
from tests.bench.terminal import Terminal

TURNS = 5
BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    BINDINGS = [("question_mark", "echo", "")]
    def compose(self):
        yield Static("press n", id="text")
    def action_echo(self):
        self.query_one("#text").update("echoed")
Bare().run()
"""
PUSHING = """
from textual.app import App
from textual.screen import ModalScreen
from textual.widgets import Static
class Empty(ModalScreen):
    def compose(self):
        yield Static("pushed")
class Bare(App):
    BINDINGS = [("question_mark", "push", "")]
    def compose(self):
        yield Static("press n")
    def action_push(self):
        self.push_screen(Empty())
Bare().run()
"""
FOLLOWED_S = 20.0
SETTLED_S = 5.0
"""The first curves of the list have been asked for by then."""


def write_status(log: Path, state: str) -> None:
    """Let a run be in a state, in this process."""
    status = {**asdict(identity()), "state": state, "stage": "train", "total_steps": 400_000, "updated_at": utc_now()}
    (log.parent.parent / "status.json").write_text(json.dumps(status))


def frames(folder: Path) -> None:
    """The first frame, the list of 200 runs, and the help screen."""
    home, app = str(folder / "home"), str(Path(sys.executable).with_name("grpo-tui"))
    many = folder / "many"
    for number in range(200):
        write_status(write_run(many, f"small_{number:03}", 10, METRICS[:4]), "finished")
    bare = [sys.executable, "-c", BARE]
    kept = [app, "--root", str(many)]
    cases = {
        "bare": (bare, b"press n"),
        "pushing": ([sys.executable, "-c", PUSHING], b"press n"),
        "first frame": ([app, "--root", str(folder / "empty"), "--no-cache"], b"history"),
        "list of 200 runs": ([*kept, "--no-cache"], b"small_"),
        "list of 200 runs, kept by the laptop": (kept, b"small_"),
    }
    keys = {
        "bare": ("? in bare Textual", b"echoed"),
        "pushing": ("? to an empty screen", b"pushed"),
        "list of 200 runs": ("? to the help screen", b" keys "),
    }
    times: dict[str, list[float]] = {name: [] for name in [*cases, *(name for name, _ in keys.values())]}
    for turn in range(TURNS + 1):
        for name, (command, mark) in cases.items():
            terminal = Terminal(command, home)
            taken = terminal.until(mark)
            if not turn and "kept" in name:
                terminal.rest(8)  # it fills the cache
            if turn:  # the first turn compiles and fills caches
                times[name].append(taken)
                if name in keys:
                    key, shown = keys[name]
                    times[key].append(terminal.press(b"?", shown))
            terminal.close()
    seconds = {name: statistics.median(taken) for name, taken in times.items()}
    for name in cases:
        row(f"{name} / first frame of bare Textual", f"{seconds[name] / seconds['bare']:.2f}")
    row("list of 200 runs on the screen", f"{seconds['list of 200 runs']:.2f} s", "1 s")
    taken = seconds["? to the help screen"]
    echo, pushed = seconds["? in bare Textual"], seconds["? to an empty screen"]
    row("? to the help screen / its echo in bare Textual", f"{taken / echo:.1f}  ({taken * 1e3:.0f} ms)")
    row("? to the help screen / an empty screen in bare Textual", f"{taken / pushed:.1f}")


# ---------------------------------------------------------------------------------- the app in a process of its own


def agent_of(pid: int) -> int:
    """The agent that a process started, on this machine."""
    return psutil.Process(pid).children()[0].pid


async def shares(
    seconds: float, agent: int, each: Callable[[], None] = lambda: None, every: float = 1.0
) -> list[float]:
    """Shares of a core that this process and the agent use, in per cent, while ``each`` is called."""
    began, own, its = time.perf_counter(), time.process_time(), cpu(agent)
    while time.perf_counter() - began < seconds:
        each()
        await asyncio.sleep(every)
    wall = time.perf_counter() - began
    return [100 * (time.process_time() - own) / wall, 100 * (cpu(agent) - its) / wall]


async def app_figures(root: Path, run: str, follow: bool) -> dict[str, Any]:
    """What opening and following cost the app."""
    from grpo_tui.app import GrpoApp
    from grpo_tui.files import Options
    from grpo_tui.kit.desk import SelectRun
    from remote.boxes import Box
    from remote.protocol.frames import Decoder

    received = 0
    feed = Decoder.feed_sized

    def counted(decoder: Decoder, data: bytes) -> list[tuple[dict[str, Any], int]]:
        nonlocal received
        received += len(data)
        return feed(decoder, data)

    Decoder.feed_sized = counted  # type: ignore[method-assign,assignment]
    app = GrpoApp(Options(Box("local", kind="local", root=str(root)), fresh=True))  # selects another run first
    app.animation_level = "none"
    figures: dict[str, Any] = {}
    async with app.run_test(size=(120, 40)) as pilot:

        async def until(condition: Callable[[], Any]) -> None:
            while not condition():
                await pilot.pause(0.01)

        store = app.store
        await until(lambda: store.runs)
        agent = agent_of(os.getpid())
        if follow:
            await pilot.pause(SETTLED_S)
            figures["idle"] = await shares(FOLLOWED_S, agent)
        began, used, before = time.perf_counter(), time.process_time(), received
        app.post_message(SelectRun(run))
        await until(lambda: store.logs is not None and store.logs.run == run and store.logs.rows.last is not None)
        figures["last values"] = time.perf_counter() - began
        curves = store.curves["home"]
        await until(lambda: curves.is_answered and not curves.is_coarse and curves.curves)
        figures["whole"] = time.perf_counter() - began
        figures["cpu"] = time.process_time() - used
        figures["index"] = max(map(cpu, leet.processes(agent)[1:]), default=0.0)
        await pilot.pause(1)
        figures["bytes"] = received - before
        log = root / "training_runs" / run / "logs" / "train_log.jsonl"
        if not follow:  # rows that are taken away again would cost the index
            return figures
        write_status(log, "running")
        await until(lambda: store.run is not None and store.run.is_live)
        size, step = log.stat().st_size, 200_000

        def grow() -> None:
            nonlocal step
            step += 1
            values = ", ".join(f'"{metric}": {step % 7}' for metric in METRICS)
            with log.open("a") as file:
                file.write(f'{{"step": {step}, "time": "{utc_now()}", {values}, "health": []}}\n')

        figures["follow 1"] = await shares(FOLLOWED_S, agent, grow, 1.0)
        figures["follow 4"] = await shares(FOLLOWED_S, agent, grow, 0.25)
        os.truncate(log, size)
        write_status(log, "finished")
    lines = Path("/proc/self/status").read_text().splitlines()
    figures["peak"] = int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024
    return figures


def opened(root: Path, run: str, follow: bool) -> dict[str, Any]:
    """The figures of an app in a process of its own."""
    environment = {**os.environ, "XDG_STATE_HOME": str(root.parent / "state"), "HOME": str(root.parent / "home")}
    command = [sys.executable, __file__, "--app", str(root), run, *(["follow"] if follow else [])]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def long_run(folder: Path) -> None:
    """A run of 100,000 steps beside 200 small ones, opened and followed."""
    log = write_run(folder / "many", "long", 100_000, METRICS)
    write_status(log, "finished")
    shutil.rmtree(folder / "home" / ".grpo", ignore_errors=True)  # indexes of an earlier call
    wall, used = loads(log)
    row(f"json.loads over {log.stat().st_size / 1e6:.0f} MB", f"{wall:.2f} s, CPU {used:.2f} s")
    for state in ("never indexed", "indexed"):
        figures = opened(folder / "many", "long", follow=state == "indexed")
        row(f"last values, {state}", f"{figures['last values']:.2f} s", "0.5 s")
        if state == "indexed":
            row("whole curves, indexed", f"{figures['whole']:.2f} s", "0.3 s")
        else:
            row("whole curves, never indexed / json.loads", f"{figures['whole'] / wall:.2f}", "2.5")
        row("  CPU of the app / CPU of json.loads", f"{figures['cpu'] / used:.2f}")
        row("  CPU of the index / CPU of json.loads", f"{figures['index'] / used:.2f}")
    row("  bytes over the link", f"{figures['bytes'] / 1e6:.2f} MB", "1 MB")
    for name, aim in (("idle", "2 + 1 %"), ("follow 1", "2.5 %"), ("follow 4", "4 %")):
        title = "idle, 201 runs listed" if name == "idle" else f"followed live, {name[-1]} row(s) a second"
        row(f"{title}: CPU of app + agent", "{:.1f} + {:.1f} %".format(*figures[name]), aim)
    row("peak memory of the app", f"{figures['peak']} MiB", "120 MiB")


def main() -> None:
    """Print the figures."""
    if len(sys.argv) > 1 and sys.argv[1] == "--app":
        print(json.dumps(asyncio.run(app_figures(Path(sys.argv[2]), sys.argv[3], len(sys.argv) > 4))))
        return
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    print(f"load {os.getloadavg()[0]:.1f}")
    try:
        frames(folder)
        long_run(folder)
        leet.main()
    finally:
        if len(sys.argv) == 1:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
