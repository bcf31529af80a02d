"""Credentials of object stores: a file of ``NAME=value`` lines, or whatever boto3 finds. No value is ever shown."""

from __future__ import annotations

import io
import os
import re
import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path

from dotenv import dotenv_values

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.safe_json import Unreadable, read_bytes

LAMBDA_FILE = Path("~/.lambda_s3.env")
"""Read where a destination names no file."""
_MAX_BYTES = 64 << 10
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL", "S3_ENDPOINT")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
ENDPOINT, REGION = re.compile(r"https?://[^\s/@]+/?"), re.compile(r"[A-Za-z0-9-]+")
AN_ENDPOINT, A_REGION = "an address such as https://s3.example.com, without a path", "a region such as us-east-1"


class AccessError(UserError):
    """A file with credentials that cannot be used. ``code``: ``open_credentials`` where others can read it."""

    code = "bad_credentials"


@dataclass(frozen=True)
class Access:
    """Credentials and the address that came with them."""

    source: str
    """Where they come from, for messages."""
    key_id: str = field(default="", repr=False)
    """"" leaves the search for credentials to boto3."""
    secret: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    bucket: str = ""
    endpoint: str = ""
    region: str = ""


def find_access(file: str = "") -> Access:
    """Credentials from the named file, else from ``~/.lambda_s3.env`` if it exists, else from boto3's own sources.

    Raises AccessError.
    """
    if file:
        return read_access(Path(file).expanduser())
    default = LAMBDA_FILE.expanduser()
    if default.exists():
        return read_access(default)
    return Access("the environment or ~/.aws")


def read_access(path: Path) -> Access:
    """Credentials in a file of ``NAME=value`` lines, with or without ``export`` and quotes. Raises AccessError."""
    try:
        mode = os.stat(path).st_mode
        if os.name == "posix" and stat.S_ISREG(mode) and mode & 0o077:
            raise AccessError(
                f"{path}: other accounts can read these credentials; run: chmod 600 {shlex.quote(str(path))}",
                code="open_credentials",
            )
        text = (read_bytes(path, _MAX_BYTES) or b"").decode("utf-8-sig")
    except OSError as error:
        raise AccessError(f"{path}: cannot read the credentials: {error.strerror or error}") from error
    except Unreadable as error:
        raise AccessError(f"{path}: cannot read the credentials: {error}") from None
    except UnicodeDecodeError:
        raise AccessError(f"{path}: not a text file") from None
    if any(line.strip().startswith("[") for line in text.splitlines()):
        raise AccessError(
            f"{path}: expected lines NAME=value; an AWS credentials file with [profiles] belongs at "
            "~/.aws/credentials, which is read where no file is named"
        )
    values = {
        name: value for name, value in dotenv_values(stream=io.StringIO(text), interpolate=False).items() if value
    }
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        if name not in values:
            raise AccessError(f"{path}: {name} is missing; add a line {name}=…")
    for names, pattern, wanted in ((_ENDPOINTS, ENDPOINT, AN_ENDPOINT), (_REGIONS, REGION, A_REGION)):
        for name in names:
            if name in values and not pattern.fullmatch(values[name]):
                raise AccessError(f"{path}: {name} must be {wanted}")
    return Access(
        str(path),
        values["AWS_ACCESS_KEY_ID"],
        values["AWS_SECRET_ACCESS_KEY"],
        values.get("AWS_SESSION_TOKEN", ""),
        values.get("S3_BUCKET", ""),
        _first(values, _ENDPOINTS),
        _first(values, _REGIONS),
    )


def _first(values: dict[str, str], names: tuple[str, ...]) -> str:
    return next((values[name] for name in names if name in values), "")
