"""The user's boxes: ``boxes.yaml`` in the platform's configuration directory, and this machine as ``local``.

    boxes:
      - name: h200-a
        host: 192.0.2.10          # or an alias of ~/.ssh/config
        root: /lambda/nfs/localfs

The fields of :class:`Box` are the table of its keys: each has its type, its default and a sentence, which the form and
docs/boxes.md take from there. PyYAML is imported only when a file is read.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from datetime import date, datetime
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, Union, get_args, get_origin, is_typeddict

from grpo_train.config.yaml_text import InvalidYaml, compose_yaml, load_yaml, value_of
from grpo_train.run_dir import ROOT_VARIABLE
from grpo_train.run_dir.credentials import find_secret
from grpo_train.run_dir.errors import did_you_mean
from grpo_train.run_dir.machine import UMASK_VARIABLE
from remote.base import BoxesError
from remote.protocol import Settings
from remote.protocol.check import ValueRule, describe, hints_of, matches
from remote.protocol.grants import Grant
from remote.protocol.jobs import JobOptions

LOCAL_NAME = "local"
URLS = {"lambda": "https://cloud.lambda.ai/api/v1"}
"""Each kind of provider, and where its API is."""
_FORWARD = re.compile(r"(\d{1,5}):(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*):(\d{1,5})")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_VARIABLE = re.compile(r"(?:^|_)(?:TOKEN|KEY)$|SECRET|PASSWORD", re.IGNORECASE)
_RESERVED: Mapping[str, str] = {
    ROOT_VARIABLE: "set 'root' of the box",
    UMASK_VARIABLE: "set 'umask' of the box",
    "LC_ALL": "the agent needs a UTF-8 locale; set LANG",
}
_HEADER = "# Boxes of grpo-tui. config/boxes.example.yaml documents every key.\nboxes:\n"


# ------------------------------------------------------------------------------------------------ the table of keys


def _fits(pattern: str) -> Callable[[str], bool]:
    return lambda value: re.fullmatch(pattern, value) is not None


def _are_days(prices: Mapping[str, float]) -> bool:
    try:
        return all(date.fromisoformat(day) for day in prices)
    except ValueError:
        return False


def read_forward(text: str) -> tuple[int, str, int]:
    """Local port, host and port of ``LOCAL:HOST:PORT``. Raises ValueError with what is wrong."""
    found = _FORWARD.fullmatch(text)
    if found is None or not all(0 < int(found[group]) < 65_536 for group in (1, 3)):
        raise ValueError(f"'{text}' must be LOCAL:HOST:PORT, such as 8888:127.0.0.1:8888")
    return int(found[1]), found[2].strip("[]"), int(found[3])


def _problem_of_forwards(forwards: list[str]) -> str:
    try:
        ports = [read_forward(line)[0] for line in forwards]
    except ValueError as error:
        return f"'forward' {error}"
    return "" if len(set(ports)) == len(ports) else "'forward' has a port of this machine twice"


def _problem_of_job(options: dict[str, Any]) -> str:
    try:
        JobOptions().changed(options)
    except ValueError as error:
        return f"'slurm': {error}"
    return ""


def _read_variables(node: Any, file: str) -> dict[str, str]:
    """The variables of a YAML node, as they are written: ``0`` and ``true`` stay what they are.

    Raises BoxesError that names the line, and never the value, which may be a secret.
    """
    import yaml

    def refuse(at: Any, problem: str, code: str = "bad_config") -> BoxesError:
        return BoxesError(f"{file}:{_line(at)}: 'env': {problem}", code=code)

    if not isinstance(node, yaml.MappingNode):
        raise refuse(node, "expected variables with their values, such as {HF_HOME: /data/hf}")
    found: dict[str, str] = {}
    for key, value in node.value:
        name = str(key.value)
        if not _VARIABLE.fullmatch(name):
            raise refuse(key, f"'{name}' is not a variable's name: letters, digits and '_', not starting with a digit")
        if name in _RESERVED:
            raise refuse(key, f"'{name}' cannot be set here; {_RESERVED[name]}")
        if not isinstance(value, yaml.ScalarNode) or value.tag == "tag:yaml.org,2002:null":
            raise refuse(key, f"the value of '{name}' must be a string")
        if _SECRET_VARIABLE.search(name) or find_secret(f"{name}={value.value}"):
            message = f"'{name}' looks like a secret, which process lists would show; put it in .env: grpo-tui env put"
            raise refuse(key, message, "secret")
        if not value.value.isprintable():
            raise refuse(key, f"the value of '{name}' must be one line of printable characters")
        found[name] = str(value.value)
    return found


def _read_provider(node: Any, file: str) -> Provider:
    """The provider of a YAML node. Raises BoxesError that names the line, and never a value that may be a key."""
    import yaml

    if not isinstance(node, yaml.MappingNode):
        like = "its kind and the file with its API key, such as {kind: lambda, key_file: ~/.lambda}"
        raise BoxesError(f"{file}:{_line(node)}: 'provider': expected {like}")
    return Provider(**_mapping(Provider, node, file, "'provider': "))


def _key(default: Any, about: str, unset: str = "", **more: Any) -> Any:
    """A key of the table, a field of :class:`Box` or :class:`Provider`. MISSING: the key is required.

    ``about`` says what it is, and ``unset`` what holds without it. ``label`` and ``example``: of its field in the form,
    which has no others. ``secret``: its value ends in command lines or records, so a secret there is
    refused, and no message shows it. ``read``: (YAML node, file) to value, for a key whose errors name lines of their
    own. ``check``: value to what is wrong or "", for what a type cannot say.
    """
    kind = "default_factory" if default in (list, dict) else "default"
    return field(**{kind: default}, metadata={"about": about, "unset": unset, **more})


class NotifyTable(TypedDict, total=False):
    """The keys of ``notify``."""

    command: Annotated[
        list[str], ValueRule("a list of strings, e.g. [/home/ubuntu/notify]", lambda v: bool(v) and all(v))
    ]
    url: Annotated[
        str,
        ValueRule(
            "the name of a variable, such as $NOTIFY_URL, because a webhook's address is a secret; set it in .env on "
            "the box",
            _fits(r"\$(?:\{\w+\}|[A-Za-z_]\w*)"),
        ),
    ]


Url: TypeAlias = Annotated[
    str, ValueRule("an address that starts with https:// and holds no password", _fits("((?i:https)://[^/@?#]+[^@]*)?"))
]


@dataclass(frozen=True)
class Provider:
    """The keys of ``provider``: an account of a provider, and the instance that is the box."""

    kind: Annotated[str, ValueRule(" or ".join(URLS), URLS.__contains__)] = _key(MISSING, f"who: {', '.join(URLS)}")
    key_file: str = _key(MISSING, "the file with the API key, for this account alone (0600)")
    instance: str = _key("", "name of the instance", "the name of the box")
    url: Url = _key("", "where its API is", "the provider's own place", secret=True)

    @property
    def base(self) -> str:
        """Where the API is, without a slash at its end."""
        return (self.url or URLS[self.kind]).rstrip("/")


Name: TypeAlias = Annotated[
    str,
    ValueRule(
        "up to 64 letters, digits, '.', '_' and '-', starting with a letter or digit",
        _fits(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"),
    ),
]
Port: TypeAlias = Annotated[int, ValueRule("an integer between 1 and 65535", lambda value: 0 <= value <= 65_535)]
Umask: TypeAlias = Annotated[str, ValueRule("three octal digits such as 077", _fits("(0?[0-7]{3})?"))]
Command: TypeAlias = Annotated[list[str], ValueRule("a list of strings, e.g. [/x/.venv/bin/grpo-train]")]
Dollars: TypeAlias = Annotated[float, ValueRule("a number (dollars)", lambda value: value >= 0)]
Prices: TypeAlias = Annotated[
    dict[str, Dollars], ValueRule("days with dollars per hour, such as {2026-09-01: 2.49}", _are_days)
]
Code: TypeAlias = Annotated[
    Literal["", "sync", "clone"], ValueRule("sync (grpo-tui sync brings it) or clone (git pull in 'repo')", bool)
]
Scheduler: TypeAlias = Annotated[Literal["", "slurm"], ValueRule("slurm (without it a run is a tmux session)", bool)]
Job: TypeAlias = Annotated[dict[str, Any], ValueRule('a mapping, such as {partition: gpu, gpus: 8, time: "24:00:00"}')]
NotifyKeys: TypeAlias = Annotated[
    NotifyTable,
    ValueRule("a mapping with 'command', 'url' or both", lambda value: value and value.keys() <= {"command", "url"}),
]
Forwards: TypeAlias = Annotated[list[str], ValueRule("a list of LOCAL:HOST:PORT, such as ['8888:127.0.0.1:8888']")]


@dataclass(frozen=True)
class Box:
    """One machine that trains: how to reach it, and its paths. Its fields are the keys of a box in boxes.yaml."""

    name: Name = _key(MISSING, "short name, used with --box", label="name", example="h200-a")
    """The host key is stored under it, so the address may change."""
    host: str = _key("", "address, or a host alias from ~/.ssh/config", label="host", example="192.0.2.10")
    """Empty for ``kind: local`` and with a provider."""
    user: str = _key("", "login name", "from ~/.ssh/config, as ssh does", label="user")
    port: Port = _key(0, "port of its SSH server", "from ~/.ssh/config, else 22", label="port")
    key: str = _key("", "private key file", "the ssh agent, then the default identity files", label="private key")
    repo: str = _key(
        "", "checkout of grpo-tui on the box; its config/ and .venv/ are used", label="checkout", example="~/grpo-tui"
    )
    code: Code = _key("", "where the code comes from: sync or clone", "repo as it is; without repo, what was synced")
    root: str = _key("", "where the box keeps runs (LOCALFS_ROOT)", label="root", example="/lambda/nfs/localfs")
    python: str = _key("", "interpreter of the agent on the box, 3.10 or newer", "the first one found")
    agent_dir: str = _key("", "directory of the agent on the box", "~/.grpo/agent")
    """Where it cannot be written: ``$XDG_RUNTIME_DIR``, else the agent runs from memory."""
    activate: str = _key(
        "", "shell snippet that activates the environment of grpo-train, if needed", label="activation", secret=True
    )
    engine: Command = _key(list, "command of the engine, as a list", "found by the agent", secret=True)
    env: dict[str, str] = _key(
        dict,
        "variables of every command started on the box; $NAME and ~ are the box's, no secrets",
        read=_read_variables,
    )
    price_per_hour: Dollars | None = _key(None, "price used for run cost", label="$ per hour")
    prices: Prices = _key(dict, "instead of price_per_hour: each price by the day from which it holds")
    kind: Literal["ssh", "local"] = _key("ssh", "ssh, or local: this machine", "ssh")
    transport: Literal["auto", "openssh", "paramiko"] = _key(
        "auto", "auto, openssh or paramiko: see ssh.md", "auto: this machine's ssh if it is usable, else paramiko"
    )
    tmux_socket: str = _key("", "name of the tmux socket (tmux -L)", "the default one")
    umask: Umask = _key("", "octal umask of runs, such as 007 for a group", "077, for this account alone")
    follow_links: bool = _key(False, "whether a log may be a symbolic link out of the root", "false")
    persistent: bool = _key(False, "whether the disk of the root outlives the box", "false")
    scheduler: Scheduler = _key("", "slurm: the box is a login node, and each run is a job", "a run is a tmux session")
    slurm: Job = _key(dict, "what a job asks for", "the cluster's default", check=_problem_of_job)
    """See :class:`remote.protocol.jobs.JobOptions`."""
    notify: NotifyKeys = _key(
        dict, "command and url of the notifications of runs launched here; a config's own notify wins", secret=True
    )
    provider: Provider | None = _key(None, "instead of host: who rents out the machine", read=_read_provider)
    """It is found by the name of its instance, see :mod:`remote.providers`."""
    forward: Forwards = _key(
        list, "LOCAL:HOST:PORT of each port of this machine that leads to an address as the box reaches it",
        check=_problem_of_forwards,
    )  # fmt: skip

    def settings(self, *, readonly: bool = False, grant: Grant | None = None) -> Settings:
        """The settings sent to the agent."""
        own = {item.name: getattr(self, item.name) for item in fields(Settings) if item.name not in _OF_A_SESSION}
        return Settings(**own, readonly=readonly, grant=asdict(grant) if grant else {})

    @property
    def is_local(self) -> bool:
        return self.kind == "local"

    def dated_prices(self) -> dict[float, float]:
        """Dollars per hour by the time (seconds since the epoch) from which each holds; {} without a price."""
        if self.price_per_hour is not None:
            return {0.0: float(self.price_per_hour)}
        return {datetime.fromisoformat(day).timestamp(): float(price) for day, price in self.prices.items()}

    def price_at(self, time: float) -> float | None:
        """Dollars per hour at a time; the first price holds before, too."""
        prices = sorted(self.dated_prices().items())
        past = [price for since, price in prices if since <= time]
        return past[-1] if past else prices[0][1] if prices else None

    def address(self) -> str:
        """Address for display."""
        if self.is_local:
            return "this machine"
        host = self.host or (f"{self.provider.kind}:{self.provider.instance or self.name}" if self.provider else "")
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")


_OF_A_SESSION = ("readonly", "grant")
"""Settings that boxes.yaml does not have."""


def default_path() -> Path:
    """``boxes.yaml`` in the platform's configuration directory."""
    import platformdirs

    return Path(platformdirs.user_config_dir("grpo-tui")) / "boxes.yaml"


def at_address(box: Box, address: str) -> Box:
    """The box at another address, in any spelling of ssh: ``[ssh://][user@]host[:port]``, where a user or port that it
    names replace those of the box. Raises BoxesError.
    """
    user, at, rest = address.removeprefix("ssh://").rstrip("/").rpartition("@")
    found = re.fullmatch(r"\[([^\[\]]+)\](?::(\d+))?|([^:\[\]]+)(?::(\d+))?|([^\[\]]*:[^\[\]]*:[^\[\]]*)", rest)
    if found is None or "/" in rest or (at and not user):
        raise BoxesError(
            f"box '{box.name}': invalid 'host' {address!r}; expected HOST, USER@HOST or ssh://USER@HOST:PORT"
        )
    host, port = found[1] or found[3] or found[5], found[2] or found[4]
    return replace(box, host=host, user=user or box.user, port=int(port) if port else box.port)


def local_box(root: str | Path = "", tmux_socket: str = "") -> Box:
    """This machine as a box: the engine installed beside this program, and its checkout if there is one."""
    script = Path(sys.executable).with_name("grpo-train")
    checkout = Path(__file__).resolve().parent.parent
    return Box(
        LOCAL_NAME,
        kind="local",
        root=str(root),
        repo=str(checkout) if (checkout / "config").is_dir() else "",
        engine=[str(script)] if script.exists() else [],
        tmux_socket=tmux_socket,
    )


def load_boxes(path: str | Path | None = None) -> list[Box]:
    """The boxes of a file (default: :func:`default_path`), then ``local`` unless the file defines it.

    A missing default file counts as empty. Raises BoxesError.
    """
    file = Path(path) if path else default_path()
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path:
            raise BoxesError(f"{file}: file not found; copy config/boxes.example.yaml there") from None
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise BoxesError(f"{file}: cannot read: {error}") from error
    boxes = parse_boxes(text, str(file))
    return boxes if any(box.name == LOCAL_NAME for box in boxes) else [*boxes, local_box()]


def entries_of(path: str | Path | None = None) -> set[str]:
    """The names that a file gives; ``local`` may be listed without one. Raises BoxesError."""
    file = Path(path) if path else default_path()
    return {box.name for box in parse_boxes(file.read_text(encoding="utf-8"), str(file))} if file.exists() else set()


def find_box(boxes: list[Box], name: str, path: str | Path | None = None) -> Box:
    """The box with this name. Raises BoxesError."""
    for box in boxes:
        if box.name == name:
            return box
    hint = did_you_mean(name, [box.name for box in boxes])
    raise BoxesError(f"no box named '{name}' in {path or default_path()}; {hint}")


def parse_boxes(text: str, file: str = "boxes.yaml") -> list[Box]:
    """The boxes of a YAML text. Raises BoxesError naming file, line and key."""
    boxes: list[Box] = []
    for node in _entries(text, file) if text else ():
        box = _box(node, file)
        if any(other.name == box.name for other in boxes):
            raise BoxesError(f"{file}:{_line(node)}: duplicate box name '{box.name}'")
        boxes.append(box)
    return boxes


def box_of(texts: Mapping[str, str], base: Box | None = None) -> Box:
    """A box from the texts of a form by key; "" = not set. ``base`` has what the form does not.

    Raises BoxesError that names the key.
    """
    values: dict[str, Any] = {}
    for item in fields(Box):
        if base is not None and item.name in texts:
            values[item.name] = item.default
        if text := texts.get(item.name):
            try:
                value = text if _is_text(hints_of(Box)[item.name]) else load_yaml(text)
            except InvalidYaml:
                value = text
            values[item.name] = _checked(item, hints_of(Box)[item.name], value)
    box = Box(**values) if base is None else replace(base, **values)
    if problem := _problem_of(box):
        raise BoxesError(problem)
    return at_address(box, box.host) if box.host else box


def add_box(path: str | Path | None, box: Box) -> Path:
    """Append a box to a file (default: :func:`default_path`), keeping comments; a missing file is created.

    Raises BoxesError when the name is taken, the box is invalid, or the file cannot be read or written.
    """
    file = Path(path) if path else default_path()
    box = at_address(box, box.host) if box.host else box

    def added(text: str, boxes: list[Box]) -> tuple[str, list[Box]]:
        if any(known.name == box.name for known in boxes):
            raise BoxesError(f"{file}: a box named '{box.name}' already exists")
        return _insert(text, _render(box), str(file)), [*boxes, box]

    return _rewrite(file, added, "add to")


def change_box(path: str | Path | None, name: str, box: Box) -> Path:
    """Write what the form can change of a box of a file. The rest of the file stays as it is, comments included.

    Raises BoxesError as :func:`add_box`, and where the file has no such box.
    """
    file = Path(path) if path else default_path()

    def changed(text: str, boxes: list[Box]) -> tuple[str, list[Box]]:
        at = _index_of(boxes, name, file)
        if box.name != name and any(known.name == box.name for known in boxes):
            raise BoxesError(f"{file}: a box named '{box.name}' already exists")
        return _with_values(text, _entries(text, str(file))[at], boxes[at], box), [
            *boxes[:at], box, *boxes[at + 1 :],
        ]  # fmt: skip

    return _rewrite(file, changed, "change")


def remove_box(path: str | Path | None, name: str) -> Path:
    """Remove the lines of a box from a file. All comments outside of its entry stay. Raises BoxesError."""
    file = Path(path) if path else default_path()

    def removed(text: str, boxes: list[Box]) -> tuple[str, list[Box]]:
        at = _index_of(boxes, name, file)
        entry, rows = _entries(text, str(file))[at], text.splitlines(keepends=True)
        return "".join([*rows[: _line(entry) - 1], *rows[_last_line(entry) :]]), [*boxes[:at], *boxes[at + 1 :]]

    return _rewrite(file, removed, "remove from")


def _index_of(boxes: list[Box], name: str, file: Path) -> int:
    """Place of a box in its file. Raises BoxesError: ``local`` is listed without an entry."""
    names = [box.name for box in boxes]
    if name not in names:
        raise BoxesError(f"{file}: no box named '{name}'")
    return names.index(name)


def _rewrite(file: Path, edit: Callable[[str, list[Box]], tuple[str, list[Box]]], verb: str) -> Path:
    """Write an edited text of a file, once it is read as the boxes that are expected of it. Raises BoxesError."""
    from grpo_train.run_dir.files import atomic_write

    try:
        written = file.read_bytes().decode() if file.exists() else ""
        old = written.replace("\r\n", "\n")
        text, expected = edit(old, parse_boxes(old, str(file)))
        try:
            is_as_expected = parse_boxes(text, str(file)) == expected
        except BoxesError:
            is_as_expected = False
        if not is_as_expected:
            raise BoxesError(f"{file}: cannot {verb} this file's layout; edit it in an editor")
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, text.replace("\n", "\r\n") if "\r\n" in written else text, mode=0o600)
    except OSError as error:
        raise BoxesError(f"{file}: cannot write: {error.strerror or error}") from error
    return file


def notify_overrides(notify: Mapping[str, Any], config_text: str, overrides: Sequence[str]) -> list[str]:
    """The overrides of a launch that stand for a box's ``notify``; [] where the config or an override has its own."""
    if not notify or any(override.strip().startswith("notify.") for override in overrides):
        return []
    try:
        document = load_yaml(config_text)
    except InvalidYaml:
        return []  # the check of the config says so
    if not isinstance(document, dict) or "notify" in document:
        return []
    return [f"notify.{key}={json.dumps(notify[key])}" for key in ("command", "url") if key in notify]


# ------------------------------------------------------------------------------------------------------ reading


def _entries(text: str, file: str) -> list[Any]:
    """YAML nodes of the ``boxes`` list; nodes carry line numbers."""
    import yaml

    try:
        top = compose_yaml(text)
    except InvalidYaml as error:
        raise BoxesError(error.at(file)) from error
    if top is None:
        return []
    if not isinstance(top, yaml.MappingNode):
        raise BoxesError(f"{file}:{_line(top)}: expected 'boxes:' with a list below it")
    for key, value in top.value:
        if key.value != "boxes":
            raise BoxesError(f"{file}:{_line(key)}: unknown key '{key.value}'; the only key here is 'boxes'")
        if isinstance(value, yaml.ScalarNode) and not value.value:
            return []
        if not isinstance(value, yaml.SequenceNode):
            raise BoxesError(f"{file}:{_line(value)}: 'boxes' must be a list ('- name: …')")
        return list(value.value)
    return []


def _box(node: Any, file: str) -> Box:
    import yaml

    where = f"{file}:{_line(node)}"
    if not isinstance(node, yaml.MappingNode):
        raise BoxesError(f"{where}: a box is a mapping ('- name: …')")
    box = Box(**_mapping(Box, node, file))
    if box.host:
        try:
            at = at_address(box, box.host)
        except BoxesError as error:
            raise BoxesError(f"{where}: {error}") from error
        for key in ("user", "port"):
            if (own := getattr(box, key)) not in ("", 0, getattr(at, key)):
                raise BoxesError(
                    f"{where}: box '{box.name}': 'host' {box.host!r} has another {key} than '{key}': {own}"
                )
        box = at
    if box.is_local and not (box.repo or box.engine or box.activate or box.code):
        own = local_box()  # this program's own engine, as without an entry
        box = replace(box, repo=own.repo, engine=own.engine)
    if problem := _problem_of(box):
        raise BoxesError(f"{where}: {problem}")
    return box


def _problem_of(box: Box) -> str:
    """Which keys of a box do not go together, or ""."""
    if box.kind == "ssh" and not box.host and box.provider is None:
        return f"box '{box.name}' needs a 'host' (or a 'provider', or 'kind: local')"
    if box.provider is not None and (box.host or box.is_local):
        return f"box '{box.name}': give 'provider' alone: it finds the address"
    for key, value in (("host", box.host), ("user", box.user)):
        if value.startswith("-") or any(c.isspace() or not c.isprintable() for c in value):
            return f"box '{box.name}': invalid '{key}' {value!r}"
    if box.slurm and box.scheduler != "slurm":
        return f"box '{box.name}': 'slurm' needs 'scheduler: slurm'"
    if box.prices and box.price_per_hour is not None:
        return f"box '{box.name}': give 'price_per_hour' or 'prices', not both"
    return ""


def _mapping(kind: type, node: Any, file: str, inside: str = "") -> dict[str, Any]:
    """What a mapping sets, by a table of keys. Raises BoxesError naming file, line and key."""
    known, hints, values = {item.name: item for item in fields(kind)}, hints_of(kind), {}
    for key_node, value_node in node.value:
        key, where = str(key_node.value), f"{file}:{_line(key_node)}: {inside}"
        if inside and key in ("key", "api_key", "token"):
            problem = f"{where}'{key}': the API key belongs into a file of its own: key_file: FILE"
            raise BoxesError(problem, code="secret")
        if key not in known:
            raise BoxesError(f"{where}unknown key '{key}'; {did_you_mean(key, sorted(known))}")
        if read := known[key].metadata.get("read"):
            values[key] = read(value_node, file)
            continue
        try:
            value = value_of(value_node)
            if isinstance(value, dict):
                value = {str(name): each for name, each in value.items()}
            elif value is not None and not isinstance(value, list) and _is_text(hints[key]):
                value = str(value_node.value)  # as written: an unquoted 0123 or 1.10 is kept verbatim
            if value is not None:  # the default
                values[key] = _checked(known[key], hints[key], value)
        except InvalidYaml as error:
            raise BoxesError(f"{where}'{key}': {error}") from error
        except BoxesError as error:
            raise BoxesError(f"{where}{error}", code=error.code) from error
    for item in known.values():
        if item.default is item.default_factory is MISSING and not values.get(item.name):
            raise BoxesError(f"{file}:{_line(node)}: {inside}'{item.name}' is missing: {item.metadata['about']}")
    return values


def _is_text(kind: Any) -> bool:
    bare = _bare(kind)
    return bare is str or get_origin(bare) is Literal


def _bare(kind: Any) -> Any:
    """A type without its rules and without None."""
    return _bare(get_args(kind)[0]) if get_origin(kind) in (Annotated, Union, UnionType) else kind


def _checked(item: Field[Any], kind: Any, value: Any) -> Any:
    """A value of a key of the table. Raises BoxesError that names the key."""
    is_secret = bool(item.metadata.get("secret"))
    check = item.metadata.get("check", lambda _: "")
    if problem := _mismatch(item.name, kind, value, is_secret) or check(value):
        raise BoxesError(problem)
    given = value.get("command", []) if isinstance(value, dict) else value
    for text in given if isinstance(given, list) else [given]:
        if is_secret and (secret := find_secret(str(text))):
            raise BoxesError(secret.explain(f"'{item.name}'"), code="secret")
    return value


def _mismatch(name: str, kind: Any, value: Any, is_secret: bool) -> str:
    """Why a value does not have a type, or ""."""
    if is_typeddict(bare := _bare(kind)) and isinstance(value, dict):
        keys = ((f"{name}.{key}", hint, value[key]) for key, hint in hints_of(bare).items() if key in value)
        if problem := next(filter(None, (_mismatch(*key, is_secret) for key in keys)), ""):
            return problem
    if matches(value, kind):
        return ""
    got = "" if is_secret or isinstance(value, (list, dict)) else f", not {value!r}"
    return f"'{name}' must be {describe(kind)}{got}"


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


# ------------------------------------------------------------------------------------------------------ writing


def _render(box: Box) -> list[str]:
    """A box as YAML lines without indentation, defaults omitted."""
    import yaml

    defaults = asdict(Box(box.name))
    chosen = {key: value for key, value in asdict(box).items() if key == "name" or value != defaults[key]}
    lines = yaml.safe_dump(chosen, sort_keys=False, allow_unicode=True, width=10_000).splitlines()
    return [("- " if i == 0 else "  ") + line for i, line in enumerate(lines)]


def _insert(text: str, lines: list[str], file: str) -> str:
    """``text`` with a box's lines after the last entry of its list, indented alike."""
    entries = _entries(text, file)
    if text and not text.endswith("\n"):
        text += "\n"
    if not entries:
        has_key = re.search(r"^boxes:[^\S\n]*(\[\])?[^\S\n]*(#.*)?$", text, re.MULTILINE)
        block = "".join(f"  {line}\n" for line in lines)
        if has_key:
            return text[: has_key.start()] + "boxes:\n" + block + text[has_key.end() + 1 :]
        return text + _HEADER + block
    indent = " " * max(0, int(entries[-1].start_mark.column) - 2)
    rows, last = text.splitlines(keepends=True), max(_last_line(entry) for entry in entries)
    return "".join([*rows[:last], *(f"{indent}{line}\n" for line in lines), *rows[last:]])


ADDRESS = ("host", "user", "port")
"""Keys that ``host: user@address:port`` gives together."""


def _with_values(text: str, entry: Any, old: Box, new: Box) -> str:
    """``text`` with the changed values of the form in the entry of a box."""
    import yaml

    nodes = {str(key.value): (key, value) for key, value in entry.value}
    moved = any(getattr(old, key) != getattr(new, key) for key in ADDRESS)
    edits: list[tuple[int, int, str]] = []
    for item in fields(Box):
        key, value = item.name, getattr(new, item.name)
        given = nodes.get(key)
        is_other = moved and key in ADDRESS and (str(given[1].value) if given else "") != str(value or "")
        if "label" not in item.metadata or (value == getattr(old, key) and not is_other):
            continue
        scalar = yaml.safe_dump(value, allow_unicode=True, width=10_000).splitlines()[0]
        if given is None:
            end = entry.end_mark.index - 1 if entry.flow_style else _end_of_line(text, _last_line(entry))
            lead = "\n" if text[end - 1 : end] not in ("", "\n") else ""
            added = f"{lead}{' ' * entry.value[0][0].start_mark.column}{key}: {scalar}\n"
            edits += [] if value == item.default else [(end, end, f", {key}: {scalar}" if entry.flow_style else added)]
            continue
        name, held = given
        start, line = name.start_mark.index, _end_of_line(text, _line(name) - 1)
        if value == item.default and not entry.flow_style and not text[line:start].strip():
            edits.append((line, _end_of_line(text, _last_line(held)), ""))  # a line of its own
        else:
            is_block = held.style in ("|", ">")
            edits.append((held.start_mark.index, held.end_mark.index, f"{scalar}\n" if is_block else scalar))
    for start, end, part in sorted(edits, key=lambda edit: edit[0], reverse=True):
        text = text[:start] + part + text[end:]
    return text


def _end_of_line(text: str, count: int) -> int:
    """Index behind this many lines."""
    return sum(map(len, text.splitlines(keepends=True)[:count]))


def _last_line(node: Any) -> int:
    """Last line of a node; the end mark of a block would include the comments after it."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        return max((_last_line(value) for _, value in node.value), default=_line(node))
    if isinstance(node, yaml.SequenceNode) and not node.flow_style:
        return max((_last_line(value) for value in node.value), default=_line(node))
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return int(node.end_mark.line)
    return int(node.end_mark.line) + 1
