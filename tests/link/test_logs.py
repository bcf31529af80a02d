"""Followed logs under everything that happens to files: each byte once, and another file is a rotation."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_tui.box.log import LineSplitter
from remote.boxes import Box
from remote.client import BoxClient
from remote.events import BoxGreeted, Link, LogRotated
from tests.support.agent import RawAgent, Recorder, Unwatched, connected, eventually
from tests.support.logs import LogReader, append, later, reader_of, root_of, run_histories, run_storm, settle

HEAD = b"the same first lines\n" * 400
"""Longer than the head of a cursor."""
SEED = os.environ.get("LINK_SEED", "12")


# rotations while a subscription stands ------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [b"", b"more than before\n" * 1000])
def test_another_inode_is_a_rotation_with_any_head(shared: RawAgent, folder: Path, ahead: bytes) -> None:
    log = folder / "log"
    log.write_bytes(HEAD)
    reader = reader_of(shared, log)
    reader.until(HEAD)
    (folder / "new").write_bytes(HEAD + ahead)
    os.replace(folder / "new", log)
    reader.until_rotated()
    reader.until(HEAD + ahead)
    assert reader.finished == [HEAD]


def test_a_renamed_log_is_read_to_its_end(shared: RawAgent, folder: Path) -> None:
    log = folder / "log"
    log.write_bytes(HEAD)
    reader = reader_of(shared, log)
    reader.until(HEAD)
    with log.open("ab", buffering=0) as writer:
        log.rename(folder / "log.1")
        writer.write(b"after the rename\n")
        reader.until(HEAD + b"after the rename\n")
        last = b"more than one frame holds\n" * 10_000
        writer.write(last)
        log.write_bytes(HEAD + b"the successor\n")
    reader.until_rotated()
    reader.until(HEAD + b"the successor\n")
    assert reader.finished == [HEAD + b"after the rename\n" + last]
    append(log, b"and on\n")
    reader.until(HEAD + b"the successor\nand on\n")


def test_a_deleted_log_is_closed_and_its_successor_begun(shared: RawAgent, folder: Path) -> None:
    log = folder / "log"
    log.write_bytes(HEAD)
    reader = reader_of(shared, log)
    reader.until(HEAD)
    assert shared.open_files(folder)
    log.unlink()
    settle(reader)
    assert not shared.open_files(folder), "the deleted file holds its space"
    log.write_bytes(HEAD + b"again\n")
    reader.until_rotated()
    reader.until(HEAD + b"again\n")


@pytest.mark.parametrize("kept", [0, 100, len(HEAD) - 1])
def test_truncated_in_place(shared: RawAgent, folder: Path, kept: int) -> None:
    log = folder / "log"
    log.write_bytes(HEAD)
    reader = reader_of(shared, log)
    reader.until(HEAD)
    os.truncate(log, kept)
    reader.until_rotated()
    append(log, b"new\n")
    reader.until(HEAD[:kept] + b"new\n")


@pytest.mark.parametrize("times", ["changed", "kept"])
@pytest.mark.parametrize("longer", [-1, 0, 20_000])
def test_copy_truncated_and_grown_again(shared: RawAgent, folder: Path, longer: int, times: str) -> None:
    """The same head, and as long as before, or longer, when the agent looks next."""
    log = folder / "log"
    old = HEAD + b"old\n" * 5_000
    log.write_bytes(old)
    reader = reader_of(shared, log)
    reader.until(old)
    settle(reader)
    new = (HEAD + b"new\n" * 50_000)[: len(old) + longer]
    facts = log.stat()
    with log.open("r+b", buffering=0) as file:
        file.truncate(0)
        file.write(new)
    later(log, facts)
    if times == "kept":
        os.utime(log, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        append(log, b"the next line\n")
        new += b"the next line\n"
    reader.until_rotated()
    reader.until(new)
    assert reader.finished == [old]


def test_a_writer_that_does_not_append_leaves_a_hole(shared: RawAgent, folder: Path) -> None:
    log = folder / "log"
    with log.open("wb", buffering=0) as writer:
        writer.write(HEAD)
        reader = reader_of(shared, log)
        reader.until(HEAD)
        os.truncate(log, 0)
        writer.write(b"at the old position\n")
    reader.until_rotated()
    reader.until(b"\0" * len(HEAD) + b"at the old position\n")


def test_appends_are_never_a_rotation(shared: RawAgent, folder: Path) -> None:
    log = folder / "log"
    log.touch()
    reader = reader_of(shared, log)
    content = b""
    for i in range(60):
        line = b"%d %s\n" % (i, b"x" * (i * 37))
        append(log, line)
        content += line
        reader.read_for(0.01)
    reader.until(content)
    os.utime(log)
    log.chmod(0o600)
    settle(reader)
    assert reader.rotations == 0


# cursors between connections ------------------------------------------------------------------------------


def restored(log: Path) -> None:
    """Another inode with the same bytes."""
    content = log.read_bytes()
    log.rename(log.with_name("away"))
    log.write_bytes(content)


def rewritten(log: Path) -> None:
    """The same head and length, other bytes before the cursor."""
    content = log.read_bytes()
    log.write_bytes(content[:-100] + b"?" * 100)


def replaced(log: Path) -> None:
    content = log.read_bytes()
    log.unlink()
    log.write_bytes(content[:8_000] + b"!" * 40_000)


def shortened(log: Path) -> None:
    os.truncate(log, 5_000)


def continues_after_a_restore(reader: LogReader, log: Path, more: bytes) -> None:
    """The log is restored and grows while the link is down."""
    content = log.read_bytes()
    reader.until(content)
    reader.disconnect()
    restored(log)
    append(log, more)
    reader.connect()
    reader.until(content + more)
    assert reader.rotations == 0


@pytest.mark.parametrize("size", [3_000, 20_000])
def test_a_restored_log_continues(shared: RawAgent, folder: Path, size: int) -> None:
    log = folder / "log"
    content = b"".join(b"line %d\n" % i for i in range(5_000))[:size]
    log.write_bytes(content)
    reader = reader_of(shared, log)
    continues_after_a_restore(reader, log, b"after the restore\n")
    reader.disconnect()
    reader.connect()
    append(log, b"again\n")
    reader.until(content + b"after the restore\nagain\n")
    assert (reader.cursor.device, reader.cursor.inode) == (log.stat().st_dev, log.stat().st_ino)


@pytest.mark.parametrize("change", [rewritten, replaced, shortened])
def test_any_other_log_is_rotated(shared: RawAgent, folder: Path, change: Callable[[Path], None]) -> None:
    log = folder / "log"
    log.write_bytes(HEAD + b"old\n" * 5_000)
    reader = reader_of(shared, log)
    reader.until(log.read_bytes())
    reader.disconnect()
    change(log)
    reader.connect()
    reader.until_rotated()
    reader.until(log.read_bytes())


def test_a_cursor_of_an_older_client_continues(shared: RawAgent, folder: Path) -> None:
    log = folder / "log"
    log.write_bytes(HEAD)
    reader = reader_of(shared, log, older=True)
    continues_after_a_restore(reader, log, b"more\n")
    reader.disconnect()
    shortened(log)
    reader.connect()
    reader.until_rotated()


def kill_the_agent_of_a_restored_log(client: BoxClient, recorder: Recorder, subscription: int, log: Path) -> None:
    """The log is restored and grows while there is no agent; all of it arrives."""
    pid = [event.host["pid"] for event in recorder.events if isinstance(event, BoxGreeted)][-1]
    mark = recorder.mark()
    os.kill(pid, signal.SIGKILL)
    recorder.wait_link(Link.LOST, after=mark)
    restored(log)
    append(log, b"while it is away\n")
    client.reconnect_now()
    eventually(lambda: recorder.logs[subscription] == log.read_bytes())
    recorder.wait_for(BoxGreeted, after=mark)


def test_a_killed_agent_costs_no_byte(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(HEAD)
    with connected(Box("local", kind="local", root=str(tmp_path)), process=True) as (client, recorder):
        subscription = client.follow("log")
        eventually(lambda: recorder.logs.get(subscription) == HEAD)
        for _ in range(2):
            kill_the_agent_of_a_restored_log(client, recorder, subscription, log)
        assert not [event for event in recorder.events if isinstance(event, LogRotated)]


# tails ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("line", "end"), [(3_000_000, b"\n"), (3_000_000, b""), (262_150, b"\n")])
def test_a_tail_shows_the_end_of_a_longer_line(shared: RawAgent, folder: Path, line: int, end: bytes) -> None:
    log = folder / "log"
    whole = b"before\n" + b"".join(b"%9d " % i for i in range(line // 10)) + end
    log.write_bytes(whole)
    reader = reader_of(shared, log, tail_bytes=262_144)
    reader.until(whole[-262_144:])
    append(log, b"the end\n")
    reader.until(whole[-262_144:] + b"the end\n")
    splitter = LineSplitter()
    first = len(whole) - 262_144
    lines = [text for _, text in splitter.feed(first, reader.content)]
    assert lines == (whole[-262_144:] + b"the end\n").split(b"\n")[:-1]


def test_a_tail_of_an_empty_log_is_not_used_up(shared: RawAgent, folder: Path) -> None:
    log = folder / "log"
    log.touch()
    reader = reader_of(shared, log, tail_bytes=8)
    settle(reader)
    (folder / "new").write_bytes(b"1111111\n2222222\n")
    os.replace(folder / "new", log)
    reader.until(b"2222222\n")
    assert reader.rotations == 0


# many logs ----------------------------------------------------------------------------------------------


class FewFiles(Unwatched):
    """An agent with a process limit of 64 open files."""

    def command(self) -> list[str]:
        return ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *super().command()]


def test_more_logs_than_descriptors(tmp_path: Path) -> None:
    """32 files stay open, and the others are followed all the same."""
    agent = RawAgent(tmp_path, FewFiles({"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}))
    try:
        logs = [tmp_path / f"log{i}" for i in range(100)]
        for log in logs:
            log.write_bytes(HEAD)
        readers = [LogReader(agent, log.name) for log in logs]
        for reader in readers:
            reader.until(HEAD)
        eventually(lambda: 16 <= len(agent.open_files(tmp_path)) <= 32)  # one that it changes may be counted twice
        for log in logs[::2]:
            append(log, b"more\n")
        for log in logs[1::2]:
            (tmp_path / "new").write_bytes(HEAD + b"new\n")
            os.replace(tmp_path / "new", log)
        for log, reader in zip(logs, readers, strict=True):
            reader.until(log.read_bytes())
        assert [reader.rotations for reader in readers] == [0, 1] * 50
        for reader in readers:
            reader.disconnect()
        eventually(lambda: not agent.open_files(tmp_path))
    finally:
        agent.close()


def test_random_histories(shared: RawAgent) -> None:
    run_histories(shared, root_of(shared), SEED, examples=12, steps=10)


def test_a_log_in_a_storm_of_rotations(tmp_path: Path) -> None:
    agent = RawAgent(tmp_path, process=True)
    run_storm(agent, tmp_path, SEED, actions=1_000)
    agent.close()
