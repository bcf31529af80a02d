"""Requests that the app sends by itself: doctor, the shown run, host keys, failed evaluations. No Textual."""

from __future__ import annotations

from grpo_tui.actions.action import Face
from grpo_tui.model.formatting import one_line
from remote.protocol import RemoteError

OUTPUT_LINES = 6


async def examine(face: Face) -> None:
    """Run the box's doctor, which names what is missing."""
    try:
        face.store.examined(await face.ask("doctor", timeout=60.0))
    except RemoteError:
        pass  # the header shows the state of the link


async def refresh_shown(face: Face, run: str) -> None:
    """Request the checkpoints and evaluations of a run."""
    try:
        face.store.show(run, await face.ask("show_run", timeout=15.0, run=run))
    except RemoteError:
        pass  # the panels show the age of their data


async def answer_host_key(face: Face) -> None:
    """Let the user accept or reject the host key of an unknown box."""
    from grpo_tui.screens.dialog import HostKeyScreen

    offered, client = face.store.host_key, face.connection.client
    if offered is None or client is None:
        return
    accepted = await face.show_dialog(HostKeyScreen(offered.host, offered.key_type, offered.fingerprint))
    client.answer_host_key(bool(accepted))


async def last_output(face: Face, session: str) -> str:
    """The last lines that a closed tmux session printed, as one line; "" if it printed nothing."""
    try:
        text = str((await face.ask("capture_pane", session=session, lines=50)).get("text", ""))
    except RemoteError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[-1].startswith("Pane is dead"):  # printed by tmux itself
        lines.pop()
    return one_line(" ".join(lines[-OUTPUT_LINES:]))[-600:]
