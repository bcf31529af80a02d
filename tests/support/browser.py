"""Chromium without a window, driven over its debugging pipe: open a page, run scripts, move the pointer, look."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: run  sudo apt-get install -y chromium  (scripts/setup.sh does)"
)


def _pipe() -> tuple[int, int]:
    """Both ends of a pipe, above the numbers that the browser reads and writes."""
    low = os.pipe()
    ends = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return ends[0], ends[1]


class Browser:
    """One tab. Messages go over two pipes, each JSON and a zero byte (``--remote-debugging-pipe``)."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self._out = _pipe()
        self._in, replies = _pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{replies}', "bash", CHROMIUM, *options,
             f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe"],
            pass_fds=(commands, replies), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(replies)
        self._rest = b""
        self._sent = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def visit(self, url: str) -> None:
        """Open a page of a server."""
        self._call("Page.navigate", url=url)

    def open(self, page: Path, width: int = 1200, scheme: str = "light") -> None:
        """Open a file in a window of a width, in the ``light`` or ``dark`` scheme; returns when it is loaded."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self._call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self._call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._read()

    def emulate_print(self) -> None:
        """Show the page as it is printed, until the next one is opened."""
        self._call("Emulation.setEmulatedMedia", media="print")
        self.picture()  # the styles of what was hidden are made for a frame

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        reply = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """Move the pointer to a place in the window."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        """Press a named key, such as ``ArrowLeft``."""
        for kind in ("rawKeyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot")["data"])

    def complaints(self) -> list[str]:
        """Errors and warnings of the page since it was opened: scripts, policy, missing files."""
        said = [event["params"] for event in self.events]
        return [
            *(each["entry"]["text"] for each in said if each.get("entry", {}).get("level") in ("error", "warning")),
            *(each["exceptionDetails"]["text"] for each in said if "exceptionDetails" in each),
        ]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent]

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._sent += 1
        session = {"sessionId": self._session} if self._session else {}
        message = json.dumps({"id": self._sent, "method": method, "params": params, **session}).encode() + b"\0"
        while message:
            message = message[os.write(self._out, message) :]
        while True:
            reply = self._read()
            if reply.get("id") == self._sent:
                assert "error" not in reply, reply["error"]
                result: dict[str, Any] = reply["result"]
                return result

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE * 60
        while b"\0" not in self._rest:
            assert time.monotonic() < deadline, "the browser does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message
