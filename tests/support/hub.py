"""A local hub: the requests that huggingface_hub, datasets and transformers send to huggingface.co, over folders."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


@contextmanager
def serve_hub(folder: Path, gated: frozenset[str] = frozenset()) -> Iterator[str]:
    """Serve ``folder/models/OWNER/NAME`` and ``folder/datasets/OWNER/NAME``; yields the address for HF_ENDPOINT.

    Files of the ``gated`` repositories need a token.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Hub, folder, gated))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def publish_dataset(folder: Path, configs: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    """Write a dataset as the hub stores it: Parquet files by config and split, and a card that lists them."""
    from pyarrow import Table, parquet

    card = "---\nconfigs:\n"
    for config, splits in configs.items():
        (folder / config).mkdir(parents=True, exist_ok=True)
        card += f"- config_name: {config}\n  data_files:\n"
        for split, rows in splits.items():
            parquet.write_table(Table.from_pylist(rows), folder / config / f"{split}-00000-of-00001.parquet")
            card += f"  - split: {split}\n    path: {config}/{split}-*\n"
    (folder / "README.md").write_text(card + "---\n")


def commit_of(repository: Path) -> str:
    """Commit of a repository's current content, the only one served."""
    files = [(str(path), path.stat().st_size) for path in sorted(repository.rglob("*")) if path.is_file()]
    return hashlib.sha1(repr(files).encode()).hexdigest()


class _Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, folder: Path, gated: frozenset[str], *arguments: Any) -> None:
        self._folder, self._gated = folder, gated
        super().__init__(*arguments)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        """``api/KIND/OWNER/NAME[/revision/REVISION | /tree/REVISION[/PATH]]`` and ``[datasets/]OWNER/NAME/resolve/
        REVISION/PATH``."""
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        is_api = parts[0] == "api"
        if is_api:
            parts = parts[1:]
        kind = parts.pop(0) if is_api or parts[0] == "datasets" else "models"
        owner, name, action, revision, *path = [*parts, "", "", "", ""]
        repository = self._folder / kind / owner / name
        self._commit = ""
        if not (owner and name and repository.is_dir()):
            return self._missing("RepoNotFound")
        self._commit = commit_of(repository)
        if revision not in ("", "main", self._commit):
            return self._missing("RevisionNotFound")
        inside = repository.joinpath(*path)
        if action == "resolve" and f"{owner}/{name}" in self._gated and not self.headers["Authorization"]:
            return self._answer(401, b"{}", {"X-Error-Code": "GatedRepo"})
        if action == "resolve":
            return self._file(inside)
        if action == "tree":
            found = inside.rglob("*") if "recursive=True" in self.path else inside.glob("*")
            return self._json([_entry(repository, each) for each in sorted(found)])
        files = [
            {"rfilename": str(each.relative_to(repository))} for each in sorted(repository.rglob("*")) if each.is_file()
        ]
        self._json({"id": f"{owner}/{name}", "sha": self._commit, "private": False, "tags": [], "siblings": files})

    def do_POST(self) -> None:
        """``api/KIND/OWNER/NAME/paths-info/REVISION``."""
        _, kind, owner, name, *_ = unquote(self.path).strip("/").split("/")
        repository = self._folder / kind / owner / name
        self._commit = commit_of(repository)
        paths = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["paths"]
        self._json([_entry(repository, repository / path) for path in paths if (repository / path).exists()])

    def log_message(self, *_: Any) -> None:
        """Keep the tests' output clean."""

    def _file(self, path: Path) -> None:
        if not path.is_file():
            return self._missing("EntryNotFound")
        content = path.read_bytes()
        self._answer(200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"'})

    def _missing(self, code: str) -> None:
        self._answer(404, b"{}", {"X-Error-Code": code})

    def _json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), "X-Repo-Commit": self._commit, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _entry(repository: Path, path: Path) -> dict[str, Any]:
    content = path.read_bytes() if path.is_file() else b""
    return {
        "type": "file" if path.is_file() else "directory",
        "path": str(path.relative_to(repository)),
        "oid": hashlib.sha1(content).hexdigest(),
        "size": len(content),
    }
