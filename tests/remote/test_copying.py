"""Copies to and from a box: over each transport, through faults, from hostile ends."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import list_runs, write_manifest
from grpo_train.run_dir.clock import CLOCK, SystemClock
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.evaluations import list_evaluations
from remote.agent import files
from remote.agent.files import NAMED
from remote.boxes import Box
from remote.copying import Copied, Copier
from remote.transports.choice import TransportChoice
from tests.support.agent import ThreadTransport, eventually
from tests.support.clock import TestClock
from tests.support.proxy import ChaosProxy, Fault
from tests.support.sshd import Sshd, box_over, make_key


@pytest.fixture(params=["local", "openssh", "paramiko"])
def any_box(request: pytest.FixtureRequest, root: Path, sshd: Sshd) -> Box:
    return box_over(request.param, root, sshd, sshd.port)


@contextmanager
def copier(box: Box, **options: Any) -> Iterator[Copier]:
    with Copier(box, ask_host_key=lambda question: True, **options) as made:
        yield made


def _tree(folder: Path) -> dict[str, str]:
    """Path to content or target of everything in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _weights(folder: Path, size: int = 3_000_000) -> Path:
    (folder / "part").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(random.Random(size).randbytes(size))
    (folder / "part" / "config.json").write_text("{}")
    (folder / "empty").touch()
    (folder / "part" / "latest").symlink_to("config.json")
    os.utime(folder / "empty", (1e9, 1e9))
    return folder


def _run(root: Path, name: str = "run_a", steps: tuple[int, ...] = (10, 20)) -> Path:
    run = root / "training_runs" / name
    for step in steps:
        folder = run / "training_state" / f"step_{step}"
        _weights(folder / "model", 50_000 + step)
        (folder / "optimizer.pt").write_bytes(b"o" * step)
        write_manifest(folder, step=step)
    (run / "training_state" / "step_latest").symlink_to(f"step_{steps[-1]}")
    (run / "training_state" / ".step_30.1-2-ab.tmp").mkdir()
    (run / "training_state" / "step_25").mkdir()  # without a manifest: incomplete
    (run / "logs").mkdir()
    (run / "logs" / "train_log.jsonl").write_text('{"step": 1}\n')
    (run / "launch.json").write_text(json.dumps({"time": "2026-11-23T00:00:00.000Z"}))
    evaluation = root / "eval_runs" / f"{name}_gsm8k"
    evaluation.mkdir(parents=True)
    (evaluation / "status.json").write_text(json.dumps({"training_run": name, "dataset": "gsm8k", "state": "finished"}))
    return run


class TestCopies:
    def test_there_and_back(self, any_box: Box, root: Path, tmp_path: Path) -> None:
        source = _weights(tmp_path / "start weights")
        with copier(any_box) as copy:
            put = copy.put(source)
            got = copy.get("checkpoints/start weights", tmp_path / "back")
        assert put.paths == [str(root / "checkpoints" / "start weights")]
        assert got.paths == [str(tmp_path / "back" / "start weights")]
        assert _tree(Path(got.paths[0])) == _tree(Path(put.paths[0])) == _tree(source)
        assert Path(got.paths[0], "empty").stat().st_mtime == 1e9
        assert not [path for path in (*root.rglob("*"), *(tmp_path / "back").rglob("*")) if ".part" in path.name]

    def test_a_run_becomes_a_root(self, box: Box, root: Path, tmp_path: Path) -> None:
        _run(root)
        with copier(box) as copy:
            got = copy.get("run_a", tmp_path / "home")
        (run,) = list_runs(tmp_path / "home")
        assert got.paths[-1] == str(run.path)
        assert [checkpoint.step for checkpoint in run.checkpoints()] == [20]
        assert run.checkpoint("latest", deep=True).step == 20
        assert [row["name"] for row in list_evaluations(tmp_path / "home", "run_a")] == ["run_a_gsm8k"]

    @pytest.mark.parametrize(("steps", "there"), [("all", [10, 20]), ("none", []), ("10", [10]), ("10,20", [10, 20])])
    def test_checkpoints_of_a_run(self, box: Box, root: Path, tmp_path: Path, steps: str, there: list[int]) -> None:
        run = _run(root)
        with copier(box) as copy:
            copy.get("run_a", tmp_path, steps)
        (copied,) = list_runs(tmp_path)
        assert [checkpoint.step for checkpoint in copied.checkpoints()] == there
        assert _tree(copied.logs) == _tree(run / "logs")
        latest = copied.training_state / "step_latest"
        assert latest.is_symlink() == (20 in there)

    def test_weights_of_a_step(self, box: Box, root: Path, tmp_path: Path) -> None:
        run = _run(root)
        with copier(box) as copy:
            got = copy.get("run_a:latest", tmp_path)
        assert got.paths == [str(tmp_path / "run_a_step_20")]
        assert _tree(tmp_path / "run_a_step_20") == _tree(run / "training_state" / "step_20" / "model")

    def test_what_cannot_be_copied_is_named(self, box: Box, root: Path, tmp_path: Path) -> None:
        folder = root / "checkpoints" / "odd"
        folder.mkdir(parents=True)
        (folder / "file").touch()
        (folder / "out").symlink_to("/etc/passwd")
        os.mkfifo(folder / "pipe")
        with copier(box) as copy:
            got = copy.get("checkpoints/odd", tmp_path)
        assert sorted(got.left_out) == ["odd/out", "odd/pipe"]
        assert list(_tree(tmp_path / "odd")) == ["file"]

    @pytest.mark.parametrize(("count", "more"), [(NAMED, []), (NAMED + 2, ["and 2 more"])])
    def test_of_many_the_first_are_named(
        self, box: Box, root: Path, tmp_path: Path, count: int, more: list[str]
    ) -> None:
        (folder := root / "checkpoints" / "odd").mkdir(parents=True)
        for number in range(count):
            os.mkfifo(folder / f"pipe_{number}")
        with copier(box) as copy:
            assert copy.get("checkpoints/odd", tmp_path).left_out[NAMED:] == more


class Impatient(SystemClock):
    """Does not wait between two connections."""

    def wait(self, event: threading.Event, seconds: float | None = None) -> bool:
        return event.is_set()


class TestFaults:
    @pytest.mark.parametrize("transport", ["openssh", "paramiko"])
    def test_cut_connections(self, transport: str, root: Path, sshd: Sshd, tmp_path: Path) -> None:
        source, said = _weights(tmp_path / "start", 12_000_000), []
        with ChaosProxy(sshd.port) as proxy:
            box = box_over(transport, root, sshd, proxy.port)
            choice = TransportChoice(box, lambda question: None, lambda event: None)
            with copier(box, say=said.append, choice=choice, clock=Impatient()) as copy:
                copy.put(source, "checkpoints/warm")  # the agent and the host key are there
                for back in (False, True):
                    proxy.plan(*(Fault("reset", offset, back) for offset in (3_000_000, 4_000_000)))
                    if back:
                        done = copy.get("checkpoints/start", tmp_path / "back")
                    else:
                        done = copy.put(source)
                    assert done.travelled < 1.5 * done.size
        assert len(said) >= 2
        assert _tree(tmp_path / "back" / "start") == _tree(source) == _tree(root / "checkpoints" / "start")

    def test_an_agent_that_is_still_at_work_is_waited_for(
        self, box: Box, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As after a connection that broke without a word, of which the box hears last."""
        source = _weights(tmp_path / "start", 3_000_000)
        collected = root / "checkpoints" / ".start.part"
        collected.mkdir(parents=True)
        agents_clock, take, waits = TestClock(), files._take, threading.Event()

        def taken(folder: Path, make: Callable[[], None]) -> int | None:
            if (lock := take(folder, make)) is None:
                waits.set()
            return lock

        def transport(environment: object = None, clock: object = None) -> ThreadTransport:
            return ThreadTransport(CLOCK, agents_clock)

        monkeypatch.setattr(files, "_take", taken)
        monkeypatch.setattr("remote.transports.local.LocalTransport", transport)
        held = os.open(collected / ".lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(held, fcntl.LOCK_EX)
        with copier(box) as copy, ThreadPoolExecutor() as pool:
            done = pool.submit(copy.put, source)
            eventually(waits.is_set)
            os.close(held)
            eventually(done.done, clock=agents_clock)
            done.result()
        assert _tree(root / "checkpoints" / "start") == _tree(source)
        assert not collected.exists()

    def test_two_to_the_same_place(self, box: Box, root: Path, tmp_path: Path) -> None:
        """The second one waits, and finds all of it there."""
        source = _weights(tmp_path / "start", 3_000_000)
        second: list[Future[Copied]] = []

        def begin(done: int, total: int) -> None:
            if not second and done > 1_000_000:
                second.append(pool.submit(other.put, source))

        with ThreadPoolExecutor(1) as pool, copier(box) as other, copier(box, progress=begin) as first:
            assert first.put(source).travelled >= 3_000_000
            assert second[0].result().travelled == 0
        assert _tree(root / "checkpoints" / "start") == _tree(source)
        assert not (root / "checkpoints" / ".start.part").exists()

    @pytest.mark.parametrize("direction", ["get", "put"])
    def test_an_interrupted_copy_continues(self, box: Box, root: Path, tmp_path: Path, direction: str) -> None:
        source = _weights((root if direction == "get" else tmp_path) / "start", 8_000_000)

        def interrupt(done: int, total: int) -> None:
            if done > 4_000_000:
                raise KeyboardInterrupt

        def act(copy: Copier) -> Any:
            return copy.get("./start", tmp_path / "here") if direction == "get" else copy.put(source)

        with pytest.raises(KeyboardInterrupt), copier(box, progress=interrupt) as copy:
            act(copy)
        place = tmp_path / "here" / "start" if direction == "get" else root / "checkpoints" / "start"
        assert not place.exists()
        with copier(box) as copy:
            done = act(copy)
        assert done.travelled < 5_500_000
        assert _tree(place) == _tree(source)

    @pytest.mark.parametrize("transport", ["local", "openssh", "paramiko"])
    def test_a_stopped_copy_continues(self, transport: str, root: Path, sshd: Sshd, tmp_path: Path) -> None:
        box = box_over(transport, root, sshd, sshd.port)
        source = _weights(tmp_path / "start", 8_000_000)

        def stop(done: int, total: int) -> None:
            if done > 4_000_000:
                thread = threading.Thread(target=copy.stop)
                thread.start()
                thread.join()

        with pytest.raises(UserError, match="was stopped") as error, copier(box, progress=stop) as copy:
            copy.put(source)
        assert error.value.code == "stopped"
        with copier(box) as again:
            done = again.put(source)
        assert 0 < done.travelled < 7_500_000  # what was under way is sent again
        assert _tree(root / "checkpoints" / "start") == _tree(source)

    def test_stopped_before_it_is_connected(self, root: Path, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            box = Box("silent", host="127.0.0.1", port=silent.getsockname()[1], root=str(root))
            with copier(box) as copy:
                timer = threading.Timer(0.3, copy.stop)
                timer.start()
                with pytest.raises(UserError) as error:
                    copy.get("run_a", tmp_path)
        assert error.value.code == "stopped"

    def test_other_bytes_begin_anew(self, box: Box, root: Path, tmp_path: Path) -> None:
        source = _weights(tmp_path / "start", 100_000)
        begun = root / "checkpoints" / ".start.part" / "start"
        begun.mkdir(parents=True)
        (begun / "model.safetensors").write_bytes(b"x" * 50_000)
        (begun / "gone.bin").write_bytes(b"x")
        with copier(box) as copy:
            copy.put(source)
        assert _tree(root / "checkpoints" / "start") == _tree(source)

    def test_a_damaged_checkpoint_is_refused(self, box: Box, root: Path, tmp_path: Path) -> None:
        file = _run(root) / "training_state" / "step_20" / "model" / "model.safetensors"
        file.write_bytes(b"x" * file.stat().st_size)
        with copier(box) as copy, pytest.raises(UserError, match=r"model\.safetensors is damaged") as error:
            copy.get("run_a:20", tmp_path)
        assert error.value.code == "damaged"
        assert not (tmp_path / "run_a_step_20").exists()

    def test_put_twice(self, box: Box, root: Path, tmp_path: Path) -> None:
        source = _weights(tmp_path / "start", 1_000)
        with copier(box) as copy:
            copy.put(source)
            assert copy.put(source).travelled == 0
            (source / "empty").write_text("no longer")
            with pytest.raises(UserError, match="exists on local with other content") as error:
                copy.put(source)
        assert error.value.code == "exists"
        assert (root / "checkpoints" / "start" / "empty").read_text() == ""


class TestRefusals:
    @pytest.mark.parametrize("transport", ["openssh", "paramiko"])
    def test_another_host_key(self, transport: str, root: Path, sshd: Sshd, tmp_path: Path) -> None:
        """A box that was rented again under its name: said after a second look, with the way out."""
        box, file = box_over(transport, root, sshd, sshd.port), tmp_path / "known_hosts"
        other = make_key(tmp_path / "other").with_suffix(".pub").read_text()
        file.write_text(f"{box.name} {other}")
        said: list[str] = []
        choice = TransportChoice(box, lambda question: None, lambda event: None, host_keys_file=file)
        with (
            pytest.raises(UserError, match=f"delete line 1 of {file}"),
            copier(box, choice=choice, say=said.append) as made,
        ):
            made.get("some/file", tmp_path)
        assert len(said) <= 1

    @pytest.mark.parametrize("to", ["../start", "/etc/start", ".", "checkpoints/.hidden", "out/start"])
    def test_places_outside_of_the_root(self, box: Box, root: Path, tmp_path: Path, to: str) -> None:
        (root / "out").symlink_to(tmp_path)
        with copier(box) as copy, pytest.raises(UserError, match="not a place below the root") as error:
            copy.put(_weights(tmp_path / "source", 10), to)
        assert error.value.code == "bad_request"

    @pytest.mark.parametrize(
        ("what", "code"),
        [("nope", "no_run"), ("run_a:30", "no_checkpoint"), ("a/../..", "bad_request"), ("a/b", "no_file")],
    )
    def test_what_is_not_there(self, box: Box, root: Path, tmp_path: Path, what: str, code: str) -> None:
        _run(root)
        with copier(box) as copy, pytest.raises(UserError) as error:
            copy.get(what, tmp_path)
        assert error.value.code == code

    def test_read_only(self, box: Box, root: Path, tmp_path: Path) -> None:
        with copier(box, readonly=True) as copy, pytest.raises(UserError, match="--readonly") as error:
            copy.put(_weights(tmp_path / "source", 10))
        assert error.value.code == "read_only"
        assert not list(root.iterdir())

    def test_nothing_is_overwritten(self, box: Box, root: Path, tmp_path: Path) -> None:
        _run(root)
        (tmp_path / "run_a_step_20").mkdir()
        with copier(box) as copy, pytest.raises(UserError, match="exists; remove it") as error:
            copy.get("run_a:20", tmp_path)
        assert error.value.code == "exists"

    def test_two_to_the_same_place_here(self, box: Box, root: Path, tmp_path: Path) -> None:
        _weights(root / "start", 3_000_000)
        refused: list[str] = []

        def second(done: int, total: int) -> None:
            if not refused and done > 1_000_000:
                with copier(box) as other, pytest.raises(UserError) as error:
                    other.get("./start", tmp_path / "here")
                refused.append(error.value.code)

        with copier(box, progress=second) as copy:
            copy.get("./start", tmp_path / "here")
        assert refused == ["busy"]

    def test_a_full_disk(self, box: Box, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _run(root)
        monkeypatch.setattr("remote.protocol.copies.RESERVE_BYTES", 1 << 60)
        with copier(box) as copy, pytest.raises(UserError, match="GB free; the copy needs") as error:
            copy.get("run_a:20", tmp_path)
        assert error.value.code == "disk_full"

    def test_nothing_to_put(self, box: Box, tmp_path: Path) -> None:
        with copier(box) as copy, pytest.raises(UserError, match="does not exist"):
            copy.put(tmp_path / "nothing")
