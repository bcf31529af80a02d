"""docs/backup.md: its ten lines of shell restore a run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from grpo_train.backup.runs import back_up_run
from tests.support.backups import bytes_of, folder_destination, make_run, train_to
from tests.support.engine import REPOSITORY


def documented_lines() -> str:
    page = (REPOSITORY / "docs" / "backup.md").read_text()
    section = page.partition("### Restore without this program")[2]
    block = re.search(r"```bash\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return block[1]


def test_ten_lines_of_shell_restore_a_run(tmp_path: Path) -> None:
    lines = documented_lines()
    assert len(lines.strip().splitlines()) == 10
    run = make_run(tmp_path / "root", "demo", 10, 20)
    disk = folder_destination(tmp_path / "disk")
    for step in (25, 30):
        back_up_run(run.root, "training_runs", "demo", disk)
        train_to(run, step)
    (run.logs / "console.log").touch()
    back_up_run(run.root, "training_runs", "demo", disk)
    settings, *rest = lines.splitlines()
    assert settings == "STORE=/mnt/backups RUN=demo ROOT=/lambda/nfs/localfs"
    assert rest[-1].startswith("grpo-train resume")
    script = "\n".join([f"STORE='{disk.store.url}' RUN=demo ROOT='{tmp_path / 'there'}'", *rest[:-1]])
    subprocess.run(["bash", "-eu", "-c", script], check=True, timeout=120)
    restored = bytes_of(tmp_path / "there" / "training_runs" / "demo")
    expected = {name: value for name, value in bytes_of(run.path).items() if not value.startswith("step_")}
    assert restored == expected
    (disk_manifest,) = Path(disk.store.url).glob("training_runs/*/snapshots/000003/manifest.json")
    disk_manifest.write_text(disk_manifest.read_text() + " ")
    assert subprocess.run(["bash", "-c", script], timeout=120).returncode == 1, "the manifest is proven first"
