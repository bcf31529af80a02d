"""``grpo-tui tensorboard``: TensorBoard of a run on a box, on a port of this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import threading

from grpo_tui.model.tunnels import TENSORBOARD_PORT, TENSORBOARD_S
from grpo_tui.shell.connection import ShellConnection
from remote.boxes import Box
from remote.tunnels import Tunnel


def tensorboard(box: Box, arguments: argparse.Namespace) -> int:
    """Start it, print its address, and keep it open."""
    with ShellConnection(box, readonly=arguments.readonly) as connection:
        reply = connection.request(
            "open_tensorboard", TENSORBOARD_S, run=arguments.run, idempotency_key=secrets.token_hex(12)
        )
        port, exact = arguments.port or TENSORBOARD_PORT, arguments.port is not None
        with Tunnel(connection.client, "127.0.0.1", reply["port"], local_port=port, exact=exact, holds=True) as tunnel:
            url = f"http://{tunnel.local}{reply['path']}"
            print(json.dumps({"url": url, "session": reply["session"]}) if arguments.json else url, flush=True)
            print("Ctrl-C ends it", file=sys.stderr)
            if arguments.open:
                import webbrowser

                webbrowser.open(url)
            threading.Event().wait()
    return 0
