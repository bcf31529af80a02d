"""The agent over SSH by paramiko: public-key login, one channel, a time limit on every step.

Added to paramiko, each for an observed problem: a watchdog closes the transport under waits without a timeout; the
silent timeout of the negotiation is checked; a changed host key is distinguished from one of another type; raw
channels, because ``SSHClient.exec_command`` can deadlock; and see :mod:`remote.transports.paramiko_wire`.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.base import Refused, TryAgain, Unreachable
from remote.boxes import Box
from remote.events import HostKeyAsked
from remote.protocol import Flood
from remote.transports import bootstrap
from remote.transports.bootstrap import MAX_ANSWER, BoxShell
from remote.transports.identities import HostKeys, HostKeyState, fingerprint
from remote.transports.ssh_config import SshTarget, resolve, resolve_jump
from remote.transports.transport import CONNECT_S, POLL_S, SEND_S, AskHostKey, ErrorTail, Timing, Waker

if TYPE_CHECKING:
    import paramiko

    from remote.transports.paramiko_wire import SshConnection

MAX_TRIES = 5
"""sshd's default MaxAuthTries is 6; it then disconnects without a message."""


def log_in(wire: SshConnection, target: SshTarget, box: Box) -> None:
    """Authenticate. Raises Refused with every key that was tried and why it failed; link faults pass through.

    paramiko reports a timeout and a broken connection as a failed authentication, too: only an answer that arrived on a
    connection that is still active is one. A disconnect may be sshd's MaxAuthTries, or its answer to a damaged packet.
    """
    import paramiko

    tried: list[str] = []
    with _agent() as agent:
        for name, key in _candidates(target, box, _agent_keys(agent), tried)[:MAX_TRIES]:
            try:
                missing = wire.auth_publickey(target.user, key)
            except paramiko.AuthenticationException as error:
                if not wire.is_active():
                    refusal = _refusal(target, box, [*tried, f"{name}: {wire.disconnect}"])
                    failed = f"logging in to {target.host} failed: {wire.reason()}"
                    raise Unreachable(failed, refusal if wire.disconnect else None) from error
                if not wire.auth_answered():
                    failed = f"{target.host} did not answer the login of {target.user} in time"
                    raise Unreachable(failed) from error
                tried.append(f"{name}: refused by the box")
                continue
            if missing:
                raise Refused(f"{target.host} requires more than a key from {target.user}: {', '.join(missing)}")
            return
    raise _refusal(target, box, tried or ["no key found in the SSH agent or ~/.ssh"])


def _refusal(target: SshTarget, box: Box, tried: list[str]) -> Refused:
    return Refused(
        f"{target.host} refused the login of {target.user}. Tried: {'; '.join(tried)}. "
        f"Correct 'user' or 'key' of '{box.name}' in boxes.yaml, or add the public key to ~/.ssh/authorized_keys on "
        "the box"
    )


def _candidates(
    target: SshTarget, box: Box, in_agent: list[paramiko.PKey], problems: list[str]
) -> list[tuple[str, paramiko.PKey]]:
    """(name, key) in the order to try; unusable keys are added to ``problems``."""
    found: list[tuple[str, paramiko.PKey]] = []
    if not box.key:
        found += [(f"SSH agent's {key.get_name()} {key.fingerprint}", key) for key in in_agent]
    for file in target.identity_files:
        if not file.exists():
            if box.key:
                problems.append(f"{file}: no such file")
            continue
        key, problem = _load(file)
        if key is None and (key := _same_in_agent(file, in_agent)):
            problem = ""
        if key is not None and all(key.asbytes() != other.asbytes() for _, other in found):
            found.append((str(file), key))
        elif problem:
            problems.append(f"{file}: {problem}")
    return found


def _load(file: Path) -> tuple[paramiko.PKey | None, str]:
    """The key in a file, or why it cannot be used."""
    import paramiko

    try:
        return paramiko.PKey.from_path(file), ""
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography raises TypeError for an encrypted key
        return None, f"encrypted; add it to the SSH agent first: ssh-add {file}"
    except OSError as error:
        return None, f"cannot read: {error.strerror or error}"
    except Exception as error:  # the parser raises many types for a damaged file
        return None, f"not a usable private key ({type(error).__name__})"


@contextmanager
def _agent() -> Iterator[paramiko.Agent | None]:
    """The connection to the SSH agent; None without one, or with one that paramiko cannot use."""
    import paramiko

    try:
        agent = paramiko.Agent()
    except Exception:
        yield None  # key files remain
        return
    try:
        yield agent
    finally:
        agent.close()


def _agent_keys(agent: paramiko.Agent | None) -> list[paramiko.PKey]:
    return list(agent.get_keys()) if agent else []


def _same_in_agent(file: Path, in_agent: list[paramiko.PKey]) -> paramiko.PKey | None:
    """The SSH agent's copy of an encrypted key file, identified by its ``.pub``."""
    try:
        blob = base64.b64decode(Path(f"{file}.pub").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return next((key for key in in_agent if key.asbytes() == blob), None)


_SILENT = logging.NullHandler()


class SshTransport:
    """One connection to one box. See :class:`remote.transports.transport.Transport`."""

    def __init__(
        self,
        box: Box,
        ask: AskHostKey,
        *,
        host_keys_file: str | Path | None = None,
        ssh_config: str | None = None,
        step_s: float = Timing.step,
        clock: Clock = CLOCK,
    ) -> None:
        self.address = ""
        self._clock = clock
        self._box = box
        self._ask = ask
        self._step_s = step_s
        self._host_keys = HostKeys(host_keys_file)
        self._ssh_config = ssh_config
        self._waker = Waker(clock)
        self._owner = threading.get_ident()
        self._links: list[Any] = []
        """Transports and sockets, nearest first; closed in reverse order."""
        self._channel: paramiko.Channel | None = None
        self._closed = False
        self._errors = ErrorTail(clock)
        self.output = b""
        """Received, not yet read."""
        self._stderr = bytearray()
        """While opening."""
        self._shell = BoxShell(self)
        self._ready = False
        self._deadline = 0.0
        self._target: SshTarget | None = None
        self._wire: SshConnection | None = None

    # ------------------------------------------------------------------------------------------------- opening

    def open(self, greeting: bytes = b"") -> None:
        self._owner = threading.get_ident()
        box = self._box
        self._target = resolve(
            box.host, user=box.user, port=box.port, key=box.key, config=self._ssh_config, closing=self._is_closed
        )
        wire = self._wire = self._connect(self._target)
        with self._step(self._step_s, "starting a session"):
            self._channel = wire.session(self._step_s)
            self._channel.exec_command(self._shell.command)
        bootstrap.start_agent(box, self._shell, greeting, self._wait_ready)
        self._errors.add(bytes(self._stderr[-ErrorTail.KEPT :]))
        self._channel.settimeout(SEND_S)
        for link in self._links:
            if isinstance(link, type(wire)):
                link.opened()

    def _is_closed(self) -> bool:
        return self._closed

    def _connect(self, target: SshTarget) -> SshConnection:
        """Log in to the target, through its jump hosts."""
        through: SshConnection | None = None
        hops = [resolve_jump(jump, self._ssh_config, self._is_closed) for jump in target.jumps]
        for hop in [*hops, target]:
            name = self._box.name if hop is target else f"jump-{hop.host}-{hop.port}"
            sock = self._socket(hop, through)
            through = self._secure(sock, hop, name)
            limit = MAX_TRIES * self._step_s
            with self._step(limit, f"logging in to {hop.host}", f"logging in to {hop.host} failed"):
                log_in(through, hop, self._box)
        assert through is not None
        return through

    def _socket(self, target: SshTarget, through: SshConnection | None) -> Any:
        where, limit = f"{target.host}:{target.port}", self._step_s
        if through is not None:
            with self._step(limit, f"reaching {where} through the jump host", f"the jump host cannot reach {where}"):
                return through.open_channel("direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=limit)
        self.address = _literal(target.host)
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
        with suppress(OSError):
            self.address = sock.getpeername()[0]
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15_000)
        return sock

    def _secure(self, sock: Any, target: SshTarget, name: str) -> SshConnection:
        """Negotiate, and verify the host key."""
        from paramiko.ssh_exception import IncompatiblePeer

        from remote.transports.paramiko_wire import SshConnection

        logging.getLogger("paramiko").addHandler(_SILENT)  # without a handler, its tracebacks would reach the screen
        wire = SshConnection(sock)
        self._links.append(wire)
        wire.banner_timeout = wire.handshake_timeout = self._step_s
        wire.auth_timeout = wire.channel_timeout = self._step_s
        known = [entry.key_type for entry in self._host_keys.entries(name)]
        if known:  # a box has several keys: request the known types first
            options = wire.get_security_options()
            options.key_types = sorted(options.key_types, key=lambda a: _type_of(a) not in known)
        where = f"{target.host}:{target.port}"
        failed = f"{where} accepted the connection, but the SSH negotiation failed"
        with self._step(2 * self._step_s, f"the key exchange with {where}", failed):
            try:
                wire.start_client(timeout=self._step_s)
            except IncompatiblePeer as error:
                nothing = f"{where} and this program have no SSH algorithm in common. {wire.offers() or error}"
                refusal = None if wire.offers_nothing() else Refused(nothing, "algorithms")
                raise Unreachable(f"{failed}: {error}", refusal) from error
        if not wire.initial_kex_done:  # start_client returns silently after its timeout
            raise Unreachable(f"the key exchange with {where} took longer than {self._step_s:.0f} s")
        self._verify(wire, target, name)
        return wire

    def _verify(self, wire: SshConnection, target: SshTarget, name: str) -> None:
        key: Any = wire.host_key  # its signature was verified
        key_type, blob = key.get_name(), key.asbytes()
        verdict, entry = self._host_keys.check(name, key_type, blob)
        if verdict is HostKeyState.KNOWN:
            return
        if entry is not None:
            address = "" if target.jumps else self.address
            raise Refused(self._host_keys.refusal(verdict, entry, name, key_type, blob, address), "host_key")
        wire.end()  # the box would disconnect while the user decides
        where = f"{name} ({target.host}:{target.port})"
        if not self._ask(HostKeyAsked(where, key_type, fingerprint(blob))):
            raise Refused(f"the host key of {where} was not accepted: {key_type} {fingerprint(blob)}", "host_key")
        self._host_keys.add(name, key_type, blob)
        raise TryAgain(f"stored the host key of {where}; reconnecting")

    # ----------------------------------------------------------------------------------------------- the agent

    def _wait_ready(self) -> None:
        self._shell.until("starting a session", self._shell.ready)
        self._ready = True
        self._stderr.clear()

    def limit(self, steps: int) -> None:
        """Begin a time limit."""
        self._deadline = self._clock.monotonic() + steps * self._step_s

    def write(self, data: bytes, what: str) -> None:
        """Send within the time limit. A session that ends meanwhile is reported by :meth:`more`, with its reason."""
        assert self._channel is not None
        left = max(0.1, self._deadline - self._clock.monotonic())
        self._channel.settimeout(left)
        with self._step(left, what), suppress(OSError, EOFError):
            self._channel.sendall(data)

    def more(self, what: str) -> None:
        """Wait for output. See :class:`remote.transports.bootstrap.ShellSession`."""
        channel = self._channel
        assert channel is not None
        ended = channel.eof_received or channel.closed  # nothing arrives afterwards
        left = self._deadline - self._clock.monotonic()
        if channel.recv_ready():
            self.output += channel.recv(65_536)
        elif channel.recv_stderr_ready():
            self._stderr += channel.recv_stderr(65_536)
        elif left <= 0:
            self._hang_up()
            raise Unreachable(f"{what} took too long (box '{self._box.name}'){self._shell.waits_for(self._stderr)}")
        elif ended:
            raise self._end_of(channel, what)
        else:
            self._waker.wait([channel.fileno()], min(left, POLL_S))
        if len(self.output) + len(self._stderr) > MAX_ANSWER:
            raise Flood(f"{what}: '{self._box.name}' floods the link: more than {MAX_ANSWER >> 20} MiB")

    def _end_of(self, channel: paramiko.Channel, what: str) -> Unreachable | Refused:
        """Why the session ended."""
        left = max(0.0, self._deadline - self._clock.monotonic())
        self._clock.wait(channel.status_event, left)  # also set when the channel closes
        reason = (self._stderr or self.output).decode(errors="replace").strip()[-200:]
        if channel.exit_status >= 0 and not self._ready:
            reason = reason or f"exit status {channel.exit_status}"
            return Refused(f"the login shell of '{self._box.name}' does not run commands: {reason}")
        wire: Any = channel.get_transport()
        reason = reason if self._ready else ""
        if not wire.is_active():
            reason = wire.reason()
        return Unreachable(f"{what} on '{self._box.name}' ended early: {reason or 'the session ended'}")

    @contextmanager
    def _step(self, seconds: float, what: str, failed: str = "") -> Iterator[None]:
        """One step of opening the link: any fault of the link in it is Unreachable, with ``failed`` as the message.

        The time limit also ends calls without a timeout, by closing the connection.
        """
        from remote.transports.paramiko_wire import words

        done, expired = threading.Event(), threading.Event()

        def watch() -> None:
            if not self._clock.wait(done, seconds):
                expired.set()
                self._hang_up()

        threading.Thread(target=watch, name="ssh-step", daemon=True).start()
        try:
            yield
        except (Refused, TryAgain, Flood):
            raise
        except Exception as error:  # a damaged packet makes paramiko raise many types
            if expired.is_set():
                raise Unreachable(f"{what} took longer than {seconds:.0f} s (box '{self._box.name}')") from error
            if isinstance(error, Unreachable):
                raise
            raise Unreachable(f"{failed or f'{what} on {self._box.name!r} failed'}: {words(error)}") from error
        finally:
            done.set()

    # ------------------------------------------------------------------------------------------------ the bytes

    def send(self, data: bytes) -> None:
        if self._channel is None:
            raise Unreachable(f"not connected to '{self._box.name}'")
        from remote.transports.paramiko_wire import words

        try:
            self._channel.sendall(data)
        except (OSError, EOFError) as error:  # includes socket.timeout
            raise Unreachable(f"the connection to '{self._box.name}' broke: {words(error)}") from error

    def receive(self, timeout: float) -> bytes | None:
        if self.output:
            unread, self.output = self.output, b""
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

    def dial(self, host: str, port: int) -> DialedChannel:
        from paramiko import SSHException

        if self._wire is None or self._closed:
            raise Unreachable(f"not connected to '{self._box.name}'")
        try:
            source = ("127.0.0.1", 0)
            return DialedChannel(self._wire.open_channel("direct-tcpip", (host, port), source, timeout=self._step_s))
        except (SSHException, OSError, EOFError) as error:
            raise Unreachable(f"{self._box.name} does not reach {host}:{port}: {error}") from error

    def wake(self) -> None:
        self._waker.wake()

    def close(self) -> None:
        self._hang_up()
        if threading.get_ident() == self._owner:
            self._waker.close()
            if self._channel is not None:
                self._channel.close()  # its pipe; the connection is closed already
        else:
            self._waker.wake()  # the owner may be waiting for it; it closes it afterwards

    def _hang_up(self) -> None:
        """Close everything, starting at the far end, without a goodbye that could block."""
        self._closed = True
        for link in reversed(list(self._links)):
            with suppress(Exception):  # a half-open paramiko transport may fail in any way
                (getattr(link, "end", None) or link.close)()

    def describe(self) -> str:
        target = self._target
        return f"ssh {target.user}@{target.host}:{target.port}" if target else f"ssh {self._box.address()}"

    def algorithms(self) -> dict[str, str]:
        return self._wire.algorithms() if self._wire is not None else {}

    def error_tail(self) -> str:
        return self._errors.text()


class DialedChannel:
    """See :class:`remote.transports.transport.Stream`."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self.recv, self.sendall = channel.recv, channel.sendall
        self.shutdown, self.close = channel.shutdown, channel.close

    def was_cut(self) -> bool:
        return not self._channel.eof_received


def _literal(host: str) -> str:
    """The host if it is a network address, else ""."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return ""


def _type_of(algorithm: str) -> str:
    """The key type of a signature algorithm: ``rsa-sha2-512`` uses an ``ssh-rsa`` key."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


_KNOWN_TERMINAL = (
    "sh", "-c", 'infocmp >/dev/null 2>&1; [ $? = 1 ] && TERM=xterm-256color && export TERM; exec "$@"', "sh",
)  # fmt: skip
"""Executes its arguments; on a machine that does not know the terminal, where tmux would refuse it, as a usual one."""


def paramiko_attach_argv(box: Box, session: str, *, host_keys_file: str | Path | None = None) -> list[str]:
    """The command that attaches this terminal to a session of the box (``=``: exactly this name).

    It uses the user's ssh, with the host keys of grpo-tui. A local box needs no ssh; ``TMUX`` is unset so that it works
    inside tmux. Raises ValueError for a name that no quotes hold in every shell.
    """
    socket_name = ["-L", box.tmux_socket] if box.tmux_socket else []
    if box.is_local:
        unset = [] if sys.platform == "win32" else ["env", "-u", "TMUX"]
        return [*unset, *_KNOWN_TERMINAL, "tmux", "-u", *socket_name, "attach-session", "-t", f"={session}"]
    if set(session) & set("'\\!\n"):  # whoever names a run must not write commands for this account's shell
        raise ValueError(f"the tmux session's name {session!r} is not safe in every shell; attach to it on the box")
    # always quoted: zsh expands a bare =name to the path of a command
    remote = shlex.join([*_KNOWN_TERMINAL, "tmux", "-u", *socket_name, "attach-session", "-t"]) + f" '={session}'"
    options = {
        "HostKeyAlias": box.name,
        "UserKnownHostsFile": f'"{HostKeys(host_keys_file).path}"',
        "StrictHostKeyChecking": "yes",
        "ConnectTimeout": str(CONNECT_S),
    }
    argv = ["ssh", "-t"]
    for name, value in options.items():
        argv += ["-o", f"{name}={value}"]
    argv += ["-p", str(box.port)] if box.port else []
    argv += ["-l", box.user] if box.user else []
    argv += ["-o", "IdentitiesOnly=yes", "-i", str(Path(box.key).expanduser())] if box.key else []
    return [*argv, "--", box.host, remote]
