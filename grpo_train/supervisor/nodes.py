"""Several machines that train one run: torchrun's own rendezvous, and the file that announces it. Torch-free.

All see the run directory on one disk. The first machine's supervisor owns the status. It announces a stage of training
in ``control/nodes.json`` and removes that at the stage's end; :mod:`grpo_train.supervisor.join` on each other machine
starts that machine's processes, and ends them when the announcement is gone. In a SLURM job srun starts them
(:mod:`grpo_train.supervisor.stages`).
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir, RunDirError, sha256
from grpo_train.run_dir.code import commit_of
from grpo_train.run_dir.files import atomic_write, read_json, to_json

ADDRESS_VARIABLE = "GRPO_RENDEZVOUS"
"""``HOST:PORT`` of the first machine, as the others reach it."""
PORT = 29_400
LIBRARIES = ("torch", "transformers", "peft")


@dataclass(frozen=True)
class Meeting:
    """A stage of training that several machines take part in."""

    id: str
    endpoint: str
    nodes: int
    processes: int
    """Per machine."""
    train: list[str]
    """Arguments of ``python -m grpo_train.train`` after the run directory."""
    config: str
    """SHA-256 of the run's config.yaml."""
    versions: dict[str, str]
    """Of the engine and its libraries on the first machine."""

    def torchrun(self, node: int) -> list[str]:
        """torchrun's options on a machine. The static rendezvous: with c10d, rank 0 might be on any of them."""
        host, _, port = self.endpoint.rpartition(":")
        return [f"--nnodes={self.nodes}", f"--node-rank={node}", f"--master-addr={host}", f"--master-port={port}"]


@contextmanager
def announced(run: RunDir, config: Config, train: list[str]) -> Iterator[Meeting]:
    """Announce a stage of training to the other machines. Raises OSError, and RunDirError for a bad GRPO_RENDEZVOUS."""
    nodes, digest = config.run.nodes, sha256(run.config_file)
    processes = config.run.nproc // nodes
    meeting = Meeting(secrets.token_hex(8), _endpoint(), nodes, processes, train, digest, _versions())
    atomic_write(_file(run), to_json(asdict(meeting)) + "\n")
    try:
        yield meeting
    finally:
        for file in (_file(run), *(run.path / "control").glob("node_*")):
            with suppress(OSError):  # another machine's, on NFS
                file.unlink()


def read_meeting(run: RunDir) -> Meeting | None:
    """The stage that machines take part in now; None without one, and for a file of another version."""
    found = read_json(_file(run))
    with suppress(TypeError):  # of another version
        return Meeting(**found) if found else None
    return None


def take_place(run: RunDir, meeting: Meeting) -> int:
    """This machine's node rank in a meeting, from 1 on. Raises RunDirError (``nodes_complete``) if all are taken."""
    for node in range(1, meeting.nodes):
        with suppress(FileExistsError):  # another machine's place
            os.close(os.open(run.path / "control" / f"node_{meeting.id}_{node}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            return node
    raise RunDirError(
        f"{run.name} trains on {meeting.nodes} machines, and all have joined; for more of them, resume it with "
        "--set run.nodes=N --nproc P",
        code="nodes_complete",
    )


def count_joined(run: RunDir, meeting: Meeting) -> int:
    """Number of machines in a meeting."""
    return 1 + len(list((run.path / "control").glob(f"node_{meeting.id}_*")))


def difference(run: RunDir, meeting: Meeting) -> str:
    """What prevents this machine from taking part; "" if nothing."""
    if (theirs := meeting.config) != sha256(run.config_file):
        return (
            f"{run.config_file} differs between the machines (SHA-256 {theirs[:8]} on the first one); all must see one "
            "run directory, on a shared disk"
        )
    here = _versions()
    differing = [name for name in meeting.versions if meeting.versions[name] != here.get(name)]
    if not differing:
        return ""
    words = ", ".join(
        f"{name} {here.get(name) or 'none'} here and {meeting.versions[name]} there" for name in differing
    )
    return f"this machine's engine differs from the first one's: {words}; install the same on both"


def _endpoint() -> str:
    """Where the others reach this machine: as the user says, or its address on the default route and a free port."""
    given = os.environ.get(ADDRESS_VARIABLE, "")
    if given:
        host, _, port = given.rpartition(":")
        if not host or not port.isdigit():
            raise RunDirError(f"{ADDRESS_VARIABLE} is '{given}'; expected HOST:PORT of this machine", code="bad_config")
        return given
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
            probe.connect(("192.0.2.1", PORT))  # RFC 5737: no machine has this address
            host = probe.getsockname()[0]
    except OSError:  # no route: a machine without a network
        host = socket.gethostname()
    with socket.socket() as probe:
        try:
            probe.bind(("", PORT))
        except OSError:  # another run's
            probe.bind(("", 0))
        return f"{host}:{probe.getsockname()[1]}"


def _versions() -> dict[str, str]:
    found: dict[str, Any] = {"commit": commit_of()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # not installed here
            found[name] = ""
    return found


def _file(run: RunDir) -> Path:
    return run.path / "control" / "nodes.json"
