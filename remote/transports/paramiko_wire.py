"""paramiko's transport with what the link must know: offers and disconnects; and with bounds.

paramiko believes any packet length, keeps whatever a box sends beyond the window, and forgets why a negotiation failed.
It has no public hooks for these, so private methods are extended here.
"""

from __future__ import annotations

import math
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA
from paramiko.packet import Packetizer

MAX_PACKET = 256 * 1024
"""OpenSSH's limit."""
MAX_BANNER = 64 * 1024
MAX_OPENING = 4 * 2**20
"""Bytes that a box may send before its agent runs."""
WINDOW = 2**24
"""The default halves the throughput."""


_Transport: Any = paramiko.Transport
_Packetizer: Any = Packetizer
"""The type stubs leave out what is overridden here."""


class Packets(_Packetizer):  # type: ignore[misc]
    """Packets of a bounded length, and a bounded number of bytes until the agent runs."""

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self.left: float = MAX_OPENING
        self._banner_left = MAX_BANNER

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if not 0 <= n <= MAX_PACKET:
            raise paramiko.SSHException("a damaged packet length was received")
        self.left -= n
        if self.left < 0:
            raise paramiko.SSHException(f"more than {MAX_OPENING >> 20} MiB were received")
        return bytes(super().read_all(n, check_rekey))

    def _read_timeout(self, timeout: float) -> bytes:
        data = bytes(super()._read_timeout(timeout))
        self._banner_left -= len(data)
        if self._banner_left < 0:
            raise paramiko.SSHException(f"more than {MAX_BANNER >> 10} KiB were received before the key exchange")
        return data


def _within_window(channel: Any) -> None:
    if len(channel.in_buffer) + len(channel.in_stderr_buffer) > channel.in_window_size:
        raise paramiko.SSHException("more was received than the window allows")


def _data(channel: Any, message: paramiko.Message) -> None:
    channel._feed(message)
    _within_window(channel)


def _extended_data(channel: Any, message: paramiko.Message) -> None:
    channel._feed_extended(message)
    _within_window(channel)


class SshConnection(_Transport):  # type: ignore[misc]
    """One SSH connection."""

    _channel_handler_table = {  # noqa: RUF012 (paramiko's name)
        **_Transport._channel_handler_table,
        MSG_CHANNEL_DATA: _data,
        MSG_CHANNEL_EXTENDED_DATA: _extended_data,
    }

    def __init__(self, sock: Any) -> None:
        super().__init__(sock, default_window_size=WINDOW, packetizer_class=Packets)
        self.daemon = True
        self.disconnect = ""
        """What the other side said when it disconnected."""
        self._offers: dict[str, list[str]] = {}
        self._kex = ""
        """The key exchange that was agreed on; paramiko forgets it."""

    def opened(self) -> None:
        """The agent runs: no limit on the number of bytes any more."""
        self.packetizer.left = math.inf

    def end(self) -> None:
        """Close at once. Any thread."""
        self.packetizer.complete_handshake()  # ends a timer thread that would otherwise live for 15 s
        self.close()

    def reason(self) -> str:
        """Why the connection is no longer active."""
        return self.disconnect or words(self.get_exception())

    def auth_answered(self) -> bool:
        """Whether the other side has answered the latest authentication."""
        event = self.auth_handler.auth_event if self.auth_handler else None
        return event is not None and event.is_set()

    def session(self, timeout: float) -> paramiko.Channel:
        """A new session channel."""
        try:
            channel: paramiko.Channel = self.open_session(timeout=timeout)
        except paramiko.ChannelException as error:
            raise paramiko.SSHException(f"it opened no session ({error.text})") from error
        return channel

    def algorithms(self) -> dict[str, str]:
        """What both sides agreed on."""
        found = {"kex": self._kex, "host_key": self.host_key_type or "", "cipher": self.local_cipher}
        return {key: name for key, name in found.items() if name}

    def offers(self) -> str:
        """The algorithms that each side offers, where the sides have none in common."""
        pairs = (
            ("key exchange", "kex_algo_list", self.preferred_kex),
            ("host key", "server_key_algo_list", self.preferred_keys),
            ("cipher", "client_encrypt_algo_list", self.preferred_ciphers),
            ("cipher", "server_encrypt_algo_list", self.preferred_ciphers),
            ("MAC", "client_mac_algo_list", self.preferred_macs),
            ("MAC", "server_mac_algo_list", self.preferred_macs),
            ("compression", "server_compress_algo_list", self.preferred_compression),
        )
        lines = []
        for name, key, ours in pairs:
            theirs = [a for a in self._offers.get(key, []) if not a.startswith(("ext-info-", "kex-strict-"))]
            if theirs and not set(theirs) & set(ours):
                lines.append(f"{name}: the box offers {', '.join(theirs)}; this program offers {', '.join(ours)}")
        return ". ".join(dict.fromkeys(lines))

    def offers_nothing(self) -> bool:
        """Whether the other side's list of some algorithm is empty: a damaged byte, as nobody could talk to it."""
        lists = (names for key, names in self._offers.items() if key.endswith("_algo_list"))
        return any(names == [""] for names in lists)

    def _parse_kex_init(self, m: paramiko.Message) -> None:
        self._offers = self._really_parse_kex_init(paramiko.Message(m.asbytes()))
        super()._parse_kex_init(m)
        self._kex = next((name for name, kind in self._kex_info.items() if type(self.kex_engine) is kind), "")

    def _parse_disconnect(self, m: paramiko.Message) -> None:
        m.get_int()
        self.disconnect = m.get_text()


def words(error: BaseException | None) -> str:
    """An error of a connection, for the user."""
    if error is None or isinstance(error, EOFError):
        return "the connection ended"
    return str(error) or type(error).__name__
