"""Requests that prepare this box: its ``.env``, and the setup of the engine in a session that anyone may attach to."""

from __future__ import annotations

import shutil

from grpo_train.run_dir.env_file import account_file
from grpo_train.run_dir.files import atomic_write
from remote.agent.context import BoxContext
from remote.agent.engine import not_installed
from remote.agent.once import Record
from remote.agent.sessions import Sessions
from remote.protocol import RemoteError
from remote.protocol.jobs import JobReply
from remote.protocol.prepare import MAX_ENV_BYTES, PlaceEnvReply, PlaceEnvRequest, SetUpRequest

SETUP_SESSION = "setup"
SCRIPT = "scripts/setup.sh"


def place_env(box: BoxContext, request: PlaceEnvRequest, record: Record) -> PlaceEnvReply:
    """Put the variables where every job of this account reads them, readable by this account only.

    Raises RemoteError ``bad_request`` for a text that is too long.
    """
    data = request.text.encode(errors="surrogatepass")
    if len(data) > MAX_ENV_BYTES:
        raise RemoteError("bad_request", f"a .env of {len(data):,} bytes is too long; the limit is {MAX_ENV_BYTES:,}")
    file = account_file()
    replaced = file.exists()
    record.begin()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic_write(file, data, mode=0o600)
    return {"path": str(file), "replaced": replaced}


def set_up(box: BoxContext, request: SetUpRequest, record: Record) -> JobReply:
    """Run the checkout's setup script in the session ``setup``; one that is running already is left to it.

    Raises RemoteError: ``bad_request`` for a box with an environment of its own, ``no_repo`` without a checkout,
    ``session_live`` where something else runs in a session of this name.
    """
    for key in ("engine", "activate"):
        if getattr(box.settings, key):
            message = f"nothing to set up: '{key}' in boxes.yaml names the environment of this box"
            raise RemoteError("bad_request", message, "grpo-tui doctor checks it")
    if box.repo is None:
        raise RemoteError("no_repo", "no checkout is configured for this box", "set 'repo' in boxes.yaml")
    script = box.repo / SCRIPT
    if not script.is_file():
        message = f"{box.repo} is not a checkout of grpo-tui" if box.repo.is_dir() else f"{box.repo} does not exist"
        raise RemoteError("no_repo", message, not_installed(box).hint)
    sessions = Sessions(box)
    sessions.require()
    argv = [shutil.which("bash") or "bash", str(script), "--box"]
    row = sessions.find(SETUP_SESSION)
    is_running = row is not None and not row["dead"] and row["marked"]
    starts = not is_running and not request.dry_run
    if starts:
        record.begin()
        sessions.start(SETUP_SESSION, argv, box.repo, box, key=record.key)
    return {"run": "", "session": SETUP_SESSION, "argv": argv, "engine": "", "started": starts}
