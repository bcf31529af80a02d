"""Public-key login: the box's key file, or the SSH agent and the identity files that ssh would try."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from remote.base import Refused, Unreachable
from remote.boxes import Box
from remote.transports.ssh_config import Target

if TYPE_CHECKING:
    import paramiko

    from remote.transports.ssh_wire import SshConnection

MAX_TRIES = 5
"""sshd's default MaxAuthTries is 6; it then disconnects without a message."""


def log_in(wire: SshConnection, target: Target, box: Box) -> None:
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


def _refusal(target: Target, box: Box, tried: list[str]) -> Refused:
    return Refused(
        f"{target.host} refused the login of {target.user}. Tried: {'; '.join(tried)}. "
        f"Correct 'user' or 'key' of '{box.name}' in boxes.yaml, or add the public key to ~/.ssh/authorized_keys on "
        "the box"
    )


def _candidates(
    target: Target, box: Box, in_agent: list[paramiko.PKey], problems: list[str]
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
