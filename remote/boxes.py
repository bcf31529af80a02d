"""The user's boxes: ``boxes.yaml`` in the platform's configuration directory, and this machine as ``local``.

    boxes:
      - name: h200-a
        host: 192.0.2.10          # or an alias of ~/.ssh/config
        root: /lambda/nfs/localfs

``config/boxes.example.yaml`` documents every key. PyYAML is imported only when a file is read.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from grpo_train.config.yaml_text import InvalidYaml, compose_yaml, load_yaml, value_of
from grpo_train.run_dir import ROOT_VARIABLE
from grpo_train.run_dir.credentials import find_secret
from grpo_train.run_dir.suggest import did_you_mean
from grpo_train.run_dir.umask import UMASK_VARIABLE
from remote.base import BoxesError
from remote.protocol import Settings
from remote.protocol.slurm import JobOptions

LOCAL_NAME = "local"
URLS = {"lambda": "https://cloud.lambda.ai/api/v1"}
"""Each kind of provider, and where its API is."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FORWARD = re.compile(r"(\d{1,5}):(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*):(\d{1,5})")
_UMASK = re.compile(r"0?[0-7]{3}")
_REFERENCE = re.compile(r"\$(?:\{\w+\}|[A-Za-z_]\w*)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_VARIABLE = re.compile(r"(?:^|_)(?:TOKEN|KEY)$|SECRET|PASSWORD", re.IGNORECASE)
_RESERVED: Mapping[str, str] = {
    ROOT_VARIABLE: "set 'root' of the box",
    UMASK_VARIABLE: "set 'umask' of the box",
    "LC_ALL": "the agent needs a UTF-8 locale; set LANG",
}
_HEADER = "# Boxes of grpo-tui. config/boxes.example.yaml documents every key.\nboxes:\n"


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


@dataclass(frozen=True)
class Box:
    """One machine that trains: how to reach it, and its paths. Every field except ``name`` has a default."""

    name: str
    """Short name; the host key is stored under it, so the address may change."""
    host: str = ""
    """Address, or an alias of ``~/.ssh/config``. Empty for ``kind: local`` and with a provider."""
    user: str = ""
    """Login name; "" = the one ``ssh`` would use."""
    port: int = 0
    """0 = the one ``ssh`` would use (22)."""
    key: str = ""
    """Private key file; "" = the SSH agent, then the identity files ``ssh`` would try."""
    repo: str = ""
    """Checkout of grpo-tui on the box; its ``config/`` and ``.venv/`` are used."""
    code: Literal["", "sync", "clone"] = ""
    """Where its code comes from: see :attr:`remote.protocol.Settings.code`."""
    root: str = ""
    """LOCALFS_ROOT on the box; "" = the engine's own default."""
    python: str = ""
    """Interpreter of the agent on the box (3.10 or newer); "" = the first one found."""
    agent_dir: str = ""
    """Directory of the agent on the box; "" = ``~/.grpo/agent``. Where it cannot be written: ``$XDG_RUNTIME_DIR``, else
    the agent runs from memory."""
    activate: str = ""
    """Shell snippet that activates the engine's environment."""
    engine: list[str] = field(default_factory=list)
    """Command of the engine; [] = found by the agent."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of every command started on the box, PATH included; ``$NAME`` and ``~`` are the box's. No secrets."""
    price_per_hour: float | None = None
    """Price in dollars, used for run cost."""
    prices: dict[str, float] = field(default_factory=dict)
    """Instead of ``price_per_hour``: prices by the day (``2026-09-01``) from which each holds."""
    kind: Literal["ssh", "local"] = "ssh"
    transport: Literal["auto", "openssh", "paramiko"] = "auto"
    """``auto``: this machine's ``ssh`` if it is usable, else paramiko (see :mod:`remote.transports.choice`)."""
    tmux_socket: str = ""
    """Name of the tmux socket (``tmux -L``); "" = the default one."""
    umask: str = ""
    """Octal umask of runs, such as 007 for a group that shares them; "" = 077, for this account alone."""
    follow_links: bool = False
    """Whether a log may be a symbolic link out of the root."""
    persistent: bool = False
    """Whether the disk of the root outlives the box."""
    scheduler: Literal["", "slurm"] = ""
    """``slurm``: the box is a login node, and each run is a job."""
    slurm: dict[str, Any] = field(default_factory=dict)
    """What a job asks for, see :class:`remote.protocol.slurm.JobOptions`."""
    notify: dict[str, Any] = field(default_factory=dict)
    """``command`` and ``url`` of the notifications of runs launched here; a config's own ``notify`` wins."""
    provider: Provider | None = None
    """Who rents out the machine: it is found by the name of its instance (see :mod:`remote.providers`)."""
    forward: list[str] = field(default_factory=list)
    """``LOCAL:HOST:PORT`` of each port of this machine that leads to an address as the box reaches it."""

    def settings(self, *, readonly: bool = False) -> Settings:
        """The settings sent to the agent."""
        own = {item.name: getattr(self, item.name) for item in fields(Settings) if item.name != "readonly"}
        return Settings(**own, readonly=readonly)

    @property
    def is_local(self) -> bool:
        return self.kind == "local"

    def dated_prices(self) -> dict[float, float]:
        """Dollars per hour by the time (seconds since the epoch) from which each holds; {} without a price."""
        if self.price_per_hour is not None:
            return {0.0: self.price_per_hour}
        return {datetime.fromisoformat(day).timestamp(): price for day, price in self.prices.items()}

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


def add_box(path: str | Path | None, box: Box) -> Path:
    """Append a box to a file (default: :func:`default_path`), keeping comments; a missing file is created.

    Raises BoxesError when the name is taken, the box is invalid, or the file cannot be read or written.
    """
    from grpo_train.run_dir.files import atomic_write

    file = Path(path) if path else default_path()
    box = at_address(box, box.host) if box.host else box
    try:
        written = file.read_bytes().decode() if file.exists() else ""
        old = written.replace("\r\n", "\n")
        if any(known.name == box.name for known in parse_boxes(old, str(file))):
            raise BoxesError(f"{file}: a box named '{box.name}' already exists")
        text = _insert(old, _render(box), str(file))
        if box not in parse_boxes(text, str(file)):
            raise BoxesError(f"{file}: cannot add to this file's layout; edit it in an editor")
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


def read_forward(text: str) -> tuple[int, str, int]:
    """Local port, host and port of ``LOCAL:HOST:PORT``. Raises ValueError with what is wrong."""
    found = _FORWARD.fullmatch(text)
    if found is None or not all(0 < int(found[group]) < 65_536 for group in (1, 3)):
        raise ValueError(f"'{text}' must be LOCAL:HOST:PORT, such as 8888:127.0.0.1:8888")
    return int(found[1]), found[2].strip("[]"), int(found[3])


def _problem_of_forwards(value: object) -> str:
    """Why a value is not a list of forwards, or ""."""
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        return "must be a list of LOCAL:HOST:PORT, such as ['8888:127.0.0.1:8888']"
    try:
        ports = [read_forward(line)[0] for line in value]
    except ValueError as error:
        return str(error)
    return "" if len(set(ports)) == len(ports) else "has a port of this machine twice"


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

    if not isinstance(node, yaml.MappingNode):
        raise BoxesError(f"{file}:{_line(node)}: a box is a mapping ('- name: …')")
    known = {item.name for item in fields(Box)}
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key, where = str(key_node.value), f"{file}:{_line(key_node)}"
        if key not in known:
            raise BoxesError(f"{where}: unknown key '{key}'; {did_you_mean(key, sorted(known))}")
        values[key] = READERS[key](value_node, file) if key in READERS else _value(key, value_node, where)
    where = f"{file}:{_line(node)}"
    if "name" not in values:
        raise BoxesError(f"{where}: a box needs a 'name'")
    box = Box(**values)
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
    if box.is_local and not {"repo", "engine", "activate", "code"} & values.keys():
        own = local_box()  # this program's own engine, as without an entry
        box = replace(box, repo=own.repo, engine=own.engine)
    if problem := problem_of(box):
        raise BoxesError(f"{where}: {problem}")
    return box


def problem_of(box: Box) -> str:
    """Why a box is invalid, or ""."""
    if not _NAME.fullmatch(box.name):
        return (
            f"invalid box name '{box.name}'; use up to 64 letters, digits, '.', '_' and '-', "
            "starting with a letter or digit"
        )
    if box.kind == "ssh" and not box.host and box.provider is None:
        return f"box '{box.name}' needs a 'host' (or a 'provider', or 'kind: local')"
    if box.provider is not None and (box.host or box.is_local):
        return f"box '{box.name}': give 'provider' alone: it finds the address"
    for key, value in (("host", box.host), ("user", box.user)):
        if value.startswith("-") or any(c.isspace() or not c.isprintable() for c in value):
            return f"box '{box.name}': invalid '{key}' {value!r}"
    if box.umask and not _UMASK.fullmatch(box.umask):
        return f"box '{box.name}': 'umask' must be three octal digits such as 077, not {box.umask!r}"
    if not 0 <= box.port <= 65_535:
        return f"box '{box.name}': 'port' must be between 1 and 65535, not {box.port}"
    if box.slurm and box.scheduler != "slurm":
        return f"box '{box.name}': 'slurm' needs 'scheduler: slurm'"
    if box.prices and box.price_per_hour is not None:
        return f"box '{box.name}': give 'price_per_hour' or 'prices', not both"
    return ""


def _value(key: str, node: Any, where: str) -> Any:
    try:
        value = value_of(node)
    except InvalidYaml as error:
        raise BoxesError(f"{where}: '{key}': {error}") from error
    if key == "notify" and (problem := _problem_of_notify(value)):
        raise BoxesError(f"{where}: {problem}")
    if key in ("activate", "engine", "notify"):  # all end up in command lines or records on the box
        given = value.get("command", []) if isinstance(value, dict) else value
        for text in given if isinstance(given, list) else [given]:
            if secret := find_secret(str(text)):
                raise BoxesError(secret.explain(f"{where}: '{key}'"), code="secret")
    if key == "notify":
        return value
    if key == "forward":
        if problem := _problem_of_forwards(value):
            raise BoxesError(f"{where}: 'forward' {problem}")
        return value
    if key == "engine":
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
        raise BoxesError(f"{where}: 'engine' must be a list of strings, e.g. [/x/.venv/bin/grpo-train]")
    if key == "port":
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise BoxesError(f"{where}: 'port' must be an integer, not {value!r}")
    if key == "price_per_hour":
        return _read_price(value, where)
    if key == "prices":
        return _read_prices(value, where)
    if key in ("follow_links", "persistent"):
        if isinstance(value, bool):
            return value
        raise BoxesError(f"{where}: '{key}' must be true or false, not {value!r}")
    if key == "kind":
        if value in ("ssh", "local"):
            return value
        raise BoxesError(f"{where}: 'kind' must be ssh or local, not {value!r}")
    if key == "transport":
        if value in ("auto", "openssh", "paramiko"):
            return value
        raise BoxesError(f"{where}: 'transport' must be auto, openssh or paramiko, not {value!r}")
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        raise BoxesError(f"{where}: '{key}' must be a string")
    return str(node.value)  # as written: an unquoted 0123 or 1.10 is kept verbatim


def _read_price(value: Any, where: str) -> float | None:
    """``price_per_hour``. Raises BoxesError."""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0):
        return None if value is None else float(value)
    raise BoxesError(f"{where}: 'price_per_hour' must be a number (dollars), not {value!r}")


def _read_prices(value: Any, where: str) -> dict[str, float]:
    """``prices``: YAML reads an unquoted day as a date. Raises BoxesError."""
    found = {}
    for day, price in value.items() if isinstance(value, dict) else [("", None)]:
        try:
            date.fromisoformat(str(day))
        except ValueError:
            price = None
        if isinstance(price, bool) or not isinstance(price, (int, float)) or price < 0:
            raise BoxesError(f"{where}: 'prices' must be days with dollars per hour, such as {{2026-09-01: 2.49}}")
        found[str(day)] = float(price)
    return found


def _problem_of_notify(value: Any) -> str:
    """Why a ``notify`` of boxes.yaml is invalid, or ""."""
    if not isinstance(value, dict) or not value or set(value) - {"command", "url"}:
        return "'notify' must have 'command', 'url' or both"
    command, url = value.get("command", ["x"]), value.get("url", "$X")
    if not isinstance(command, list) or not command or not all(isinstance(word, str) and word for word in command):
        return "'notify.command' must be a list of strings, e.g. [/home/ubuntu/notify]"
    if not isinstance(url, str) or not _REFERENCE.fullmatch(url):
        return (
            "'notify.url' must be the name of a variable, such as $NOTIFY_URL, because a webhook's address is a "
            "secret; set it in .env on the box"
        )
    return ""


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _read_code(node: Any, file: str) -> str:
    """The mode of a YAML node. Raises BoxesError."""
    if node.value not in ("sync", "clone"):
        problem = f"'code' must be sync (grpo-tui sync brings it) or clone (git pull in 'repo'), not {node.value!r}"
        raise _refused(node, file, problem)
    return str(node.value)


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

    def refuse(at: Any, problem: str, code: str = "bad_config") -> BoxesError:
        return BoxesError(f"{file}:{_line(at)}: 'provider': {problem}", code=code)

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


def _read_scheduler(node: Any, file: str) -> str:
    """The scheduler of a YAML node. Raises BoxesError."""
    if node.value != "slurm":
        raise _refused(node, file, f"'scheduler' must be slurm, not {node.value!r}; without it a run is a tmux session")
    return "slurm"


def _read_job_options(node: Any, file: str) -> dict[str, Any]:
    """What jobs ask for, checked. Raises BoxesError that names line and key."""
    try:
        value = value_of(node)
    except InvalidYaml as error:
        raise _refused(node, file, f"'slurm': {error}") from error
    if not isinstance(value, dict):
        raise _refused(node, file, "'slurm' must be a mapping, such as {partition: gpu, gpus: 8, time: \"24:00:00\"}")
    try:
        JobOptions().changed({str(key): item for key, item in value.items()})
    except ValueError as error:
        raise _refused(node, file, f"'slurm': {error}") from error
    return {str(key): item for key, item in value.items()}


def _refused(node: Any, file: str, problem: str) -> BoxesError:
    return BoxesError(f"{file}:{_line(node)}: {problem}")


READERS: dict[str, Callable[[Any, str], Any]] = {
    "code": _read_code, "env": _read_variables, "provider": _read_provider, "scheduler": _read_scheduler,
    "slurm": _read_job_options,
}  # fmt: skip
"""Keys with a reader of their own: (YAML node, file) to value. Raises BoxesError."""


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
