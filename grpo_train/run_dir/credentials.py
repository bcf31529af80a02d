"""Find secrets in configs, overrides and shell snippets, and name the place where they belong. Standard library only.

What a run is launched with is stored in its directory and appears in process lists, so secrets are refused there.
Laptop, agent and engine look here. The search reads lines: the agent has no YAML parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_DOT_ENV = ".env on the box (grpo-tui env put)"
_HUGGING_FACE = ("a Hugging Face token", f"run 'hf auth login' on the box, or set HF_TOKEN in {_DOT_ENV}")
_WANDB = ("a W&B API key", f"run 'wandb login' on the box, or set WANDB_API_KEY in {_DOT_ENV}")
_AWS = ("an AWS access key", "put it into ~/.aws/credentials on the box")
_GITHUB = ("a GitHub token", f"run 'gh auth login' on the box, or set GITHUB_TOKEN in {_DOT_ENV}")
_MODEL_API = ("a model provider's API key", f"set the provider's variable in {_DOT_ENV}")
_WEBHOOK = ("a webhook's address", f"set NOTIFY_URL in {_DOT_ENV} and write notify.url: $NOTIFY_URL")
_OTHER = ("a secret", f"set a variable in {_DOT_ENV}")

_TOKENS = (
    (r"(?<![A-Za-z0-9])(?:hf_|api_org_)[A-Za-z0-9]{30,}", _HUGGING_FACE),
    (r"(?<![A-Za-z0-9])wandb_v1_[A-Za-z0-9_-]{20,}", _WANDB),
    (r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])", _AWS),
    (r"(?<![A-Za-z0-9])(?:gh[opsur]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,})", _GITHUB),
    (r"(?<![\w-])sk-(?=[\w-]*\d)[\w-]{20,}", _MODEL_API),
    (r"-----BEGIN [A-Z ]*PRIVATE KEY-----", ("a private key", "put it into ~/.ssh on the box")),
    (r"://[^\s/@:'\"]*:[^\s/@'\"$<{]+@", ("a password in a URL", f"set the URL in {_DOT_ENV}")),
)
"""Tokens by their look, wherever they are in a line."""
_HEX_KEY = re.compile(r"[0-9a-f]{40}")
"""An older W&B key, or a commit: only the whole value of a key that does not name a commit is a W&B key."""
_COMMIT_NAME = re.compile(r"(?:^|_)(?:commit|revision|rev|sha1?|hash|ref|checksum)$")

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:token|(?:secret|password|passwd|passphrase|pwd|credential|(?:api|access|secret|private|auth)_?key)s?)$"
)
_MODEL_TOKEN = re.compile(
    r"(?:^|_)(?:pad|eos|bos|unk|mask|sep|cls|stop|start|end|special|per|image|next|first|last|new|answer)_token$"
)
"""Tokens of a tokenizer are not secrets."""
_NAMES = (("hf|hugging_?face|hub", _HUGGING_FACE), ("wandb", _WANDB), ("aws", _AWS), ("github|gh", _GITHUB))

_QUOTES = r""""[^"]*"|'[^']*'"""
_VALUE = _QUOTES + r"|\$\{\w+\}|[^\s,{}\[\]#;&]+"
_WORD = _QUOTES + r"|[^\s;&]+"
_ENTRY = re.compile(
    r"""(?:^[ \t]*(?:-[ \t]+)*|[{,][ \t]*)["']?(?P<key>[A-Za-z_][\w.-]*)["']?[ \t]*:(?=[ \t]|$)[ \t]*"""
    rf"(?P<value>{_VALUE})?"
    rf"|(?<![\w.-])(?P<name>[A-Za-z_][\w.-]*)=(?P<given>{_WORD})"
)
"""``key: value`` of YAML, and ``NAME=value`` of an override or a shell."""
_NO_VALUE = re.compile(r"(?i)|null|~|none|true|false|\$\(.*|`.*|\$\{\w+\}|\$[A-Z_][A-Z0-9_]*")
"""Nothing, a switch, or a reference that the shell resolves."""
_BLOCK = re.compile(r":[ \t]+[|>][-+0-9]*[ \t]*(?:#.*)?$")


@dataclass(frozen=True)
class Secret:
    """A secret in a text, without its value."""

    line: int
    key: str
    """``section.key``; "" where the value belongs to no key."""
    kind: str
    advice: str

    def explain(self, where: str) -> str:
        """The refusal: what is wrong at ``where``, and what to do."""
        key = f"'{self.key}' holds {self.kind}" if self.key else f"this is {self.kind}"
        return f"{where}: {key}, which run files and process lists would show; {self.advice}"


def find_secret(text: str) -> Secret | None:
    """The first secret in a config's text, an override or a shell snippet."""
    return next(_secrets(text), None)


def find_token(text: str) -> Secret | None:
    """The first secret of any text, judged by its look alone: names mean little in code."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, kind in _TOKENS:
            if re.search(pattern, line):
                return Secret(number, "", *kind)
    return None


def _secrets(text: str) -> Iterator[Secret]:
    section, block = "", -1
    """``block``: indentation of the key whose block of text this is; -1 outside one."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        indent = len(line) - len(line.lstrip())
        if block >= 0 and line.strip() and indent <= block:
            block = -1
        matches = [] if block >= 0 else list(_ENTRY.finditer(re.sub(_QUOTES, _without_prose, line)))
        if matches and not indent:
            section = matches[0]["key"] or ""
        entries = [_entry(match, section) for match in matches]
        for pattern, kind in _TOKENS:
            if re.search(pattern, line):
                yield Secret(number, _shown(entries[-1][0]) if entries else "", *kind)
        for path, value in entries:
            continued = not value and _indent_after(lines, number) > indent
            if found := _by_name(path, "…" if continued else value):
                yield Secret(number, _shown(path), *found)
        if block < 0 and _BLOCK.search(line):
            block = indent


def _entry(match: re.Match[str], section: str) -> tuple[str, str]:
    """(path, value) of a key; a name of the shell has no section."""
    key, value = match["key"] or match["name"], (match["value"] or match["given"] or "").strip("\"'")
    return f"{section}.{key}" if match["key"] and section not in ("", key) else key, value


def _without_prose(quoted: re.Match[str]) -> str:
    return '"…"' if re.search(r"\s", quoted[0]) else quoted[0]


def _by_name(key: str, value: str) -> tuple[str, str] | None:
    """What kind of secret the value of ``section.key`` is, judged by the names; None if it is not one."""
    path = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_").lower()
    name = path.rpartition(".")[2]
    if path == "notify.url" and re.match(r"https?:", value):
        return _WEBHOOK
    if _HEX_KEY.fullmatch(value) and not _COMMIT_NAME.search(name):
        return _WANDB
    if not _SECRET_NAME.search(name) or _MODEL_TOKEN.search(name) or _NO_VALUE.fullmatch(value):
        return None
    is_path = name.endswith(("credential", "credentials")) and value.startswith(("/", "~"))
    if is_path or (name.endswith("token") and value.isdecimal()):
        return None
    return next((kind for words, kind in _NAMES if re.search(rf"(?:^|[._])(?:{words})(?:[._]|$)", path)), _OTHER)


def _shown(path: str) -> str:
    """A key for a message; "" when it looks like a token itself."""
    return "" if _HEX_KEY.search(path) or any(re.search(pattern, path) for pattern, _ in _TOKENS) else path


def _indent_after(lines: list[str], number: int) -> int:
    """Indentation of the next line that is neither empty nor a comment; -1 at the end."""
    rest = (lines[index] for index in range(number, len(lines)))
    indents = (len(line) - len(line.lstrip()) for line in rest if line.strip() and not line.lstrip().startswith("#"))
    return next(indents, -1)


def netrc_password(host: str) -> tuple[str, str]:
    """The password of a host in ``~/.netrc``, and why that file cannot be used; "" where there is none."""
    import netrc

    try:
        found = netrc.netrc().authenticators(host)
    except FileNotFoundError:
        return "", ""
    except (OSError, ValueError, netrc.NetrcParseError) as error:
        reason = "it is not UTF-8" if isinstance(error, ValueError) else getattr(error, "strerror", None) or error
        return "", f"~/.netrc cannot be read: {reason}"
    return (found[2] or "" if found else ""), ""
