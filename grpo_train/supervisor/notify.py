"""Tells a program or a webhook what became of a run, in a process that outlives the supervisor. Torch-free.

``python -m grpo_train.supervisor.notify`` reads ``{"command", "url", "body"}`` from stdin: an address is a secret and
must not appear in a command line. It tries a few times within DEADLINE_S and says nothing but "sent" or the kind of
failure, in the run's ``control/notify.log``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_train.config.sections.notify import Notify
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.files import closing_descriptor, open_for_writing, utc_now
from grpo_train.run_dir.processes import PARENT_VARIABLE, RUN_ID_VARIABLE

DEADLINE_S = 90.0
ATTEMPT_S = 20.0
WAITS_S = (2.0, 5.0, 15.0)
"""Between the attempts."""
LOG = "notify.log"
PERMANENT = ("the address is neither http nor https", "cannot be executed")
"""Failures that another attempt does not change."""


class Notifier:
    """Sends the notifications of one run. Never raises, never waits."""

    def __init__(self, run: RunDir, settings: Notify) -> None:
        self._run, self._settings = run, settings

    def send(self, event: str, message: str, **facts: Any) -> None:
        """Send a notification, if the config asks for this event."""
        settings = self._settings
        if event not in settings.events or not (settings.command or settings.url):
            return
        body = {"event": event, "run": self._run.name, "message": message, "time": utc_now(), **facts}
        job = {"command": settings.command, "url": expand(settings.url, os.environ), "body": body}
        if settings.url and not job["url"]:
            self._log(f"{event}: {settings.url} is not set")
        hidden = (RUN_ID_VARIABLE, PARENT_VARIABLE)  # it is none of the run's processes, which are ended with it
        try:
            log = open_for_writing(self._run.path / "control" / LOG)
        except OSError:  # a full disk
            log = os.open(os.devnull, os.O_WRONLY)
        with closing_descriptor(log), suppress(OSError):  # no memory for another process; it ended at once
            child = subprocess.Popen(
                [sys.executable, "-m", "grpo_train.supervisor.notify"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.DEVNULL,
                env={key: value for key, value in os.environ.items() if key not in hidden},
                start_new_session=True,
            )
            assert child.stdin is not None
            with child.stdin:
                child.stdin.write(json.dumps(job).encode())  # shorter than a pipe holds, so this does not wait

    def _log(self, text: str) -> None:
        file = self._run.path / "control" / LOG
        with suppress(OSError), closing_descriptor(open_for_writing(file)) as descriptor:  # a full disk
            os.write(descriptor, f"{utc_now()} {text}\n".encode())


def expand(reference: str, environment: Mapping[str, str]) -> str:
    """The value of ``$NAME`` or ``${NAME}``; "" where it is not set."""
    return environment.get(reference.strip("${}"), "") if reference else ""


def payload(url: str, body: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a post: plain text for ntfy, ``text`` for Slack and Mattermost, ``content`` for Discord."""
    text = f"{body['run']}: {body['message']}"
    host = urllib.parse.urlsplit(url).hostname or ""
    if "ntfy" in host:
        headers = {"Title": f"{body['run']} {body['event']}".encode("ascii", "replace").decode()}
        return text.encode(), headers
    extra = {"text": text, "content": text} if re.search(r"slack|mattermost|discord", host) else {}
    return json.dumps({**body, **extra}).encode(), {"Content-Type": "application/json"}


def post(url: str, body: Mapping[str, Any]) -> str:
    """Post a notification; returns "" or the kind of failure, which names no part of the address."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        return PERMANENT[0]
    data, headers = payload(url, body)
    try:
        request = urllib.request.Request(url, data, {"User-Agent": "grpo-train", **headers}, method="POST")
        with urllib.request.urlopen(request, timeout=ATTEMPT_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except Exception as error:  # a malformed address raises many types, whose message may quote it
        reason = getattr(error, "reason", None)
        return (reason.strerror if isinstance(reason, OSError) else None) or type(error).__name__


def execute(command: list[str], body: Mapping[str, Any]) -> str:
    """Run the user's program; returns "" or the kind of failure."""
    try:
        done = subprocess.run(
            command, input=json.dumps(body).encode(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=ATTEMPT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:  # a program that waits for its own server
        return f"{Path(command[0]).name} did not end within {ATTEMPT_S:g} s"
    except OSError:
        return PERMANENT[1]
    return f"{Path(command[0]).name} ended with exit code {done.returncode}" if done.returncode else ""


def deliver_all(job: Mapping[str, Any], clock: Clock = CLOCK) -> int:
    """Deliver a notification (``{"command", "url", "body"}``); returns an exit code."""
    began, body = clock.monotonic(), job["body"]
    failed = False
    for kind, target, deliver in (("command", job["command"], execute), ("url", job["url"], post)):
        if not target:
            continue
        problem = deliver(target, body)
        for wait_s in WAITS_S:
            if not problem or problem in PERMANENT or clock.monotonic() - began + wait_s + ATTEMPT_S > DEADLINE_S:
                break
            clock.sleep(wait_s)
            problem = deliver(target, body)
        failed = failed or bool(problem)
        print(f"{utc_now()} {body['event']}: {kind}: {problem or 'sent'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(deliver_all(json.load(sys.stdin)))
