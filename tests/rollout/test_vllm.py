"""What rollouts by vLLM refuse before a server starts; tests/soak/test_vllm.py has the servers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from grpo_train.config import ConfigError, load_config
from grpo_train.config.schema import Config, Rollout
from grpo_train.policy.locate import PolicyError
from grpo_train.rollout.vllm.server import RunningServer, _environment, check_servers
from grpo_train.train.preflight import check_start

NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vllm_python": "/nowhere/python"}, "needs an environment with vLLM, and /nowhere/python is none; make setup"),
        ({"vllm_python": sys.executable}, "is none; make setup-vllm makes one"),
        ({"vllm_urls": [NOWHERE], "vllm_shared_dir": "/tmp"}, f"no vLLM server answers at {NOWHERE}: "),
    ],
)
def test_a_run_without_a_server_is_not_made(settings: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=message):
        check_servers(Rollout(**settings))  # type: ignore[arg-type]
    config = Config.model_validate({"rollout": {"backend": "vllm", **settings}, "model": {"device": "cpu"}})
    with pytest.raises(PolicyError, match=message):
        check_start(config, tmp_path, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"rollout: {{backend: vllm, vllm_urls: ['{NOWHERE}']}}", "rollout.vllm_shared_dir"),
        ("rollout: {backend: vllm}\nrun: {deterministic: true}", "does not repeat bit for bit"),
    ],
)
def test_settings_that_contradict(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(text)


def test_a_server_gets_no_secret_and_its_own_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {
        "HF_TOKEN": "s", "AWS_SECRET_ACCESS_KEY": "s", "WANDB_API_KEY": "s", "RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "PYTHONPATH": "/x", "CUDA_VISIBLE_DEVICES": "4,6",
        "HF_HOME": "/h",
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = _environment(tmp_path, 1)
    assert {name: found[name] for name in given if name in found} == {"CUDA_VISIBLE_DEVICES": "6", "HF_HOME": "/h"}


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """Something at a port that is healthy, and answers ``pages`` otherwise."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, page = (200, b"") if self.path == "/health" else pages[-1]
            self.send_response(status)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *arguments: object) -> None:
            pass

    pages = [(200, b'{"data": [{"id": "model"}]}')]
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.pages = pages  # type: ignore[attr-defined]
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ((200, b"<html>"), "names no model"),
        ((200, b'{"data": []}'), "names no model"),
        ((404, b'{"detail": "Not Found"}'), "names no model: Not Found"),
        ((502, b"Bad Gateway"), "names no model: Bad Gateway"),
        ((401, b""), "names no model: HTTP status 401"),
    ],
)
def test_a_server_of_another_kind(
    server: ThreadingHTTPServer, page: tuple[int, bytes], message: str, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    found = RunningServer(url, tmp_path)
    assert (found.model, found.folder.parent) == ("model", tmp_path)
    with pytest.raises(PolicyError, match=r"rollout\.vllm_shared_dir .*/missing: No such file or directory"):
        RunningServer(url, tmp_path / "missing")
    server.pages.append(page)  # type: ignore[attr-defined]
    with pytest.raises(PolicyError, match=message):
        RunningServer(url, tmp_path)
