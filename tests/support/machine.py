"""A box as a machine: sshd, tmux, agents and runs in a PID namespace with its own boot ID and clock.

    with Machine(folder) as machine:
        with connected(machine.box(root=str(root)), host_keys_file=machine.hosts) as (client, recorder):
            machine.set_clock("+5h")
            machine.power_off()
            machine.power_on()

Needs the superuser. Nothing of this machine changes, its clock least of all.
"""

from __future__ import annotations

import secrets
import shlex
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from remote.boxes import Box
from tests.support.agent import eventually
from tests.support.faketime import faked_clock
from tests.support.patience import PATIENCE
from tests.support.sshd import Sshd

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
START = """\
mount --bind {boot_id} /proc/sys/kernel/random/boot_id
mount --bind /dev/shm /mnt
mount -t tmpfs tmpfs /dev/shm
for kept in /mnt/pytest-of-*; do
    there=/dev/shm/${{kept#/mnt/}}
    test -d "$kept" && mkdir "$there" && mount --bind "$kept" "$there"
done
umount /mnt
hostname {host}
"$@" & wait
"""
"""The first process, which waits for orphans. libfaketime leaves files in /dev/shm; those of the tests may be there."""


class Machine(Sshd):
    """A server whose processes end together, at once, when the power is cut."""

    def __init__(self, folder: Path, host: str = "h200", *, sets_clock: bool = True) -> None:
        """``sets_clock``: its clock can be set, through libfaketime."""
        self.host, self._folder = host, folder / "machine"
        self._folder.mkdir()
        self._boot_id, self.clock = self._folder / "boot_id", self._folder / "clock"
        self.tmux_socket = f"grpo-machine-{secrets.token_hex(4)}"
        self.new_boot()
        self.set_clock("+0")
        variables = faked_clock(self.clock) if sets_clock else {}
        self.engine = self._folder / "grpo-train"  # agents pass on no LD_PRELOAD to a run
        words = shlex.join(f"{name}={value}" for name, value in variables.items())
        self.engine.write_text(f'#!/bin/sh\nexec env {words} {sys.executable} {FAKE_ENGINE} "$@"\n')
        self.engine.chmod(0o755)
        super().__init__(folder, environment=variables)
        (self.home / ".faketimerc").symlink_to(self.clock)  # for an agent, which drops the variable
        self.hosts = self._folder / "known_hosts"
        self.hosts.write_text(f"{host} {' '.join(Path(f'{self.host_key}.pub').read_text().split()[:2])}\n")

    def _namespace(self) -> list[str]:
        start = START.format(boot_id=self._boot_id, host=self.host)
        return ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "sh", "-c", start, "sh"]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.power_off()
        Path(f"/tmp/tmux-0/{self.tmux_socket}").unlink(missing_ok=True)

    def box(self, **fields: Any) -> Box:
        values = {"host": "127.0.0.1", "port": self.port, "user": self.user, "key": str(self.user_key)}
        values |= {"engine": [str(self.engine)], "tmux_socket": self.tmux_socket, **fields}
        return Box(self.host, **values)

    def run(self, *command: str) -> str:
        """Output of a command on the machine, as the superuser and with the true clock."""
        target = ["nsenter", "--target", str(self.init), "--pid", "--mount", "--uts"]
        return subprocess.run([*target, *command], capture_output=True, text=True, check=True, timeout=20).stdout

    @property
    def init(self) -> int:
        """Pid of the machine's first process, as this machine sees it."""
        assert self._process
        (child,) = psutil.Process(self._process.pid).children()
        return child.pid

    def new_boot(self) -> None:
        """The next start has another boot ID."""
        self._boot_id.write_text(f"{uuid.uuid4()}\n")

    def power_off(self) -> None:
        """End every process at once, without notice and without flushing."""
        process, init = self._process, self.init
        if process is None:
            return
        self._process = None
        process.send_signal(signal.SIGKILL)
        process.wait(60 * PATIENCE)
        eventually(lambda: not Path(f"/proc/{init}").exists())  # the last of the namespace

    def power_on(self) -> None:
        """Start again, on the same port, with another boot ID."""
        self.new_boot()
        self.start()

    def set_clock(self, setting: str) -> None:
        """Set the clock, relative to the true one (``+5h``), for every process at once."""
        new = self.clock.with_suffix(".new")
        new.write_text(f"{setting}\n")
        new.replace(self.clock)
