"""``grpo-train destinations``: where backups of this machine can go."""

from __future__ import annotations

import json

from grpo_train.backup.backup_yaml import Bucket, Folder, default_path
from grpo_train.backup.destinations import list_destinations
from grpo_train.cli.options import AsJson
from grpo_train.cli.output import table
from grpo_train.cli.transfer import failing


def destinations(as_json: AsJson = False) -> None:
    """List the destinations in backup.yaml, without asking them. The first is the default."""
    with failing(as_json):
        rows = [
            {"name": each.name, "kind": "folder" if isinstance(each, Folder) else "s3", "where": _where(each)}
            for each in list_destinations()
        ]
    if as_json:
        print(json.dumps(rows, indent=1))
    elif rows:
        table(("name", "kind", "where"), [list(row.values()) for row in rows])
    else:
        print(f"no destination is described in {default_path()}")


def _where(described: Folder | Bucket) -> str:
    if isinstance(described, Folder):
        return described.folder
    bucket = described.bucket or "S3_BUCKET of the credentials file"
    return f"s3://{bucket}" + (f"/{described.prefix}" if described.prefix else "")
