"""The list of boxes: ``python tests/bench/fleet.py``, about two minutes; needs the superuser (a network of its own).

Ten boxes, three of them black holes (a listener that never speaks, an address whose packets vanish, a refusing port),
against one box. What is compared is measured in turns; each line has its aim. Times are from the key ``b`` to the frame
that shows the list, and from the same key until every box that can be reached has said what it does.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_tui.box.fleet import Fleet
from remote.boxes import Box, add_box
from tests.bench.terminal import Terminal
from tests.support.network import own_network
from tests.support.sshd import Sshd

TURNS = 7
REACHED = 7
"""Of the ten."""
VANISHED = "198.51.100.7"
LISTED = b"runs on other boxes continue"


def drop_packets() -> None:
    """A route on which every packet vanishes: the neighbor is known, and nobody is there."""
    for words in (
        "link add holes type veth peer name holes-peer",
        "address add 198.51.100.1/24 dev holes",
        "link set holes up",
        "link set holes-peer up",
        f"neighbor add {VANISHED} lladdr 02:00:00:00:00:01 dev holes nud permanent",
    ):
        subprocess.run(["ip", *words.split()], check=True)


def first_frames(app: str, home: Path, files: list[Path]) -> list[float]:
    """Median seconds from the key to the list, per file; the programs take turns."""
    terminals = [Terminal([app, "--boxes", str(file), "--no-cache", "--fresh"], str(home)) for file in files]
    for terminal in terminals:
        terminal.until(b"box-0")
        terminal.rest(5.0)
    times: list[list[float]] = [[] for _ in files]
    for _ in range(TURNS):
        for kept, terminal in zip(times, terminals, strict=True):
            kept.append(terminal.press(b"b", LISTED))
            terminal.rest(2.0)
            os.write(terminal.terminal, b"\x1b")
    for terminal in terminals:
        terminal.close()
    return [statistics.median(kept) for kept in times]


def all_said(boxes: list[Box]) -> float:
    """Seconds until every box that can be reached has said what it does."""
    fleet, began = Fleet(boxes), time.monotonic()
    fleet.start()
    waiting = {box.name for box in boxes if box.name.startswith("box-")}
    while waiting:
        assert time.monotonic() < began + 60, waiting
        time.sleep(0.01)
        waiting = {name for name in waiting if (glance := fleet.glance(name)) is None or glance.gpus is None}
    taken = time.monotonic() - began
    fleet.close()
    time.sleep(2)
    return taken


def main() -> None:
    """Print the figures."""
    with own_network(), tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as silent:
        place = Path(folder)
        os.environ["XDG_CACHE_HOME"] = os.environ["XDG_CONFIG_HOME"] = folder
        os.environ.pop("SSH_AUTH_SOCK", None)
        drop_packets()
        with Sshd(place) as sshd:
            (place / "root").mkdir()
            login = {"user": sshd.user, "key": str(sshd.user_key), "root": str(place / "root")}
            boxes = [Box(f"box-{n}", host="127.0.0.1", port=sshd.port, **login) for n in range(REACHED)]
            holes = [
                Box("silent", host="127.0.0.1", port=silent.getsockname()[1], **login),
                Box("vanished", host=VANISHED, **login),
                Box("refusing", host="127.0.0.1", port=1, **login),
            ]
            key = " ".join(Path(f"{sshd.host_key}.pub").read_text().split()[:2])
            (place / "grpo-tui").mkdir()
            (place / "grpo-tui" / "known_hosts").write_text("".join(f"{box.name} {key}\n" for box in boxes))
            one, ten = place / "one.yaml", place / "ten.yaml"
            add_box(one, boxes[0])
            for box in [*boxes, *holes]:
                add_box(ten, box)
            app = str(Path(sys.executable).with_name("grpo-tui"))
            alone, together = first_frames(app, place, [one, ten])
            print(f"key to list, 1 box {alone * 1e3:.0f} ms, 10 boxes with 3 holes {together * 1e3:.0f} ms: "
                  f"{together / alone:.2f}x (aim: 2)")  # fmt: skip
            plain, holed = (
                statistics.median(times)
                for times in zip(*((all_said(boxes), all_said([*boxes, *holes])) for _ in range(3)), strict=True)
            )
            print(f"until {REACHED} boxes have said all {plain:.1f} s, with 3 holes beside them {holed:.1f} s: "
                  f"{holed / plain:.2f}x")  # fmt: skip


if __name__ == "__main__":
    main()
