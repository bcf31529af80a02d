"""``provider`` of a box in boxes.yaml: who rents out its machine, and where the API key is."""

from __future__ import annotations

import os
import stat
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.lazy_dataclass import dataclass
from grpo_train.run_dir.suggest import did_you_mean
from remote.base import BoxesError

URLS = {"lambda": "https://cloud.lambda.ai/api/v1"}
"""Each kind, and where its API is."""
MAX_KEY = 1_000


class ProviderError(UserError):
    """A provider did not list its instances.

    ``code``: ``provider_key`` (the key, or the account), ``provider_busy`` (asked too often), ``provider_reply`` (an
    answer of another kind), ``provider_unreachable``. No message holds the key.
    """

    code = "provider_unreachable"


@dataclass(frozen=True)
class Provider:
    """An account of a provider, and the instance that is the box."""

    kind: str
    key_file: str
    """File with the API key, for this account alone (0600)."""
    instance: str = ""
    """Name of the instance; "" = the name of the box."""
    url: str = ""
    """Where the API is; "" = the provider's own place."""

    @property
    def base(self) -> str:
        """Where the API is, without a slash at its end."""
        return (self.url or URLS[self.kind]).rstrip("/")

    def read_key(self) -> str:
        """The API key. Raises ProviderError for a file that is missing, that others can read, or that holds no key."""
        file = Path(self.key_file).expanduser()

        def refuse(problem: str) -> ProviderError:
            return ProviderError(f"{file}: {problem}", code="provider_key")

        try:
            with open(file, "rb", opener=_open_without_waiting) as stream:
                status = os.fstat(stream.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise refuse("not a regular file; the API key of the provider belongs there")
                if os.name == "posix" and stat.S_IMODE(status.st_mode) & 0o077:
                    raise refuse(f"other accounts can read this API key; run  chmod 600 {file}")
                text = stream.read(MAX_KEY + 1).strip()
        except FileNotFoundError:
            raise refuse("file not found; write the API key of the provider into it, and run chmod 600 on it") from None
        except OSError as error:
            raise refuse(f"cannot read: {error.strerror or error}") from error
        if not text or len(text) > MAX_KEY or not all(0x21 <= byte <= 0x7E for byte in text):
            raise refuse("not an API key: expected one word of printable characters, alone in the file")
        return text.decode("ascii")


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_provider(node: Any, file: str) -> Provider:
    """The provider of a YAML node. Raises BoxesError that names the line, and never a value that may be a key."""
    import yaml

    def refuse(at: Any, problem: str, code: str = "bad_config") -> BoxesError:
        return BoxesError(f"{file}:{at.start_mark.line + 1}: 'provider': {problem}", code=code)

    if not isinstance(node, yaml.MappingNode):
        raise refuse(
            node, "expected its kind and the file with its API key, such as {kind: lambda, key_file: ~/.lambda}"
        )
    known = [item.name for item in fields(Provider)]
    found: dict[str, str] = {}
    for key, value in node.value:
        name = str(key.value)
        if name in ("key", "api_key", "token"):
            raise refuse(key, f"'{name}': the API key belongs into a file of its own: key_file: FILE", "secret")
        if name not in known:
            raise refuse(key, f"unknown key '{name}'; {did_you_mean(name, known)}")
        if not isinstance(value, yaml.ScalarNode):
            raise refuse(key, f"'{name}' must be a string")
        found[name] = "" if value.tag == "tag:yaml.org,2002:null" else str(value.value)
    kind, url = found.get("kind", ""), found.get("url", "")
    if kind not in URLS:
        raise refuse(node, f"'kind' must be {' or '.join(URLS)}, not '{kind}'")
    if not found.get("key_file"):
        raise refuse(node, "'key_file' is missing: the file with the API key")
    if url and (urlsplit(url).scheme != "https" or not urlsplit(url).hostname or "@" in url):
        raise refuse(node, "'url' must start with https:// and hold no password")
    return Provider(**found)
