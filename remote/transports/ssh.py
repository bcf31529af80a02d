"""The agent over SSH: paramiko, one channel, a time limit on every step.

Added to paramiko, each for an observed problem: a watchdog closes the transport under waits without a timeout; the
silent timeout of the negotiation is checked; a changed host key is distinguished from one of another type; raw
channels, because ``SSHClient.exec_command`` can deadlock; a large window, because the default halves the throughput.
"""

from __future__ import annotations

import logging
import secrets
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote import bootstrap
from remote.boxes import Box
from remote.events import HostKeyAsked
from remote.transports import AskHostKey, ErrorTail, Refused, TryAgain, Unreachable, Waker
from remote.transports.host_keys import HostKeys, Verdict, fingerprint
from remote.transports.ssh_config import Target, resolve, resolve_jump
from remote.transports.ssh_login import MAX_TRIES, log_in

if TYPE_CHECKING:
    import paramiko

CONNECT_S = 10.0
STEP_S = 15.0
"""Banner, key exchange, each authentication, each channel."""
SEND_S = 15.0
WINDOW = 2**24
_SILENT = logging.NullHandler()
MAX_GREETING = 65_536
"""Bytes a login shell may print before the agent starts."""


class SshTransport:
    """One connection to one box. See :class:`remote.transports.Transport`."""

    def __init__(
        self, box: Box, ask: AskHostKey, *, host_keys_file: str | Path | None = None, ssh_config: str | None = None
    ) -> None:
        self._box = box
        self._ask = ask
        self._host_keys = HostKeys(host_keys_file)
        self._ssh_config = ssh_config
        self._waker = Waker()
        self._owner = threading.get_ident()
        self._links: list[Any] = []
        """Transports and sockets, nearest first; closed in reverse order."""
        self._channel: paramiko.Channel | None = None
        self._closed = False
        self._errors = ErrorTail()
        self._unread = b""
        self._target: Target | None = None

    # ------------------------------------------------------------------------------------------------- opening

    def open(self) -> None:
        self._owner = threading.get_ident()
        box = self._box
        self._target = resolve(box.host, user=box.user, port=box.port, key=box.key, config=self._ssh_config)
        transport = self._connect(self._target)
        argv = bootstrap.install(box, partial(self._execute, transport))
        marker = f"grpo-agent-{secrets.token_hex(8)}"
        channel = self._run(transport, bootstrap.serve_command(argv, marker), "starting the agent")
        channel.settimeout(SEND_S)
        self._channel = channel
        self._unread = self._skip_greeting(channel, f"\n{marker}\n".encode())

    def _connect(self, target: Target) -> paramiko.Transport:
        """Log in to the target, through its jump hosts."""
        through: paramiko.Transport | None = None
        hops = [resolve_jump(jump, self._ssh_config) for jump in target.jumps]
        for hop in [*hops, target]:
            name = self._box.name if hop is target else f"jump-{hop.host}-{hop.port}"
            sock = self._socket(hop, through)
            through = self._secure(sock, hop, name)
            with self._step(MAX_TRIES * STEP_S, f"logging in to {hop.host}", f"logging in to {hop.host} failed"):
                log_in(through, hop, self._box)
        assert through is not None
        return through

    def _socket(self, target: Target, through: paramiko.Transport | None) -> Any:
        where = f"{target.host}:{target.port}"
        if through is not None:
            with self._step(STEP_S, f"reaching {where} through the jump host", f"the jump host cannot reach {where}"):
                return through.open_channel(
                    "direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=STEP_S
                )
        try:
            sock = socket.create_connection((target.host, target.port), CONNECT_S)
        except socket.gaierror as error:
            raise Unreachable(
                f"unknown host '{target.host}' (box '{self._box.name}'): {error.strerror or error}; "
                "correct 'host' in boxes.yaml, or check this machine's network"
            ) from error
        except TimeoutError as error:
            raise Unreachable(f"{where} does not answer (box '{self._box.name}'); is the box running?") from error
        except OSError as error:
            raise Unreachable(f"{where} (box '{self._box.name}'): {error.strerror or error}") from error
        self._links.append(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15_000)
        return sock

    def _secure(self, sock: Any, target: Target, name: str) -> paramiko.Transport:
        """Negotiate, and verify the host key."""
        import paramiko

        logging.getLogger("paramiko").addHandler(_SILENT)  # without a handler, its tracebacks would reach the screen
        transport = paramiko.Transport(sock, default_window_size=WINDOW)
        transport.daemon = True
        self._links.append(transport)
        transport.banner_timeout = transport.handshake_timeout = STEP_S
        transport.auth_timeout = transport.channel_timeout = STEP_S
        known = [entry.key_type for entry in self._host_keys.entries(name)]
        if known:  # a box has several keys: request the known types first
            options = transport.get_security_options()
            options.key_types = sorted(options.key_types, key=lambda a: _type_of(a) not in known)
        where = f"{target.host}:{target.port}"
        failed = f"{where} accepted the connection, but the SSH negotiation failed"
        with self._step(2 * STEP_S, f"the key exchange with {where}", failed):
            transport.start_client(timeout=STEP_S)
        if not transport.initial_kex_done:  # start_client returns silently after its timeout
            raise Unreachable(f"the key exchange with {where} took longer than {STEP_S:.0f} s")
        self._verify(transport, target, name)
        return transport

    def _verify(self, transport: paramiko.Transport, target: Target, name: str) -> None:
        key = transport.get_remote_server_key()
        key_type, blob = key.get_name(), key.asbytes()
        verdict, entry = self._host_keys.check(name, key_type, blob)
        if verdict is Verdict.KNOWN:
            return
        if entry is not None:
            raise Refused(self._host_keys.refusal(verdict, entry, name, key_type, blob))
        transport.close()  # the box would disconnect while the user decides
        where = f"{name} ({target.host}:{target.port})"
        if not self._ask(HostKeyAsked(where, key_type, fingerprint(blob))):
            raise Refused(f"the host key of {where} was not accepted: {key_type} {fingerprint(blob)}")
        self._host_keys.add(name, key_type, blob)
        raise TryAgain(f"stored the host key of {where}; reconnecting")

    # ----------------------------------------------------------------------------------------------- the agent

    def _run(self, transport: paramiko.Transport, command: str, what: str) -> paramiko.Channel:
        with self._step(STEP_S, what):
            channel = transport.open_session(window_size=WINDOW, timeout=STEP_S)
            channel.exec_command(command)
            return channel

    def _execute(
        self, transport: paramiko.Transport, command: str, stdin: bytes, limit: float, what: str
    ) -> tuple[int, str, str]:
        """Run a command to its end; returns exit status, output and errors."""
        channel = self._run(transport, command, what)
        channel.settimeout(limit)
        output, errors = bytearray(), bytearray()
        with self._step(limit, what):
            channel.sendall(stdin)
            channel.shutdown_write()
            while piece := channel.recv(65_536):
                output += piece
            while piece := channel.recv_stderr(65_536):
                errors += piece
            status = channel.recv_exit_status()
        channel.close()
        return status, output.decode(errors="replace"), errors.decode(errors="replace")

    def _skip_greeting(self, channel: paramiko.Channel, marker: bytes) -> bytes:
        """Skip what the login shell prints; returns the bytes after the marker."""
        received = b""
        with self._step(STEP_S, "starting the agent", f"the agent on '{self._box.name}' did not start"):
            while marker not in received:
                piece = channel.recv(65_536)
                received += piece
                if not piece or len(received) > MAX_GREETING:
                    output = received.decode(errors="replace").strip()[-200:]
                    raise Refused(f"the login shell of '{self._box.name}' does not run commands: {output}")
        return received.partition(marker)[2]

    @contextmanager
    def _step(self, seconds: float, what: str, failed: str = "") -> Iterator[None]:
        """One step of opening the link: any fault of the link in it is Unreachable, with ``failed`` as the message.

        The time limit also ends calls without a timeout, by closing the connection.
        """
        import paramiko

        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self._hang_up()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        except Exception as error:
            if expired.is_set():
                raise Unreachable(f"{what} took longer than {seconds:.0f} s (box '{self._box.name}')") from error
            if isinstance(error, (paramiko.SSHException, EOFError, OSError)):
                failed = failed or f"{what} on '{self._box.name}' failed"
                raise Unreachable(f"{failed}: {str(error) or type(error).__name__}") from error
            raise
        finally:
            timer.cancel()

    # ------------------------------------------------------------------------------------------------ the bytes

    def send(self, data: bytes) -> None:
        if self._channel is None:
            raise Unreachable(f"not connected to '{self._box.name}'")
        try:
            self._channel.sendall(data)
        except (OSError, EOFError) as error:  # includes socket.timeout
            reason = str(error) or type(error).__name__
            raise Unreachable(f"the connection to '{self._box.name}' broke: {reason}") from error

    def receive(self, timeout: float) -> bytes | None:
        if self._unread:
            unread, self._unread = self._unread, b""
            return unread
        channel = self._channel
        if channel is None or self._closed:
            return b""
        try:
            if not self._waker.wait([channel.fileno()], timeout):
                return b"" if channel.closed else None
            if channel.recv_stderr_ready():
                self._errors.add(channel.recv_stderr(65_536))
            if channel.recv_ready():
                return channel.recv(1 << 18)
            return b"" if channel.closed or channel.eof_received else None
        except (OSError, EOFError, ValueError):
            return b""

    def wake(self) -> None:
        self._waker.wake()

    def close(self) -> None:
        self._hang_up()
        if threading.get_ident() == self._owner:
            self._waker.close()
        else:
            self._waker.wake()  # the owner may be waiting for it; it closes it afterwards

    def _hang_up(self) -> None:
        """Close everything, starting at the far end, without a goodbye that could block."""
        self._closed = True
        for link in reversed(list(self._links)):
            try:
                link.close()
            except Exception as error:  # a half-open paramiko transport may fail in any way
                self._errors.add(f"\n{type(error).__name__} while closing".encode())

    def describe(self) -> str:
        target = self._target
        return f"ssh {target.user}@{target.host}:{target.port}" if target else f"ssh {self._box.address()}"

    def error_tail(self) -> str:
        return self._errors.text()


def _type_of(algorithm: str) -> str:
    """The key type of a signature algorithm: ``rsa-sha2-512`` uses an ``ssh-rsa`` key."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def attach_argv(box: Box, session: str, *, host_keys_file: str | Path | None = None) -> list[str]:
    """The command that attaches this terminal to a session of the box (``=``: exactly this name).

    It uses the user's ssh, with the host keys of grpo-tui. A local box needs no ssh; ``TMUX`` is unset so that it works
    inside tmux.
    """
    socket_name = ["-L", box.tmux_socket] if box.tmux_socket else []
    if box.is_local:
        unset = [] if sys.platform == "win32" else ["env", "-u", "TMUX"]
        return [*unset, "tmux", "-u", *socket_name, "attach-session", "-t", f"={session}"]
    # always quoted: zsh expands a bare =name to the path of a command
    remote = shlex.join(["tmux", "-u", *socket_name, "attach-session", "-t"]) + f" '={session}'"
    options = {
        "HostKeyAlias": box.name,
        "UserKnownHostsFile": f'"{HostKeys(host_keys_file).path}"',
        "StrictHostKeyChecking": "yes",
        "ConnectTimeout": f"{CONNECT_S:.0f}",
    }
    argv = ["ssh", "-t"]
    for name, value in options.items():
        argv += ["-o", f"{name}={value}"]
    argv += ["-p", str(box.port)] if box.port else []
    argv += ["-l", box.user] if box.user else []
    argv += ["-o", "IdentitiesOnly=yes", "-i", str(Path(box.key).expanduser())] if box.key else []
    return [*argv, "--", box.host, remote]
