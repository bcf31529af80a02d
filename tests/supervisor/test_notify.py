"""Notifications: what arrives, that nothing waits for it, and that no address is written anywhere."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config import ConfigError, load_config
from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.processes import run_id_of
from grpo_train.supervisor.notify import Notifier, expand, payload
from tests.support.engine import GRPO_TRAIN, run_of, running, wait_for, write_config

SECRET = "s3cr3t-hook"


@contextmanager
def receiver(answers: list[int], wait: threading.Event | None = None) -> Iterator[tuple[str, list[tuple[Any, bytes]]]]:
    """An HTTP server that answers each post with the next status; its address, and what it got."""
    got: list[tuple[Any, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            if wait is not None:
                wait.wait()
            self.send_response(answers.pop(0) if len(answers) > 1 else answers[0])
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{SECRET}", got
    finally:
        server.shutdown()
        server.server_close()


def notifier(run: RunDir, text: str) -> Notifier:
    (run.path / "control").mkdir(exist_ok=True)
    return Notifier(run, load_config(text).notify)


def log_of(run: RunDir) -> str:
    file = run.path / "control" / "notify.log"
    return file.read_text() if file.exists() else ""


def all_files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tmp_path / "root", {}, "one")


def test_a_webhook_gets_the_event(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver([200]) as (url, got):
        monkeypatch.setenv("MY_HOOK", url)
        notifier(run, "notify: {url: $MY_HOOK}").send("crashed", "out of memory", step=7)
        wait_for(lambda: "url: sent" in log_of(run), "the log of the notification", timeout=120)
    ((headers, body),) = got
    assert headers["Content-Type"] == "application/json"
    sent = json.loads(body)
    assert (sent["event"], sent["run"], sent["message"], sent["step"]) == ("crashed", "one", "out of memory", 7)
    assert SECRET.encode() not in all_files(run.path)


def test_a_failed_post_is_tried_again(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver([503, 200]) as (url, got):
        monkeypatch.setenv("MY_HOOK", url)
        notifier(run, "notify: {url: '${MY_HOOK}'}").send("finished", "done")
        wait_for(lambda: "url: sent" in log_of(run), "the second attempt", timeout=120)
    assert len(got) == 2


def test_a_program_gets_json_on_stdin(run: RunDir, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    code = (
        f"import os, sys; open({str(out)!r}, 'w').write(sys.stdin.read() + os.environ.get('GRPO_RUN_ID', 'not ours'))"
    )
    command = json.dumps([sys.executable, "-c", code])
    os.environ["GRPO_RUN_ID"] = "of the run"
    try:
        notifier(run, f"notify: {{command: {command}}}").send("stalled", "no sign of life")
    finally:
        del os.environ["GRPO_RUN_ID"]
    wait_for(lambda: "command: sent" in log_of(run), "the program", timeout=120)
    assert json.loads(out.read_text().removesuffix("not ours"))["event"] == "stalled"


def test_what_fails_is_logged_without_the_address(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_HOOK", f"ftp://{SECRET}")
    notifier(run, "notify: {url: $MY_HOOK, command: [/no/such/program]}").send("crashed", "x")
    wait_for(lambda: "url: the address is neither http nor https" in log_of(run), "the log", timeout=240)
    assert "command: cannot be executed" in log_of(run)
    assert SECRET not in log_of(run)


def test_an_unset_variable_is_named(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_HOOK", raising=False)
    notifier(run, "notify: {url: $MY_HOOK}").send("crashed", "x")
    assert log_of(run).endswith("crashed: $MY_HOOK is not set\n")


def test_only_chosen_events_are_sent(run: RunDir, tmp_path: Path) -> None:
    out = tmp_path / "out"
    chosen = notifier(run, f"notify: {{command: [touch, {out}], events: [crashed]}}")
    chosen.send("finished", "x")
    assert log_of(run) == ""
    chosen.send("crashed", "x")
    wait_for(out.exists, "the program", timeout=120)


def test_nothing_waits_for_a_silent_server(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends while the server has not answered, and neither the process list nor a file shows its address."""
    answer = threading.Event()
    with receiver([200], answer) as (url, got):
        cfg = write_config(root, run__total_steps=1, notify__url="$MY_HOOK")
        run = run_of(root, "silent")
        command = [*GRPO_TRAIN, "train", "--cfg", str(cfg), "--run-name", run.name, "--root", str(root)]
        with running(command, root, run_id_of(run.path), MY_HOOK=url) as supervisor:
            supervisor.communicate(timeout=400)
            assert supervisor.returncode == 0
        wait_for(lambda: got, "the post", timeout=120)
        assert log_of(run) == "", "not answered yet"
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert SECRET.encode() not in process.read_bytes()
            except OSError:
                continue
        answer.set()
        wait_for(lambda: "finished: url: sent" in log_of(run), "the answer", timeout=120)
    assert SECRET.encode() not in all_files(run.path)


@pytest.mark.parametrize(
    ("url", "type_", "text"),
    [
        ("https://ntfy.sh/topic", None, b"night: done"),
        ("https://hooks.slack.com/services/x", "application/json", b'"text": "night: done"'),
        ("https://discord.com/api/webhooks/x", "application/json", b'"content": "night: done"'),
        ("https://example.com/x", "application/json", b'"message": "done"'),
    ],
)
def test_services_get_what_they_read(url: str, type_: str | None, text: bytes) -> None:
    data, headers = payload(url, {"run": "night", "event": "finished", "message": "done"})
    assert text in data
    assert headers.get("Content-Type") == type_


def test_references_to_variables() -> None:
    assert [expand(text, {"A_B": "x"}) for text in ("$A_B", "${A_B}", "$C", "")] == ["x", "x", "", ""]


@pytest.mark.parametrize("text", ["notify:\n  url: https://hooks.example.com/{}", "notify: {{url: 'http://h/{}'}}",
                                  "notify:\n  url: {}/x"])  # fmt: skip
def test_an_address_in_a_config_is_refused_unquoted(text: str) -> None:
    with pytest.raises(ConfigError, match="NOTIFY_URL") as caught:
        load_config(text.format(SECRET))
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load_config("", [f"notify.url=https://{SECRET}"])
    assert SECRET not in str(caught.value)


def test_sending_takes_no_time(run: RunDir) -> None:
    began = time.monotonic()
    notifier(run, "notify: {command: [sleep, '1000']}").send("crashed", "x")
    assert time.monotonic() - began < 60, "it is a process of its own"
