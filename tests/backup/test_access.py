"""Credentials: where they are looked for, what a file may look like, and that no value is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_train.backup.access import AccessError, find_access, read_access

SECRET = "s3cr3t/+value=="
PLAIN = f"AWS_ACCESS_KEY_ID=AKIDNAME\nAWS_SECRET_ACCESS_KEY={SECRET}\n"
QUOTED = f"""
# from the console
export AWS_ACCESS_KEY_ID="AKIDNAME"
export AWS_SECRET_ACCESS_KEY='{SECRET}'
export AWS_SESSION_TOKEN=token$HOME
S3_BUCKET = "0a1b-uuid"   # the file system
AWS_ENDPOINT_URL='https://files.example.com'
export AWS_REGION=us-east-2
"""


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_lines_with_or_without_export_and_quotes(home: Path) -> None:
    plain = read_access(written(home / "plain", PLAIN))
    assert (plain.key_id, plain.secret, plain.token, plain.bucket) == ("AKIDNAME", SECRET, "", "")
    quoted = read_access(written(home / "quoted", QUOTED))
    assert (quoted.key_id, quoted.secret, quoted.token) == ("AKIDNAME", SECRET, "token$HOME")
    assert (quoted.bucket, quoted.endpoint, quoted.region) == ("0a1b-uuid", "https://files.example.com", "us-east-2")


def test_the_named_file_wins_then_the_usual_one(home: Path) -> None:
    assert find_access().key_id == ""
    usual = written(home / ".lambda_s3.env", PLAIN)
    named = written(home / "other.env", PLAIN.replace("AKIDNAME", "OTHER"))
    assert (find_access().key_id, find_access().source) == ("AKIDNAME", str(usual))
    assert (find_access("~/other.env").key_id, find_access("~/other.env").source) == ("OTHER", str(named))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_file_that_others_can_read_is_refused(home: Path, mode: int) -> None:
    path = written(home / "my keys.env", PLAIN, mode)
    with pytest.raises(AccessError, match=f"chmod 600 '{path}'") as caught:
        read_access(path)
    assert caught.value.code == "open_credentials"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"AWS_SECRET_ACCESS_KEY={SECRET}", "AWS_ACCESS_KEY_ID is missing"),
        ("AWS_ACCESS_KEY_ID=AKIDNAME\nAWS_SECRET_ACCESS_KEY=", "AWS_SECRET_ACCESS_KEY is missing"),
        (f"[default]\naws_secret_access_key = {SECRET}", "AWS credentials file with"),
        ("x" * 100_000, "cannot read"),
        (f"{QUOTED}\nAWS_ENDPOINT_URL=files.example.com", "AWS_ENDPOINT_URL must be an address such as https://"),
        (f"{QUOTED}\nAWS_REGION='us east 1'", "AWS_REGION must be a region such as us-east-1"),
    ],
)
def test_unusable_files_are_explained(home: Path, text: str, message: str) -> None:
    with pytest.raises(AccessError, match=message) as caught:
        read_access(written(home / "keys", text))
    assert SECRET not in str(caught.value)


def test_a_file_that_is_no_text_is_named(home: Path) -> None:
    path = written(home / "keys", "")
    path.write_bytes(b"\xffAWS_ACCESS_KEY_ID")
    with pytest.raises(AccessError, match=f"{path}: not a text file"):
        read_access(path)


def test_missing_files_are_named(home: Path) -> None:
    for path in (home / "none.env", home):
        with pytest.raises(AccessError, match=str(path)):
            find_access(str(path))


def test_no_value_is_shown(home: Path) -> None:
    access = read_access(written(home / "keys", QUOTED))
    for value in (SECRET, "AKIDNAME", "token$HOME"):
        assert value not in f"{access} {access!r}"


def test_a_byte_order_mark_is_skipped(home: Path) -> None:
    assert read_access(written(home / "keys", "\ufeff" + QUOTED)).key_id == read_access(home / "keys").key_id != ""
