"""Public-key login: the box's own key file, or the ssh agent and the identity files the user's ssh would try."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from remote.boxes import Box
from remote.transports import Refused, Unreachable
from remote.transports.ssh_config import Target

if TYPE_CHECKING:
    import paramiko

MAX_TRIES = 5
"""sshd's MaxAuthTries is 6 and it hangs up without a word."""


def log_in(transport: paramiko.Transport, target: Target, box: Box) -> None:
    """Authenticate. Raises Refused naming every key that was tried and why it did not do."""
    import paramiko

    tried: list[str] = []
    for name, key in _candidates(target, box, tried)[:MAX_TRIES]:
        try:
            missing = transport.auth_publickey(target.user, key)
        except paramiko.AuthenticationException:
            tried.append(f"{name}: refused by the box")
            if not transport.is_active():
                break
            continue
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise Unreachable(f"logging in to {target.host} failed: {error or type(error).__name__}") from error
        if missing:
            raise Refused(f"{target.host} wants more than a key from {target.user}: {', '.join(missing)}")
        return
    tried = tried or ["there is no key in the ssh agent nor in ~/.ssh"]
    raise Refused(
        f"{target.host} did not let {target.user} in. Tried: {'; '.join(tried)}. "
        f"Correct 'user' or 'key' of '{box.name}' in boxes.yaml, or add the key's .pub to ~/.ssh/authorized_keys there"
    )


def _candidates(target: Target, box: Box, problems: list[str]) -> list[tuple[str, paramiko.PKey]]:
    """(name, key) in the order to try; what cannot be used is told in ``problems``."""
    in_agent = _agent_keys()
    found: list[tuple[str, paramiko.PKey]] = []
    if not box.key:
        found += [(f"ssh agent's {key.get_name()} {key.fingerprint}", key) for key in in_agent]
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
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography says TypeError for an encrypted key
        return None, f"encrypted; add it to the ssh agent first: ssh-add {file}"
    except OSError as error:
        return None, f"cannot be read: {error.strerror or error}"
    except Exception as error:  # whatever the parser says of a damaged file
        return None, f"no private key that can be used ({type(error).__name__})"


def _agent_keys() -> list[paramiko.PKey]:
    import paramiko

    try:
        return list(paramiko.Agent().get_keys())
    except Exception:  # no agent, one of another kind, or one that answers nonsense: files remain
        return []


def _same_in_agent(file: Path, in_agent: list[paramiko.PKey]) -> paramiko.PKey | None:
    """The agent's copy of an encrypted key file, known by its ``.pub``."""
    import base64

    try:
        blob = base64.b64decode(Path(f"{file}.pub").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return next((key for key in in_agent if key.asbytes() == blob), None)
