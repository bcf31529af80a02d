"""A server that speaks what ``wandb`` 0.31 needs of W&B: runs, their rows, and the questions about them."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class TrackedRun:
    """A run as the server knows it."""

    id: str
    project: str
    name: str = ""
    group: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None

    @property
    def state(self) -> str:
        return "running" if self.exit_code is None else "failed" if self.exit_code else "finished"

    def column(self, key: str) -> list[Any]:
        """The values of a key, in order."""
        return [row[key] for row in self.rows if key in row]


@dataclass
class WandbServer:
    """The server's state, and how it behaves."""

    url: str = ""
    runs: dict[str, TrackedRun] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    """File of a run to its content."""
    requests: int = 0
    fails_with: int = 0
    """Status of every answer; 0 = it works."""
    is_silent: bool = False
    """Whether it takes requests and never answers."""
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def environment(self) -> dict[str, str]:
        access = {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY, "WANDB_ERROR_REPORTING": "false"}
        return {**access, "WANDB__FILE_STREAM_TRANSMIT_INTERVAL": "1"}  # wandb sends every 15 s by itself

    # answers -------------------------------------------------------------------------------------------------

    def graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "serverInfo" in query:
            return {"serverInfo": {"features": []}}
        if "upsertBucket" in query:
            return {"upsertBucket": {"bucket": self._upsert(variables), "inserted": True}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "x", "uploadHeaders": [], "files": files}}
        if "query RunResumeStatus" in query:
            return {"model": self._resumed(variables)}
        if "query ArtifactType" in query:
            return {"project": {"artifact": None}}
        if "mutation CreateArtifact " in query:  # as one that is there: its files are not asked for
            artifact = {"id": "a", "state": "COMMITTED", "artifactSequence": {"latestArtifact": {"id": "a"}}}
            return {"createArtifact": {"artifact": artifact}}
        if "viewer" in query:
            return {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}
        return {}

    def _upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
        id = variables["name"] or next(iter(self.runs))
        run = self.runs.setdefault(id, TrackedRun(id, variables.get("project") or ""))
        run.name = variables.get("displayName") or run.name
        run.group = variables.get("groupName") or run.group
        run.tags = variables.get("tags") or run.tags
        run.config = json.loads(variables.get("config") or "null") or run.config
        project = {"id": "p", "name": run.project, "entity": {"id": "e", "name": variables.get("entity") or "me"}}
        return {
            "id": id, "name": id, "displayName": run.name, "description": "", "config": json.dumps(run.config),
            "sweepName": None, "project": project, "historyLineCount": len(run.rows),
        }  # fmt: skip

    def _resumed(self, variables: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(variables["name"])
        bucket = run and {
            "id": run.id, "name": run.id, "displayName": run.name, "summaryMetrics": json.dumps(run.summary),
            "historyLineCount": len(run.rows), "eventsLineCount": 0, "logLineCount": 0, "eventsTail": "[]",
            "historyTail": json.dumps([json.dumps(row) for row in run.rows[-1:]]), "config": json.dumps(run.config),
            "tags": run.tags, "notes": "", "wandbConfig": json.dumps({"t": 1}),
        }  # fmt: skip
        return {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": "me"}, "bucket": bucket}

    def file_stream(self, id: str, sent: dict[str, Any]) -> None:
        run = self.runs[id]
        for name, part in (sent.get("files") or {}).items():
            if name == "wandb-history.jsonl":
                run.rows[part["offset"] :] = [json.loads(line) for line in part["content"]]
            elif name == "wandb-summary.json":
                run.summary = json.loads(part["content"][-1])
        run.exit_code = None
        if sent.get("complete"):
            run.exit_code = sent.get("exitcode", 0)


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    """A running server on a port of the kernel's choice."""
    state = WandbServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _body(self) -> Any:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path.startswith("/upload/"):
                state.uploads[self.path.removeprefix("/upload/")] = data
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            try:
                return json.loads(data or b"{}")
            except ValueError:
                return {}

        def _reply(self, value: Any, status: int = 200) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _answer(self) -> None:
            sent = self._body()
            state.requests += 1
            if state.is_silent:
                state.closing.wait()
                self.close_connection = True
                return
            if state.fails_with:
                self._reply({"errors": [{"message": f"status {state.fails_with}"}]}, state.fails_with)
            elif self.path == "/graphql":
                self._reply({"data": state.graphql(sent["query"], sent.get("variables") or {})})
            elif self.path.endswith("/file_stream"):
                state.file_stream(self.path.split("/")[-2], sent)
                self._reply({"exitcode": None, "limits": {}})
            else:
                self._reply({}, 200 if self.path.startswith("/upload/") else 404)

        do_GET = do_POST = do_PUT = _answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
