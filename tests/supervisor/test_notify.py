"""Notifications: what arrives, that nothing waits for it, and that no address is written anywhere."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config import ConfigError, load_config
from grpo_train.run_dir import RunDir, create_run
from grpo_train.supervisor.notify import Notifier, deliver_all, expand, payload
from tests.support.clock import LeapingClock, TestClock
from tests.support.engine import config_text, wait_for
from tests.support.supervising import supervised

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


@pytest.mark.parametrize(
    ("answers", "attempts", "seconds", "code"),
    [([503, 200], 2, 2.0, 0), ([503, 503, 503, 200], 4, 22.0, 0), ([503], 4, 22.0, 1)],
)
def test_a_failed_post_is_tried_again(
    answers: list[int], attempts: int, seconds: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = LeapingClock()
    began = clock.monotonic()
    with receiver(answers) as (url, got):
        job = {"command": [], "url": url, "body": {"event": "finished", "run": "one", "message": "done"}}
        assert deliver_all(job, clock) == code
    assert (len(got), clock.monotonic() - began) == (attempts, seconds)
    assert capsys.readouterr().out.endswith("finished: url: HTTP 503\n" if code else "finished: url: sent\n")


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


def test_what_fails_is_logged_without_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    body = {"event": "crashed", "run": "one", "message": "x"}
    job = {"command": ["/no/such/program"], "url": f"ftp://{SECRET}", "body": body}
    assert deliver_all(job, TestClock()) == 1, "it is not tried again"
    logged = capsys.readouterr().out
    assert "url: the address is neither http nor https" in logged
    assert "command: cannot be executed" in logged
    assert SECRET not in logged


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


def test_nothing_waits_for_a_silent_server(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends while the server has not answered, and neither the process list nor a file shows its address."""
    answer = threading.Event()
    with receiver([200], answer) as (url, got):
        monkeypatch.setenv("MY_HOOK", url)
        config = load_config(config_text(run__total_steps=1, notify__url="$MY_HOOK"))
        with supervised(run, config, {"train": [["train:1"]]}) as it:
            assert it.ended() == 0
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


def test_sending_waits_for_no_program(run: RunDir, tmp_path: Path) -> None:
    """It is a process of its own, which outlives the sender."""
    go = tmp_path / "go"
    os.mkfifo(go)
    notifier(run, f"notify: {{command: [cat, {go}]}}").send("crashed", "x")
    go.write_text("")  # when the program has opened it
    wait_for(lambda: "command: sent" in log_of(run), "the program", timeout=120)
