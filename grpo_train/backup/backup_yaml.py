"""``backup.yaml``: where backups go. Errors name file, line and key; the file holds no secret."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from grpo_train.backup.access import A_REGION, AN_ENDPOINT, ENDPOINT, REGION
from grpo_train.config.yaml_text import InvalidYaml, compose_yaml
from grpo_train.run_dir.credentials import find_secret
from grpo_train.run_dir.errors import UserError, did_you_mean

EXAMPLE = "copy config/backup.example.yaml there"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class DestinationError(UserError):
    """A destination that is not described, or not correctly. ``code``: ``no_destination``, or ``secret``."""

    code = "bad_destination"


def parse_rate(text: str | float) -> int:
    """Bytes per second: a number with an optional K, M or G (multiples of 1024), such as ``40M``. Raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]?)(?:i?B)?(?:/s)?", str(text).strip(), re.IGNORECASE)
    rate = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if rate <= 0:
        raise ValueError(f"expected bytes per second such as 40M, not {text!r}")
    return rate


Rate = Annotated[int, BeforeValidator(parse_rate)]


def _absolute(value: str) -> str:
    path = Path(value).expanduser()
    if not path.is_absolute():
        raise ValueError("expected an absolute path, or one that starts with ~")
    return str(path)


class _Described(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """What --to takes."""
    limit: Rate | None = None
    """Bytes per second, in each direction."""


class Folder(_Described):
    """A directory, usually on a mounted disk."""

    folder: Annotated[str, BeforeValidator(_absolute)]
    """The directory. It must exist."""


class Bucket(_Described):
    """A bucket of an S3 store."""

    bucket: str = ""
    """"" = ``S3_BUCKET`` of the credentials file."""
    prefix: str = Field(default="", pattern=r"^[^/].*[^/]$|^[^/]?$")
    """Folder in the bucket; "" = its top."""
    endpoint: str = Field(default="", pattern=f"^({ENDPOINT.pattern})?$")
    """Address of the store; "" = the credentials file's, else Amazon."""
    region: str = Field(default="", pattern=f"^({REGION.pattern})?$")
    credentials: str = ""
    """File with ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``; "" as in :func:`access.find_access`."""
    ca_file: Annotated[str, BeforeValidator(lambda value: value and _absolute(value))] = ""
    """Certificates to trust besides the system's."""


PATTERNS = {
    "name": "use up to 64 letters, digits, '.', '_' and '-', starting with a letter or digit",
    "prefix": "expected a folder without a slash at its ends",
    "endpoint": f"expected {AN_ENDPOINT}",
    "region": f"expected {A_REGION}",
}
"""What is expected of the keys that have a pattern."""


def default_path() -> Path:
    """``backup.yaml`` in the platform's configuration directory, beside ``boxes.yaml``."""
    import platformdirs

    return Path(platformdirs.user_config_dir("grpo-tui")) / "backup.yaml"


def read_destinations(path: Path) -> list[Folder | Bucket]:
    """The destinations of a file, none of a missing one. Raises DestinationError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise DestinationError(f"{path}: cannot read: {error}") from error
    return parse_destinations(text, str(path))


def parse_destinations(text: str, file: str = "backup.yaml") -> list[Folder | Bucket]:
    """The destinations of a YAML text. Raises DestinationError."""
    if secret := find_secret(text):
        raise DestinationError(
            f"{file}:{secret.line}: {secret.kind} does not belong here; write it into a file with mode 600 and name "
            "that file with 'credentials'",
            code="secret",
        )
    found: list[Folder | Bucket] = []
    for node in _entries(text, file):
        destination = _destination(node, file)
        if any(destination.name == other.name for other in found):
            raise DestinationError(f"{file}:{_line(node)}: duplicate destination name '{destination.name}'")
        found.append(destination)
    return found


def _entries(text: str, file: str) -> list[yaml.Node]:
    """The nodes of the ``destinations`` list."""
    try:
        top = compose_yaml(text)
    except InvalidYaml as error:
        raise DestinationError(error.at(file)) from error
    if top is None:
        return []
    if not isinstance(top, yaml.MappingNode):
        raise DestinationError(f"{file}:{_line(top)}: expected 'destinations:' with a list below it")
    entries: list[yaml.Node] = []
    for key, value in top.value:
        if key.value != "destinations":
            raise DestinationError(
                f"{file}:{_line(key)}: unknown key '{key.value}'; the only key here is 'destinations'"
            )
        if isinstance(value, yaml.SequenceNode):
            entries += value.value
        elif value.value:
            raise DestinationError(f"{file}:{_line(value)}: 'destinations' must be a list ('- name: …')")
    return entries


def _destination(node: yaml.Node, file: str) -> Folder | Bucket:
    if not isinstance(node, yaml.MappingNode):
        raise DestinationError(f"{file}:{_line(node)}: a destination is a mapping ('- name: …')")
    lines: dict[str, int] = {}
    values: dict[str, Any] = {}
    for key, value in node.value:
        lines[key.value] = _line(key)
        values[key.value] = value.value if isinstance(value, yaml.ScalarNode) else [...]  # as written: 010 stays 010
    kind = Folder if "folder" in values else Bucket
    try:
        return kind.model_validate({key: value for key, value in values.items() if value != ""})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        where = f"{file}:{lines.get(name, _line(node))}"
        if problem["type"] == "extra_forbidden":
            hint = did_you_mean(name, kind.model_fields)
            if kind is Folder and name in Bucket.model_fields:
                hint = "a destination has either 'folder' or the keys of a bucket"
            raise DestinationError(f"{where}: unknown key '{name}'; {hint}") from None
        if problem["type"] == "missing":
            raise DestinationError(f"{where}: a destination needs a '{name}'") from None
        if values.get(name) == [...]:
            raise DestinationError(f"{where}: '{name}' must be a single value") from None
        is_pattern = problem["type"] == "string_pattern_mismatch"
        message = PATTERNS[name] if is_pattern else problem["msg"].removeprefix("Value error, ")
        raise DestinationError(f"{where}: '{name}': {message} (got {values.get(name)!r})") from None


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
