"""backup.yaml: what it may say, and what is refused with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_train.backup.backup_yaml import (
    Bucket,
    DestinationError,
    Folder,
    parse_destinations,
    parse_rate,
    read_destinations,
)
from tests.conftest import REPOSITORY

VALID = """
destinations:
  - name: s3
    bucket: "010"
    prefix: grpo/runs
    endpoint: https://files.example.com:9000
    region: us-east-2
    credentials: ~/.lambda_s3.env
    ca_file: ~/ca.pem
    limit: 40M
  - name: disk
    folder: ~/backups
"""


def test_every_key_is_read(home: Path) -> None:
    s3, disk = parse_destinations(VALID)
    assert s3 == Bucket(
        name="s3",
        bucket="010",
        prefix="grpo/runs",
        endpoint="https://files.example.com:9000",
        region="us-east-2",
        credentials="~/.lambda_s3.env",
        ca_file=str(home / "ca.pem"),
        limit=40 << 20,
    )
    assert disk == Folder(name="disk", folder=str(home / "backups"))


def test_an_empty_or_missing_file_has_none(tmp_path: Path) -> None:
    assert parse_destinations("") == []
    assert parse_destinations("destinations:\n") == []
    assert read_destinations(tmp_path / "backup.yaml") == []


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").write_bytes(b"destinations: \xff")
    for file in (tmp_path / "a", tmp_path / "b"):
        with pytest.raises(DestinationError, match=f"{file}: cannot read: "):
            read_destinations(file)


def test_the_example_documents_every_key() -> None:
    text = (REPOSITORY / "config/backup.example.yaml").read_text()
    assert [type(one) for one in parse_destinations(text)] == [Bucket, Bucket, Folder]
    for key in {*Bucket.model_fields, *Folder.model_fields}:
        assert f"{key}:" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("destinations:\n  - name: a\n    buket: x", "f.yaml:3: unknown key 'buket'; did you mean bucket?"),
        ("destinations:\n  - name: a\n    folder: /x\n    bucket: y", "f.yaml:4: .* either 'folder' or"),
        ("destinations:\n  - folder: /x", "f.yaml:2: a destination needs a 'name'"),
        ("destinations:\n  - name: a b\n    folder: /x", "f.yaml:2: 'name': use up to 64 letters"),
        ("destinations:\n  - name: a\n    folder: x/y", "f.yaml:3: 'folder': expected an absolute path"),
        ("destinations:\n  - name: a\n    limit: fast", "f.yaml:3: 'limit': expected bytes per second such as 40M"),
        ("destinations:\n  - name: a\n    limit: 0", "f.yaml:3: 'limit': expected bytes per second"),
        ("destinations:\n  - name: a\n    endpoint: ftp://x", "f.yaml:3: 'endpoint': expected an address"),
        ("destinations:\n  - name: a\n    prefix: /x", "f.yaml:3: 'prefix': expected a folder"),
        ("destinations:\n  - name: a\n    bucket: [x]", "f.yaml:3: 'bucket' must be a single value"),
        (
            "destinations:\n  - name: a\n    name: b",
            r"f.yaml:3: duplicate key 'destinations.0.name' \(first defined on line 2\)",
        ),
        ("destinations:\n  - name: a\n  - name: a", "f.yaml:3: duplicate destination name 'a'"),
        ("destinations: {name: a}", "f.yaml:1: 'destinations' must be a list"),
        ("boxes: []", "f.yaml:1: unknown key 'boxes'"),
        ("- name: a", "f.yaml:1: expected 'destinations:'"),
        ("destinations:\n  - a", "f.yaml:2: a destination is a mapping"),
        ("destinations:\n\t- a", "f.yaml:2: invalid YAML"),
    ],
)
def test_mistakes_are_named_with_their_line(text: str, message: str) -> None:
    with pytest.raises(DestinationError, match=message):
        parse_destinations(text, "f.yaml")


@pytest.mark.parametrize(
    "line",
    ["endpoint: https://user:pw1234@host", "secret_access_key: abcdefgh", "region: AKIAIOSFODNN7EXAMPLE"],
)
def test_secrets_are_refused_and_not_shown(line: str) -> None:
    with pytest.raises(DestinationError, match=r"f.yaml:3: .*'credentials'") as caught:
        parse_destinations(f"destinations:\n  - name: a\n    {line}", "f.yaml")
    assert caught.value.code == "secret"
    assert line.partition(": ")[2] not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "rate"), [("1000", 1_000), ("40M", 40 << 20), ("1.5k", 1_536), ("2 GiB/s", 2 << 30), (7, 7)]
)
def test_rates_have_units(text: str | int, rate: int) -> None:
    assert parse_rate(text) == rate
