"""The tunnels of the shown box: forwards of boxes.yaml, and TensorBoards. No Textual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.errors import UserError
from remote.boxes import Box, read_forward
from remote.tunnels import LOOPBACK, Tunnel

if TYPE_CHECKING:
    from remote.client import BoxClient

TENSORBOARD_PORT = 16_007


@dataclass(frozen=True)
class OpenTunnel:
    """A tunnel, and what it is for."""

    label: str
    tunnel: Tunnel
    path: str = ""
    """Of a page: ``/RANDOM/``."""

    @property
    def target(self) -> str:
        return f"{self.tunnel.host}:{self.tunnel.port}"

    @property
    def address(self) -> str:
        """``http://127.0.0.1:16007/RANDOM/`` of a page; else ``127.0.0.1:8888``."""
        return f"http://{self.tunnel.local}{self.path}" if self.path else self.tunnel.local


class BoxTunnels:
    """What is open. They end with the client, or when the box is changed."""

    def __init__(self) -> None:
        self.open: list[OpenTunnel] = []
        self._has_forwards = False

    def open_forwards(self, client: BoxClient, box: Box) -> list[str]:
        """Open those of boxes.yaml, once; returns what could not be opened."""
        if self._has_forwards:
            return []
        self._has_forwards, problems = True, []
        for text in box.forward:
            local_port, host, port = read_forward(text)
            try:
                tunnel = Tunnel(client, host, port, local_port=local_port, exact=True)
            except UserError as error:
                problems.append(f"forward {text}: {error}")
                continue
            self.open.append(OpenTunnel(f"forward {text}", tunnel))
        return problems

    def open_tensorboard(self, client: BoxClient, run: str, reply: dict[str, Any]) -> OpenTunnel:
        """The tunnel to a TensorBoard, the same one for the same server. Raises UserError."""
        known = next((each for each in self.open if each.path == reply["path"]), None)
        if known is None:
            port = int(reply["port"])
            tunnel = Tunnel(client, LOOPBACK, port, local_port=TENSORBOARD_PORT, holds=True)
            known = OpenTunnel(f"TensorBoard of {run}", tunnel, str(reply["path"]))
            self.open.append(known)
        return known

    def end(self, which: OpenTunnel) -> None:
        """End a tunnel."""
        self.open = [each for each in self.open if each is not which]
        which.tunnel.close()

    def close(self) -> None:
        """End all of them."""
        for each in list(self.open):
            self.end(each)
