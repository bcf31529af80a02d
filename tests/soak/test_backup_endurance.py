"""Kills over backup, cleanup and prune, and corruptions, all found. Part of ``make soak``.

The seed is printed; BACKUP_SEED repeats it.
"""

from __future__ import annotations

import os
import random
import secrets
from pathlib import Path

import pytest

from grpo_train.backup.restore import restore_folder
from grpo_train.backup.snapshot import Home
from grpo_train.backup.take import back_up
from grpo_train.backup.verify import verify
from tests.support.backup_world import World
from tests.support.backups import folder_destination, make_run, object_files

KILLS = 300
CORRUPTIONS = 200


def seeded() -> random.Random:
    seed = os.environ.get("BACKUP_SEED") or secrets.token_hex(4)
    print(f"BACKUP_SEED={seed}")
    return random.Random(seed)


@pytest.mark.timeout(3600)
def test_many_kills_lose_nothing() -> None:
    random_ = seeded()
    world = World()
    calm = ["train", "save", "save", "save", "rewind", "back_up", "restore", "pass_a_day"]
    kills = ["kill_backup", "kill_cleanup", "kill_prune"]
    try:
        for n in range(KILLS):
            if n % 40 == 39:
                world.close()
                world = World()
            getattr(world, random_.choice(calm))(random_.randrange(500))
            getattr(world, random_.choice(kills))(random_.randrange(400))
            world.check()
    finally:
        world.close()


@pytest.mark.timeout(3600)
def test_every_corruption_is_found(tmp_path: Path) -> None:
    random_ = seeded()
    run = make_run(tmp_path / "root", "one", 10, 20, 30)
    disk = folder_destination(tmp_path / "disk")
    home = Home("training_runs", "one", back_up(run.root, "training_runs", "one", disk).identity)
    files = [path for path in object_files(disk) if "/snapshots/" not in str(path)]
    for n in range(CORRUPTIONS):
        victim = random_.choice([path for path in files if path.stat().st_size])
        good = victim.read_bytes()
        how = random_.choice(["flip", "cut", "grow", "empty", "remove", "swap"])
        position = random_.randrange(len(good))
        if how == "flip":
            victim.write_bytes(good[:position] + bytes([good[position] ^ (1 << n % 8)]) + good[position + 1 :])
        elif how == "cut":
            victim.write_bytes(good[:position])
        elif how == "grow":
            victim.write_bytes(good + b"\0")
        elif how == "empty":
            victim.write_bytes(b"")
        elif how == "remove":
            victim.unlink()
        else:
            victim.write_bytes(random_.choice([path for path in files if path.read_bytes() != good]).read_bytes())
        found = verify(tmp_path / "nowhere", home, disk)
        key = str(victim.relative_to(disk.store.url))
        assert [damage.key for damage in found.damaged] == [key], f"{how} of {key}"
        result = restore_folder(tmp_path / f"b{n}", home, disk, number=1)
        assert result.omitted, f"{how} of {key} was restored"
        repaired = verify(run.root, home, disk)
        assert [(damage.key, damage.repaired) for damage in repaired.damaged] == [(key, True)]
        assert victim.read_bytes() == good
