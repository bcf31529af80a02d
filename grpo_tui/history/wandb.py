"""``grpo-tui wandb``: what Weights & Biases has of runs, matched to the history by ID. Needs no ``wandb`` here."""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from grpo_train.history.database import Database, HistoryError
from grpo_train.history.record import Record
from grpo_train.run_dir.credentials import netrc_password
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.suggest import nearest
from grpo_tui.history import history_file
from grpo_tui.history.tables import print_table

CLOUD, PROJECT = "https://api.wandb.ai", "grpo-tui"
TIMEOUT_S = 30.0
PAGE = 100
MAX_BYTES = 64 << 20
MAX_TEXT = 200
_FIELDS = "name displayName state group createdAt summaryMetrics historyKeys historyLineCount tags"
_RUNS = f"""query Runs($entity: String, $project: String!, $first: Int!, $after: String) {{
  project(name: $project, entityName: $entity) {{ runs(first: $first, after: $after, order: "-created_at") {{
    edges {{ node {{ {_FIELDS} }} }} pageInfo {{ hasNextPage endCursor }} }} }} }}"""
_RUN = f"""query Run($entity: String, $project: String!, $name: String!) {{
  project(name: $project, entityName: $entity) {{ run(name: $name) {{ {_FIELDS} }} }} }}"""


@dataclass(frozen=True)
class TrackedRun:
    """A run as W&B has it."""

    id: str
    name: str
    state: str
    group: str
    created_at: str
    rows: int
    summary: dict[str, Any] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    """Of its history."""

    @property
    def identity(self) -> str:
        """Identity of our run; a resume from an earlier step has ``-r1`` behind it."""
        return self.id.partition("-r")[0]


class Wandb:
    """Reads from a W&B server. Methods raise UserError."""

    def __init__(self, environment: Mapping[str, str] = os.environ, entity: str = "", project: str = "") -> None:
        self.url = (environment.get("WANDB_BASE_URL") or CLOUD).rstrip("/")
        kept, problem = netrc_password(urlsplit(self.url).hostname or "")
        self._key = environment.get("WANDB_API_KEY") or kept
        self._of = {
            "entity": entity or environment.get("WANDB_ENTITY") or None,
            "project": project or environment.get("WANDB_PROJECT") or PROJECT,
        }
        if not self._key:
            reason = f" ({problem})" if problem else ""
            raise UserError(
                f"no API key for {self.url}{reason}: run 'wandb login', or set WANDB_API_KEY", code="no_key"
            )

    def runs(self) -> list[TrackedRun]:
        """The runs of the project, newest first."""
        found: list[TrackedRun] = []
        after = None
        while True:
            project = self._ask(_RUNS, first=PAGE, after=after).get("project")
            if not isinstance(project, dict):
                raise UserError(
                    f"{self.url} has no project '{self._of['project']}' for this account", code="no_project"
                )
            page = project["runs"]
            found += [_tracked(edge["node"]) for edge in page["edges"]]
            if not page["pageInfo"]["hasNextPage"]:
                return found
            after = page["pageInfo"]["endCursor"]

    def run(self, id: str) -> TrackedRun | None:
        """A run by its ID."""
        project = self._ask(_RUN, name=id).get("project") or {}
        return _tracked(project["run"]) if project.get("run") else None

    def _ask(self, query: str, **variables: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}/graphql",
            json.dumps({"query": query, "variables": {**self._of, **variables}}).encode(),
            {
                "Content-Type": "application/json",
                "Authorization": "Basic " + base64.b64encode(f"api:{self._key}".encode()).decode(),
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                answer = json.loads(reply.read(MAX_BYTES))
        except urllib.error.HTTPError as error:
            hint = ": check WANDB_API_KEY" if error.code in (401, 403) else ""
            raise UserError(f"{self.url} answered {error.code}{hint}", code="refused") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(f"{self.url} cannot be reached: {reason}", code="unreachable") from error
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict):
            message = str((answer.get("errors") or [{}])[0].get("message", "")) if isinstance(answer, dict) else ""
            raise UserError(f"{self.url} did not answer: {message[:MAX_TEXT]}", code="refused")
        return data


def run(words: list[str]) -> int:
    """The command; returns its exit code."""
    arguments = _parser().parse_args(words[1:])
    try:
        wandb = Wandb(entity=arguments.entity, project=arguments.project)
        records = _records(Database(arguments.file or history_file()))
        if arguments.command == "runs":
            return _print_runs(wandb.runs(), records, arguments.json)
        return _show(wandb, arguments.id, records, arguments.json)
    except (KeyError, TypeError, AttributeError) as error:
        print(f"grpo-tui: W&B answered something unexpected ({type(error).__name__}: {error})", file=sys.stderr)
        return 1
    except UserError as error:
        print(f"grpo-tui: {error}", file=sys.stderr)
        return 2 if error.code in ("no_key", "no_run") else 1


def _parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="grpo-tui wandb",
        description="Show what Weights & Biases has of runs (docs/tracking.md).",
        epilog="The key comes from WANDB_API_KEY or ~/.netrc, the server from WANDB_BASE_URL.",
    )
    commands = options.add_subparsers(dest="command", required=True, metavar="runs|show")
    for name, about in (("runs", "list the runs of a project"), ("show", "show one run")):
        command = commands.add_parser(name, help=about, description=about)
        if name == "show":
            command.add_argument("id", metavar="ID", help="ID, or name of a run in the history or in W&B")
        command.add_argument("--entity", default="", help="user or team (default: WANDB_ENTITY, else your account)")
        command.add_argument("--project", default="", help="project (default: WANDB_PROJECT, else grpo-tui)")
        command.add_argument("--json", action="store_true", help="print JSON")
        command.add_argument("--file", type=Path, metavar="FILE", help="file of records")
    return options


def _print_runs(runs: list[TrackedRun], records: Mapping[str, Record], as_json: bool) -> int:
    if as_json:
        print(json.dumps([_facts(one, records) for one in runs], indent=1))
        return 0
    if not runs:
        print("no runs in this project")
        return 0
    rows = []
    for one in runs:
        record = records.get(one.identity)
        place = f"{record.name} on {record.box}" if record else ""
        rows.append([one.id, one.name, one.state, str(one.summary.get("state") or ""), f"{one.rows:,}", place])
    print_table(("id", "name", "W&B", "state", "rows", "in the history"), rows)
    return 0


def _show(wandb: Wandb, id: str, records: Mapping[str, Record], as_json: bool) -> int:
    found = _find(wandb, id, records)
    if as_json:
        print(json.dumps(_facts(found, records), indent=1))
        return 0
    record = records.get(found.identity)
    place = f"{record.name} on {record.box}, {record.state}" if record else "not in it"
    lines = {
        "id": found.id, "name": found.name, "W&B": found.state, "group": found.group, "created": found.created_at,
        "rows": f"{found.rows:,}", "history": place,
    }  # fmt: skip
    print("\n".join(f"{label:<16}{value}" for label, value in lines.items()))
    for key, value in sorted(found.summary.items()):
        if not key.startswith("_"):
            print(f"{'summary':<16}{key} = {str(value)[:MAX_TEXT]}")
    print(f"{'history keys':<16}{', '.join(sorted(key for key in found.keys if not key.startswith('_')))}")
    return 0


def _find(wandb: Wandb, name: str, records: Mapping[str, Record]) -> TrackedRun:
    """The run of an ID, of a name in the history, or of a name in W&B. Raises UserError."""
    ids = [record.identity for record in records.values() if record.name == name]
    if found := wandb.run(ids[0] if len(ids) == 1 else name):
        return found
    runs = wandb.runs()
    named = [one for one in runs if one.name == name]
    if len(named) == 1:
        return named[0]
    if named:
        ids = [one.id for one in named]
        raise UserError(
            f"W&B has {len(named)} runs named '{name}': name one by its ID, {', '.join(ids)}", code="no_run"
        )
    near = nearest(name, [*records, *(record.name for record in records.values()), *(one.name for one in runs)])
    raise UserError(f"W&B has no run '{name}'{f'; did you mean {near}?' if near else ''}", code="no_run")


def _facts(one: TrackedRun, records: Mapping[str, Record]) -> dict[str, Any]:
    record = records.get(one.identity)
    own = {"name": record.name, "box": record.box, "state": record.state} if record else None
    return {**asdict(one), "identity": one.identity, "history": own}


def _records(database: Database) -> dict[str, Record]:
    """The history by identity; {} where there is none."""
    try:
        return {record.identity: record for record in database.records()}
    except HistoryError:
        return {}


def _tracked(node: Mapping[str, Any]) -> TrackedRun:
    keys = (node.get("historyKeys") or {}).get("keys") or {}
    return TrackedRun(
        str(node["name"]), _clean(node.get("displayName")), _clean(node.get("state")), _clean(node.get("group")),
        _clean(node.get("createdAt")), int(node.get("historyLineCount") or 0),
        json.loads(node.get("summaryMetrics") or "{}"), [_clean(key) for key in keys],
    )  # fmt: skip


def _clean(text: Any) -> str:
    """A text without what a terminal would act on."""
    return "".join(c for c in str(text or "") if c.isprintable())[:MAX_TEXT]
