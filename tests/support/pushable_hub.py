"""The tests' hub with accounts and commits: what huggingface_hub sends to create a repository and to upload to it."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.hub import _Hub, commit_of

LFS_SUFFIXES = (".safetensors", ".bin")


@dataclass
class PushableHub:
    """A hub with one account."""

    folder: Path
    token: str
    address: str = ""
    private: set[str] = field(default_factory=set)
    objects: dict[str, bytes] = field(default_factory=dict)
    """Uploaded large files by SHA-256."""
    commits: list[dict[str, Any]] = field(default_factory=list)
    """Header of each commit."""
    paths: list[str] = field(default_factory=list)
    """Path and query of each request."""


@contextmanager
def serve_pushable_hub(folder: Path, token: str) -> Iterator[PushableHub]:
    """Serve ``folder`` as :func:`tests.support.hub.serve_hub` does; whoever sends the token may write."""
    hub = PushableHub(folder, token)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_PushableHub, hub))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _PushableHub(_Hub):
    def __init__(self, hub: PushableHub, *arguments: Any) -> None:
        self._hub = hub
        self._commit = ""
        super().__init__(hub.folder, frozenset(), *arguments)

    def do_GET(self) -> None:
        self._hub.paths.append(self.path)
        if self.path.startswith("/api/whoami-v2"):
            if self._may_write():
                self._json({"type": "user", "name": "acme", "orgs": []})
            return
        parts = urlsplit(self.path).path.strip("/").split("/")
        repository = self._hub.folder / "models" / "/".join(parts[2:4])
        is_info = parts[:2] == ["api", "models"] and "tree" not in parts and "blobs=true" in self.path
        if not (is_info and repository.is_dir()):
            return super().do_GET()
        self._commit = commit_of(repository)
        name = "/".join(parts[2:4])
        files = [_sibling(repository, path) for path in sorted(repository.rglob("*")) if path.is_file()]
        is_private = name in self._hub.private
        self._json({"id": name, "sha": self._commit, "private": is_private, "tags": [], "siblings": files})

    def do_POST(self) -> None:
        self._hub.paths.append(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts == ["api", "validate-yaml"]:
            return self._json({"errors": [], "warnings": []})
        if not self._may_write():
            return None
        if parts == ["api", "repos", "create"]:
            return self._create(json.loads(body))
        if parts[-1] == "verify":
            return self._json({})
        if parts[-3:] == ["lfs", "objects", "batch"]:
            return self._batch(json.loads(body))
        name, action = "/".join(parts[2:4]), parts[4]
        if action == "preupload":
            files = json.loads(body)["files"]
            return self._json({"files": [_upload_mode(file["path"]) for file in files]})
        assert action == "commit", self.path
        return self._add_commit(name, [json.loads(line) for line in body.splitlines()])

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        assert hashlib.sha256(content).hexdigest() == self.path.rpartition("/")[2]
        self._hub.objects[self.path.rpartition("/")[2]] = content
        self._answer(200, b"", {})

    def _may_write(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {self._hub.token}":
            return True
        self._answer(401, b'{"error": "Invalid credentials"}', {"Content-Type": "application/json"})
        return False

    def _create(self, request: dict[str, Any]) -> None:
        name = f"{request['organization']}/{request['name']}"
        folder = self._hub.folder / "models" / name
        folder.mkdir(parents=True)
        (folder / ".gitattributes").write_text("*.safetensors filter=lfs\n")
        if request.get("visibility") == "private" or request.get("private"):
            self._hub.private.add(name)
        self._json({"url": f"{self._hub.address}/{name}", "name": name})

    def _batch(self, request: dict[str, Any]) -> None:
        objects = [
            {
                **each,
                "actions": {
                    "upload": {"href": f"{self._hub.address}/lfs/{each['oid']}", "header": {}},
                    "verify": {"href": f"{self._hub.address}/lfs/verify", "header": {}},
                },
            }
            for each in request["objects"]
        ]
        self._json({"transfer": "basic", "objects": objects})

    def _add_commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        folder = self._hub.folder / "models" / name
        header = lines[0]["value"]
        if header.get("parentCommit") not in (None, commit_of(folder)):
            return self._answer(412, b'{"error": "A commit has happened since."}', {"Content-Type": "application/json"})
        for line in lines[1:]:
            value = line["value"]
            path = folder / value["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            is_large = line["key"] == "lfsFile"
            path.write_bytes(self._hub.objects[value["oid"]] if is_large else base64.b64decode(value["content"]))
        self._hub.commits.append(header)
        oid = commit_of(folder)
        self._json({"success": True, "commitOid": oid, "commitUrl": f"{self._hub.address}/{name}/commit/{oid}"})
        return None


def _upload_mode(path: str) -> dict[str, Any]:
    return {"path": path, "uploadMode": "lfs" if path.endswith(LFS_SUFFIXES) else "regular", "shouldIgnore": False}


def _sibling(repository: Path, path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    entry: dict[str, Any] = {"rfilename": str(path.relative_to(repository)), "size": len(content), "blobId": "0" * 40}
    if path.name.endswith(LFS_SUFFIXES):
        entry["lfs"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 130}
    return entry
