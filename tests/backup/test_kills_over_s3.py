"""SIGKILL before bytes are sent to a bucket, over https. ``tests/soak`` tries every point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.backup.cleanup import clean_up
from grpo_train.backup.destinations import Destination
from grpo_train.backup.prune import prune
from grpo_train.backup.restore import restore_folder
from grpo_train.backup.snapshots import StoredRun
from grpo_train.backup.store import Trust
from grpo_train.backup.take import back_up
from grpo_train.backup.verify import verify
from grpo_train.run_dir import RunDir
from tests.support.backups import contents, home_of, make_run, save, train_to
from tests.support.killing import Points, five_of, three_of
from tests.support.killing_requests import killed_before_send, sends_of
from tests.support.s3_servers import server
from tests.support.stores import bucket_store

SERVERS = ["rclone", "moto"]


class Bucket:
    """A run and its bucket; each use of it makes connections of its own, as a fork must."""

    def __init__(self, kind: str, tmp_path: Path) -> None:
        self.running = server(kind)
        self.name = self.running.new_bucket()
        self.run: RunDir = make_run(tmp_path / "root", "one", 10)
        self.step = 10

    def to(self) -> Destination:
        store = bucket_store(self.running, self.name)
        return Destination("s3", store, Trust("store-1", False, False, False), None)

    def grow(self) -> None:
        self.step += 10
        train_to(self.run, self.step)
        save(self.run, self.step)

    def back_up(self) -> None:
        back_up(self.run.root, "training_runs", "one", self.to(), transfers=1)

    def clean_up(self) -> None:
        clean_up(self.run, self.to(), transfers=1)

    def drop(self, step: int) -> None:
        prune(self.run.root, home_of(self.run), self.to(), keep_last=1, drop_steps=[step])

    def states(self) -> dict[str, str]:
        """State of each snapshot, and "claims" where one is left."""
        stored = StoredRun(self.to().store, home_of(self.run))
        found = {str(each.number): each.state for each in stored.snapshots()}
        return found | ({"claims": "left"} if any("/claim-" in key for key in stored.objects) else {})

    def strangers(self) -> list[str]:
        """Objects that no snapshot names."""
        stored = StoredRun(self.to().store, home_of(self.run))
        named = {key for each in stored.snapshots() if each.manifest for key in each.manifest.parts()}
        return sorted(key for key in stored.objects if "/snapshots/" not in key and key not in named)

    def steps(self) -> list[int]:
        """Steps of the newest complete snapshot, every byte read back."""
        to, home = self.to(), home_of(self.run)
        assert verify(self.run.root.parent / "nowhere", home, to, transfers=1).damaged == ()
        newest = StoredRun(to.store, home).newest()
        assert newest is not None
        assert newest.manifest is not None
        return sorted(step.step for step in newest.manifest.steps)


@pytest.fixture(params=SERVERS)
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    found = Bucket(request.param, tmp_path)
    found.back_up()
    return found


def kill_backups(bucket: Bucket, tmp_path: Path, points: Points) -> None:
    bucket.grow()
    seen = set()
    for n in points(sends_of(bucket.back_up)):
        bucket.grow()
        before = bucket.states()
        assert killed_before_send(n, bucket.back_up), f"it sent less than {n} times"
        after = bucket.states()
        seen |= set(after.values()) - {"left"}
        assert {key: after.get(key) for key in before} == before, f"killed before {n}"
        bucket.back_up()
        assert set(bucket.states().values()) == {"complete"}, f"killed before {n}"
        assert bucket.strangers() == [], f"killed before {n}"
    assert "complete" in seen
    assert points is not range or "incomplete" in seen
    assert max(bucket.steps()) == bucket.step
    restore_folder(tmp_path / "there", home_of(bucket.run), bucket.to(), transfers=1)
    assert contents(tmp_path / "there" / "training_runs" / "one") == contents(bucket.run.path)


def kill_cleanups(bucket: Bucket, tmp_path: Path, points: Points) -> None:
    bucket.grow()
    bucket.back_up()
    for n in points(sends_of(bucket.clean_up)):
        bucket.grow()
        bucket.back_up()
        before = contents(bucket.run.training_state)
        killed_before_send(n, bucket.clean_up)
        assert contents(bucket.run.training_state).items() <= before.items(), f"killed before {n}"
        bucket.clean_up()
        assert [c.step for c in bucket.run.checkpoints()] == [bucket.step], f"killed before {n}"
    assert bucket.steps() == list(range(10, bucket.step + 10, 10))


def kill_drops(bucket: Bucket, tmp_path: Path, points: Points) -> None:
    """Steps that are taken out of the backups: the new snapshot is whole, or there is none."""
    bucket.grow()
    bucket.grow()
    bucket.back_up()
    for n in points(sends_of(lambda: bucket.drop(10))):
        bucket.grow()
        bucket.back_up()
        victim = bucket.step - 20
        killed_before_send(n, lambda: bucket.drop(victim))  # noqa: B023
        left = bucket.steps()
        assert {bucket.step, bucket.step - 10} <= set(left), f"killed before {n}"
        bucket.drop(victim)
        assert victim not in bucket.steps(), f"killed before {n}"
        assert set(bucket.states().values()) == {"complete"}, f"killed before {n}"


KILLS = [kill_backups, kill_cleanups, kill_drops]


@pytest.mark.parametrize(
    ("bucket", "kill"), [("moto", kill_backups), *(("rclone", kill) for kill in KILLS)], indirect=["bucket"]
)
def test_killed_requests_leave_what_was_complete(
    bucket: Bucket, tmp_path: Path, kill: Callable[[Bucket, Path, Points], None]
) -> None:
    kill(bucket, tmp_path, five_of if bucket.running.kind == "rclone" and kill is kill_backups else three_of)
