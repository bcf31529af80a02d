"""SLURM's accounting for a cluster of the tests: slurmdbd and MariaDB, in the folder of the cluster."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.agent import eventually
from tests.support.ports import free_ports
from tests.support.slurm import Slurm

INSTALL = "apt-get install -y --no-install-recommends slurmdbd mariadb-server"
ACCOUNT = "lab"
CONFIG = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=x
StorageLoc=accounting
"""
GRANTS = (
    "create database accounting; create user slurm@localhost identified by 'x'; grant all on *.* to slurm@localhost"
)


def missing() -> str:
    """Why there can be no accounting here; "" if there can."""
    absent = [name for name in ("slurmdbd", "mariadbd") if not shutil.which(name, path="/usr/sbin:/usr/bin")]
    return f"{', '.join(absent)} not installed: {INSTALL}" if absent else ""


@contextmanager
def accounting_cluster(folder: Path) -> Iterator[Slurm]:
    """A cluster where a job needs an account: ACCOUNT is the only one."""
    port, database_port = free_ports(2)
    data, socket = folder / "db", folder / "db.socket"
    options = ["--user=root", f"--datadir={data}"]
    install = ["mariadb-install-db", *options, "--auth-root-authentication-method=normal"]
    subprocess.run(install, check=True, capture_output=True)
    slurm = Slurm(folder, grace_s=0, kill_wait_s=20, accounting_port=port)
    config = folder / "slurmdbd.conf"
    config.write_text(CONFIG.format(folder=folder, port=port, database_port=database_port))
    config.chmod(0o600)
    try:
        where = [f"--socket={socket}", f"--port={database_port}", "--bind-address=127.0.0.1"]
        slurm.start_program("mariadbd", "mariadbd", "--no-defaults", *options, *where, f"--pid-file={folder}/db.pid")
        query = ["mariadb", f"--socket={socket}", "-e", GRANTS]
        eventually(lambda: subprocess.run(query, capture_output=True).returncode == 0, 30, "MariaDB")
        slurm.start_munge()
        slurm.start_program("slurmdbd", "slurmdbd", "-D")
        eventually(lambda: "lab" in slurm.run("sacctmgr", "-i", "add", "cluster", "lab", check=False), 30, "slurmdbd")
        slurm.run("sacctmgr", "-i", "add", "account", ACCOUNT)
        slurm.run("sacctmgr", "-i", "add", "user", "root", f"account={ACCOUNT}")
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
