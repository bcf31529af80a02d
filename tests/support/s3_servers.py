"""Real S3 servers over https: rclone checks passwords and Content-MD5; moto believes everything.

A test process starts each of them once; every test gets a bucket of its own.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from grpo_train.backup.access import Access
from tests.support.patience import eventually

KEY_ID, SECRET = "test-key-id-of-a-user", "canary-secret-of-a-user"
_count = itertools.count()


@dataclass(frozen=True)
class Server:
    """A running server."""

    kind: str
    endpoint: str
    ca_file: str
    folder: Path
    """Of rclone: its buckets. It caches what is in them: look, do not change."""
    pid: int = 0

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    def new_bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"bucket-{next(_count)}"
        client(self.endpoint, self.ca_file).create_bucket(Bucket=name)
        return name


def access(source: str = "the test") -> Access:
    """The credentials that the servers accept."""
    return Access(source, KEY_ID, SECRET)


@functools.cache
def client(endpoint: str, ca_file: str):
    """A plain boto3 client, to look at a bucket without our code."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        verify=ca_file,
        region_name="us-east-1",
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
    )


@functools.cache
def server(kind: str) -> Server:
    """The running server of a kind, ``rclone`` or ``moto``, for all tests of this process."""
    folder = _folder() / kind
    folder.mkdir()
    running, process = _started(kind, folder)
    atexit.register(process.kill)
    return running


@contextmanager
def running_rclone(folder: Path) -> Iterator[Server]:
    """A server of its own for the buckets in ``folder``."""
    running, process = _started("rclone", folder)
    try:
        yield running
    finally:
        process.kill()
        process.wait()


def _started(kind: str, folder: Path) -> tuple[Server, subprocess.Popen[bytes]]:
    cert, key = certificate()
    programs = Path(sys.executable).parent
    if kind == "rclone":
        command = [str(programs / "rclone"), "serve", "s3", "--addr", "127.0.0.1:0", "--auth-key", f"{KEY_ID},{SECRET}"]
        command += ["--config", "", "--cert", cert, "--key", key, str(folder)]
    else:
        command = [str(programs / "moto_server"), "-H", "127.0.0.1", "-p", "0", "-c", cert, "-k", key]
    log = _folder() / f"{kind}-{next(_count)}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=_folder(), stdin=subprocess.DEVNULL)

    def address() -> re.Match[str] | None:
        found = re.search(r"https://127\.0\.0\.1:(\d+)", log.read_text())
        assert found or process.poll() is None, f"{kind} does not start: {log.read_text()}"
        return found

    try:
        found = eventually(address, 30, f"{kind} to start")
        assert found
        return Server(kind, found[0], cert, folder, process.pid), process
    except BaseException:
        process.kill()
        raise


@functools.cache
def certificate() -> tuple[str, str]:
    """Files of a certificate of this machine, signed by itself, and of its key."""
    cert, key = _folder() / "cert.pem", _folder() / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run([*command, "-out", cert, "-keyout", key], check=True, capture_output=True)
    return str(cert), str(key)


@functools.cache
def _folder() -> Path:
    """A folder that is removed with the process."""
    folder = tempfile.TemporaryDirectory(prefix="grpo-s3-")
    atexit.register(folder.cleanup)
    return Path(folder.name)
