"""Stores of backups beside ``rclone copy``: ``python tests/bench/backup.py``; ``BACKUP_BENCH_GB=3`` is the default.

Both send the same files to the same server (``rclone serve s3`` over https, on this machine), and fetch them again.
Ours proves every byte after it was sent, which that server cannot do for us: the bytes are read back and hashed.
"""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grpo_train.backup.store import Piece
from tests.support.s3_servers import KEY_ID, SECRET, Server, running_rclone
from tests.support.stores import bucket_store

GIB = float(os.environ.get("BACKUP_BENCH_GB", "3"))
FILES = 4
"""Files, and threads that move one each."""
_BLOCK = 16 << 20


def row(what: str, measured: str, aim: str = "") -> None:
    print(f"{what:<58}{measured:>12}{aim:>14}", flush=True)


def files(folder: Path) -> list[Piece]:
    """Files of random bytes."""
    folder.mkdir()
    pieces = []
    for number in range(FILES):
        path, digest, size = folder / f"weights-{number}", hashlib.sha256(), 0
        with path.open("wb") as file:
            while size < GIB * (1 << 30) / FILES:
                block = os.urandom(_BLOCK)
                digest.update(block)
                size += file.write(block)
        pieces.append(Piece(path, 0, size, digest.hexdigest()))
    return pieces


def rclone(running: Server, *arguments: str) -> float:
    """Seconds of a run of rclone with its default settings."""
    settings = {
        "TYPE": "s3",
        "PROVIDER": "Rclone",
        "ENDPOINT": running.endpoint,
        "ACCESS_KEY_ID": KEY_ID,
        "SECRET_ACCESS_KEY": SECRET,
    }
    environment = {f"RCLONE_CONFIG_BENCH_{name}": value for name, value in settings.items()}
    program = str(Path(sys.executable).with_name("rclone"))
    began = time.perf_counter()
    subprocess.run(
        [program, *arguments],
        env={**os.environ, **environment, "RCLONE_CA_CERT": running.ca_file, "RCLONE_CONFIG": ""},
        check=True,
    )
    return time.perf_counter() - began


def ours(running: Server, pieces: list[Piece], folder: Path) -> tuple[float, float, float]:
    """Seconds of sending, of proving, and of fetching with every byte hashed."""
    store = bucket_store(running, "ours", part=8 << 20)

    def fetch(piece: Piece) -> None:
        digest = hashlib.sha256()
        with (folder / piece.path.name).open("wb") as file:
            for chunk in store.read(piece.path.name):
                digest.update(chunk)
                file.write(chunk)
        assert digest.hexdigest() == piece.sha256

    folder.mkdir()
    seconds = []
    with ThreadPoolExecutor(FILES) as threads:
        for work in (
            lambda piece: store.write(piece.path.name, piece),
            lambda piece: store.prove(piece.path.name, piece.size, piece.sha256),
            fetch,
        ):
            began = time.perf_counter()
            list(threads.map(work, pieces))
            seconds.append(time.perf_counter() - began)
    return seconds[0], seconds[1], seconds[2]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="grpo-bench-") as name:
        folder = Path(name)
        for bucket in ("ours", "theirs"):
            (folder / "buckets" / bucket).mkdir(parents=True)
        pieces = files(folder / "files")
        with running_rclone(folder / "buckets") as running:
            sent, proven, fetched = ours(running, pieces, folder / "ours")
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            shutil.rmtree(folder / "ours")
            shutil.rmtree(folder / "buckets" / "ours")
            their_sent = rclone(running, "copy", str(folder / "files"), "bench:theirs")
            their_fetched = rclone(running, "copy", "bench:theirs", str(folder / "theirs"))
    row(f"{GIB:g} GiB in {FILES} files", "measured", "aim")
    row("send: ours, without the proof", f"{sent:.1f} s")
    row("  the proof (read back, hashed)", f"{proven:.1f} s")
    row("  the proof's share", f"{proven / (sent + proven):.0%}")
    row("send: rclone copy", f"{their_sent:.1f} s")
    row("  speed of ours to rclone's, proof included", f"{their_sent / (sent + proven):.2f}", "0.80")
    row("fetch: ours, hashed", f"{fetched:.1f} s")
    row("fetch: rclone copy", f"{their_fetched:.1f} s")
    row("  speed of ours to rclone's", f"{their_fetched / fetched:.2f}", "0.80")
    row("memory of ours", f"{memory} MiB", "400 MiB")


if __name__ == "__main__":
    main()
