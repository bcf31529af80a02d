"""A run, a store and what may happen to both, for the property test of backups.

The world remembers the bytes of every checkpoint ever saved, so that it knows at any moment what may be lost (what was
damaged by hand) and what may not.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from grpo_train.backup.cleanup import clean_up
from grpo_train.backup.prune import prune
from grpo_train.backup.record import read_record
from grpo_train.backup.restore import restore_folder
from grpo_train.backup.snapshot import Home
from grpo_train.backup.snapshots import StoredRun
from grpo_train.backup.take import back_up
from grpo_train.backup.verify import verify
from grpo_train.run_dir import RunDir, problem_of
from grpo_train.run_dir.errors import UserError
from tests.support import killing
from tests.support.backups import contents, folder_destination, make_run, object_files, rewind, save, train_to

KEPT_LOGS = ("logs/train_log.jsonl", "logs/rollouts.jsonl")


class World:
    def __init__(self) -> None:
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
        self.run: RunDir = make_run(self.folder / "box", "one", 1)
        self.to = folder_destination(self.folder / "disk")
        self.saved: dict[str, dict[str, str]] = {}
        """Digest of every checkpoint to its contents when it was saved."""
        self.backed_up: set[str] = set()
        self.excused: set[str] = set()
        """Digests of checkpoints damaged by hand, here or in the store."""
        self.logs: dict[int, dict[str, bytes]] = {}
        """Number of a snapshot to the logs that it was made of."""
        self.spoiled = False
        """Whether an object other than a checkpoint's was damaged by hand."""
        self._note_saved()

    def close(self) -> None:
        shutil.rmtree(self.folder)

    @property
    def home(self) -> Home:
        return Home("training_runs", "one", read_record(self.run.path).identity)

    # ---------------------------------------------------------------------------------------------- what happens

    def train(self, n: int) -> None:
        train_to(self.run, int(self.run.last_step_row().get("step", 0)) + 1 + n % 3, str(n))

    def save(self, n: int) -> None:
        self.train(n)
        step = int(self.run.last_step_row()["step"])
        if not (self.run.training_state / f"step_{step}").exists():
            save(self.run, step, str(n))
            self._note_saved()

    def rewind(self, n: int) -> None:
        steps = [c.step for c in self.run.checkpoints() if not problem_of(c.path, deep=True)]
        if steps:
            rewind(self.run, steps[n % len(steps)])

    def back_up(self, n: int) -> None:
        self._try(self._back_up)

    def kill_backup(self, n: int) -> None:
        self._killed(n, self._back_up)

    def clean_up(self, n: int) -> None:
        self._try(self._clean_up)

    def kill_cleanup(self, n: int) -> None:
        self._killed(n % 40, self._clean_up)

    def prune(self, n: int) -> None:
        self._try(self._prune)

    def kill_prune(self, n: int) -> None:
        self._killed(n % 60, self._prune)

    def restore(self, n: int) -> None:
        self._try(lambda: restore_folder(self.run.root, self.home, self.to, transfers=1))

    def kill_restore(self, n: int) -> None:
        self._killed(n, lambda: restore_folder(self.run.root, self.home, self.to, transfers=1))

    def verify(self, n: int) -> None:
        verify(self.run.root, self.home, self.to, transfers=1)

    def pass_a_day(self, n: int) -> None:
        for path in object_files(self.to):
            os.utime(path, (time.time(), path.stat().st_mtime - 90_000))

    def forget(self, n: int) -> None:
        """The note about backups is lost."""
        (self.run.path / ".backup.json").unlink(missing_ok=True)

    def damage_here(self, n: int) -> None:
        """Flip a bit of a checkpoint."""
        files = sorted(path for path in self.run.training_state.rglob("*") if path.is_file() and not path.is_symlink())
        if files:
            path = files[n % len(files)]
            step = next(parent for parent in path.parents if parent.name.startswith("step_"))
            self.excused.add(digest_of(step))
            flip(path, n)

    def damage_there(self, n: int) -> None:
        """Flip a bit of an object, or remove it."""
        files = [path for path in object_files(self.to) if "/snapshots/" not in str(path)]
        if not files:
            return
        path = files[n % len(files)]
        if "/training_state/" in str(path):
            short = next(part.rpartition("--")[2] for part in path.parts if part.startswith("step_"))
            self.excused |= {digest for digest in self.saved if digest.startswith(short)}
        else:
            self.spoiled = True
        if n % 2:
            path.unlink()
        else:
            flip(path, n)

    # --------------------------------------------------------------------------------------------- what must hold

    def check(self) -> None:
        """Every line of :mod:`grpo_train.backup` that can be seen from outside."""
        snapshots = list(StoredRun(self.to.store, self.home).snapshots())
        complete = [each for each in snapshots if each.is_complete]
        readable = [each for each in snapshots if each.manifest is not None]
        newest = complete[0].manifest if complete else None
        held = {step.digest for step in newest.steps} if newest else set()
        here = {digest_of(path) for path in steps_of(self.run)}
        if not self.spoiled and (newest or not self.excused):
            lost = self.backed_up - held - self.excused
            assert not lost, f"no longer in the newest complete snapshot: {sorted(lost)}"
        restorable = {step.digest for each in readable if each.manifest for step in each.manifest.steps}
        gone = self.saved.keys() - here - restorable - self.excused
        if not self.spoiled:
            assert not gone, f"neither here nor backed up: {[sorted(self.saved[digest]) for digest in gone]}"
        self.backed_up |= held
        for each in readable:
            assert each.manifest is not None
            self._check_restored(each.number, {step.digest for step in each.manifest.steps})

    def _check_restored(self, number: int, promised: set[str]) -> None:
        elsewhere = self.folder / "elsewhere"
        try:
            result = restore_folder(elsewhere, self.home, self.to, number=number, transfers=1)
            omitted = {each.path for each in result.omitted}
            if not self.excused and not self.spoiled:
                assert not omitted, f"snapshot {number} is listed as complete"
            there = RunDir(elsewhere / "training_runs" / "one")
            restored = {digest_of(path): path for path in steps_of(there)}
            for digest, path in restored.items():
                assert not problem_of(path, deep=True)
                assert contents(path) == self.saved[digest]
            if not self.spoiled:
                missing = promised - restored.keys() - self.excused
                assert not missing, f"snapshot {number} does not give back {missing}"
            for name, data in self.logs.get(number, {}).items():
                if name not in omitted:
                    assert (there.path / name).read_bytes() == data, f"{name} of snapshot {number}"
        finally:
            shutil.rmtree(elsewhere, ignore_errors=True)

    # ----------------------------------------------------------------------------------------------------- inside

    def _back_up(self) -> None:
        back_up(self.run.root, "training_runs", "one", self.to, transfers=1)

    def _clean_up(self) -> None:
        clean_up(self.run, self.to, transfers=1)

    def _prune(self) -> None:
        prune(self.run.root, self.home, self.to, keep_last=1)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except UserError as error:
            if error.code not in ("no_backup", "busy", "diverged", "no_checkpoint"):
                raise
        self._note_logs()

    def _killed(self, n: int, action: Callable[[], object]) -> None:
        """Run an action in a fork; SIGKILL before its n-th disk call, if there are as many."""
        if (pid := os.fork()) == 0:
            left = n

            def step(name: str, call: Callable[[], object]) -> object:
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return call()

            killing._patch(step)
            try:
                action()
            except UserError:
                pass
            except BaseException:
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -signal.SIGKILL), f"the action ended with {code}"
        self._note_logs()

    def _note_logs(self) -> None:
        """Remember the logs that a new snapshot was made of: the run does not change while it is backed up."""
        numbers = [each.number for each in StoredRun(self.to.store, self.home).snapshots() if each.is_complete]
        for number in numbers[:1]:
            if number not in self.logs:
                self.logs[number] = {name: (self.run.path / name).read_bytes() for name in KEPT_LOGS}

    def _note_saved(self) -> None:
        for path in steps_of(self.run):
            self.saved.setdefault(digest_of(path), contents(path))


def steps_of(run: RunDir) -> list[Path]:
    """Checkpoints of a run, those that a rewind put aside as well."""
    found = [*run.training_state.glob("step_*"), *run.training_state.glob("superseded/*/step_*")]
    return [path for path in found if path.is_dir() and not path.is_symlink()]


def digest_of(step: Path) -> str:
    manifest = step / "MANIFEST.json"
    return hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.exists() else ""


def flip(path: Path, n: int) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[n % len(data)] ^= 1 << (n % 7)
        path.write_bytes(data)
