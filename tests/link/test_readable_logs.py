"""Which logs may be followed: links, pipes, and files that are not on a disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.boxes import Box
from remote.events import LogFailed
from tests.support.agent import RawAgent, connected, eventually
from tests.support.logs import LogReader, reader_of, settle


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    file = tmp_path / "outside" / "secret"
    file.parent.mkdir()
    file.write_bytes(b"SECRET " * 1_000)
    return file


def linked_file(folder: Path, outside: Path) -> None:
    (folder / "log").symlink_to(outside)


def linked_folder(folder: Path, outside: Path) -> None:
    (folder / "logs").symlink_to(outside.parent)
    (folder / "log").symlink_to("logs/secret")


def chain(folder: Path, outside: Path) -> None:
    (folder / "a").symlink_to(os.path.relpath(outside, folder))
    (folder / "log").symlink_to("a")


@pytest.mark.parametrize("link", [linked_file, linked_folder, chain])
def test_links_out_of_the_root_are_refused(
    shared: RawAgent, folder: Path, outside: Path, link: Callable[[Path, Path], None]
) -> None:
    link(folder, outside)
    reader = reader_of(shared, folder / "log")
    error = reader.until_closed()
    assert error["code"] == "bad_path"
    assert "outside" in error["message"]
    assert "follow_links" in error["hint"]
    assert reader.content == b""


def test_a_log_replaced_by_a_link_is_refused(shared: RawAgent, folder: Path, outside: Path) -> None:
    log = folder / "log"
    log.write_bytes(b"fine\n")
    reader = reader_of(shared, log)
    reader.until(b"fine\n")
    (folder / "link").symlink_to(outside)
    os.replace(folder / "link", log)
    assert reader.until_closed()["code"] == "bad_path"
    assert reader.content == b"fine\n"
    eventually(lambda: not shared.open_files(folder))


def test_links_inside_the_root_are_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "run" / "logs").mkdir(parents=True)
    (real / "run" / "logs" / "log").write_bytes(b"one\n")
    (real / "latest").symlink_to("run")
    (real / "run" / "absolute").symlink_to(real / "run" / "logs" / "log")
    (tmp_path / "root").symlink_to(real)
    with connected(Box("local", kind="local", root=str(tmp_path / "root"))) as (client, recorder):
        for path in ("latest/logs/log", "run/absolute"):
            subscription = client.follow(path)
            eventually(lambda: recorder.logs.get(subscription) == b"one\n")  # noqa: B023


def test_follow_links_allows_links_out_of_the_root(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "log").symlink_to(outside)
    (tmp_path / "root" / "environment").symlink_to("/proc/self/environ")
    box = Box("local", kind="local", root=str(tmp_path / "root"), follow_links=True)
    with connected(box) as (client, recorder):
        subscription = client.follow("log")
        eventually(lambda: recorder.logs.get(subscription) == outside.read_bytes())
        client.follow("environment")
        assert "regular" in recorder.wait_for(LogFailed).message


@pytest.mark.parametrize("path", ["proc/self/environ", "proc/self/mem", "sys/kernel/uevent_seqnum", "dev/zero", "tmp"])
def test_files_that_are_not_on_a_disk_are_refused(path: str) -> None:
    agent = RawAgent(Path("/"))
    try:
        assert LogReader(agent, path).until_closed()["code"] == "bad_path"
    finally:
        agent.close()


def test_a_pipe_is_refused_and_does_not_notice(shared: RawAgent, folder: Path) -> None:
    os.mkfifo(folder / "log")
    assert reader_of(shared, folder / "log").until_closed()["code"] == "bad_path"
    with pytest.raises(OSError, match="No such device or address"):  # nobody has it open for reading
        os.open(folder / "log", os.O_WRONLY | os.O_NONBLOCK)


SWAPPER = """
import os, sys
log, outside = sys.argv[1:]
open(log + ".real", "wb").write(b"log\\n")
while True:
    os.link(log + ".real", log + ".new")
    os.replace(log + ".new", log)
    os.symlink(outside, log + ".new")
    os.replace(log + ".new", log)
"""


def test_a_swapped_link_never_leads_out(shared: RawAgent, folder: Path, outside: Path) -> None:
    """A path that is the log and a link out of the root in turn, thousands of times a second."""
    log, seen = folder / "log", len(shared.frames)

    def both_met() -> bool:
        readers.extend(reader_of(shared, log) for _ in range(20))
        shared.read(0.01)
        return len(readers) >= 400 and {"data", "closed"} <= {frame["type"] for frame in shared.frames[seen:]}

    with subprocess.Popen([sys.executable, "-c", SWAPPER, log, outside]) as swapper:
        try:
            eventually(log.exists)
            readers: list[LogReader] = []
            eventually(both_met)
            settle(readers[-1])
        finally:
            swapper.kill()
    assert {frame["text"] for frame in shared.frames[seen:] if frame["type"] == "data"} == {"log\n"}
    for reader in readers:
        reader.disconnect()
