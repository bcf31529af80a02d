"""What each action does: asks the box, opens the dialogs, says what came of it. One method an action."""

from __future__ import annotations

import asyncio
import getpass
import platform
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.configs import config_folder, list_configs, read_config
from grpo_train.run_dir.errors import UserError
from grpo_tui import attach, demo
from grpo_tui.model.formatting import command_line, one_line
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from grpo_tui.app import GrpoApp
    from grpo_tui.forms.launch import ConfigChoice
    from grpo_tui.model.store import Store


def who() -> str:
    """Who asks, for the run's own records."""
    try:
        return f"{getpass.getuser()}@{platform.node()}"
    except (KeyError, OSError):
        return platform.node()


class Operations:
    """The app's hands. Every method runs in a worker of the app, so it may wait."""

    def __init__(self, app: GrpoApp) -> None:
        self.app = app

    @property
    def store(self) -> Store:
        return self.app.store

    async def ask(self, op: str, timeout: float = 30.0, **params: Any) -> dict[str, Any]:
        """Ask the box. Raises RemoteError."""
        if self.app.readonly and op in ("launch", "stop", "kill", "evaluate", "resume") and not params.get("dry_run"):
            raise RemoteError("readonly", "started with --readonly: nothing on the box is changed", "start without it")
        if op in ("launch", "stop", "kill"):
            params.setdefault("by", who())
        return await asyncio.wrap_future(self.app.connection.request(op, timeout, **params))

    # launch, evaluate, resume ----------------------------------------------------------------------------

    async def launch(self) -> None:
        from grpo_tui.forms.launch import LaunchScreen

        configs = await self._configs()
        runs = [row.name for row in self.store.runs or ()]
        prefer = demo.CONFIG if self.app.options.demo else ""
        answer = await self.app.push_screen_wait(LaunchScreen(self.ask, self.store.box, configs, runs, prefer))
        if answer is not None:
            run = str(answer.get("run", ""))
            self.app.choose_when_listed(run)
            again = answer.get("started") is False
            self.receipt(
                f"{run} was launched already" if again else f"{run} launched",
                f"in tmux session {answer.get('session', run)}",
            )

    async def _configs(self) -> list[ConfigChoice]:
        from grpo_tui.forms.launch import ConfigChoice

        here = await asyncio.to_thread(local_configs)
        try:
            answer = await self.ask("list_configs", timeout=10.0)
        except RemoteError:
            answer = {}
        on_box = [ConfigChoice(str(one["name"]), "box") for one in answer.get("configs") or ()]
        if here and self.app.connection.box.is_local and answer.get("folder") == str(config_folder()):
            on_box = []  # the same files
        return [ConfigChoice(name, "here", text) for name, text in here] + on_box

    async def eval(self) -> None:
        from grpo_tui.forms.evaluate import EvalScreen

        run = self.store.selected
        if run and (steps := await self._complete_steps(run)) is not None:
            answer = await self.app.push_screen_wait(EvalScreen(self.ask, run, steps))
            self._ordered(answer, "evaluation started")

    async def resume(self) -> None:
        from grpo_tui.forms.resume import ResumeScreen

        row = self.store.run
        if row and (steps := await self._complete_steps(row.name)) is not None:
            screen = ResumeScreen(self.ask, row.name, steps, row.total_steps, self.store.step)
            answer = await self.app.push_screen_wait(screen)
            self._ordered(answer, f"{row.name} goes on from step {(answer or {}).get('step', '?')}")

    async def _complete_steps(self, run: str) -> list[int] | None:
        """Steps of the run's complete checkpoints, asked anew; None when there are none (and the user was told)."""
        try:
            shown = await self.ask("show_run", run=run)
        except RemoteError as error:
            self.app.show_error("the box did not answer", error)
            return None
        self.store.show(run, shown)
        steps = sorted(view.step for view in self.store.checkpoints() if view.is_complete)
        if not steps:
            self.app.notify(f"{run} has no complete checkpoint yet", severity="warning")
            return None
        return steps

    def _ordered(self, answer: dict[str, Any] | None, words: str) -> None:
        if answer is not None:
            self.receipt(words, f"in tmux session {answer['session']}" if answer.get("session") else "")

    # stop, kill ------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        run = self.store.selected
        if run is None:
            return
        try:
            await self.ask("stop", run=run)
        except RemoteError as error:
            self.app.show_error(f"{run} was not asked to stop", error)
            return
        self.receipt(f"{run}: stop asked", f"it saves after the step under way (step {self.store.step + 1}), then ends")

    async def kill(self) -> None:
        from grpo_tui.screens.dialog import ConfirmScreen

        row = self.store.run
        if row is None:
            return
        saved = [view.step for view in self.store.checkpoints() if view.is_complete]
        last = max(saved, default=0)
        lost = max(0, self.store.step - last)
        steps, are = ("step", "is") if lost == 1 else ("steps", "are")
        since = (
            f"since the last checkpoint (step_{last}) {are} lost."
            if last
            else f"{are} lost: no checkpoint is saved yet."
        )
        what_is_lost = f"[$warning]{lost} {steps}[/] {since}" if lost else "No step is lost."
        evaluations = [name for name in self.store.sessions_of(row.name) if name.startswith("eval_")]
        if not row.is_live and evaluations:
            await self._end_evaluation(row.name, evaluations[0])
            return
        lines = [
            f"Kill [bold]{_escape(row.name)}[/] on [bold]{_escape(self.store.box)}[/] "
            f"at step [bold]{self.store.step}[/] now, without saving?",
            what_is_lost,
            "[$grpo-muted]s would stop it after its step, saved.[/]",
        ]
        if not await self.app.push_screen_wait(ConfirmScreen("kill a run", lines, f"Kill {row.name}")):
            return
        try:
            answer = await self.ask("kill", timeout=60.0, run=row.name)
        except RemoteError as error:
            self.app.show_error(f"{row.name} was not killed", error)
            return
        if not self._told_of_survivors(row.name, answer):
            self.receipt(f"{row.name} killed", "no process of it is left")

    async def _end_evaluation(self, run: str, session: str) -> None:
        from grpo_tui.screens.dialog import ConfirmScreen

        lines = [
            f"End the evaluation of [bold]{_escape(run)}[/] on [bold]{_escape(self.store.box)}[/] now?",
            "[$grpo-muted]Checkpoints that are evaluated already keep their figures.[/]",
        ]
        if not await self.app.push_screen_wait(ConfirmScreen("end an evaluation", lines, "End the evaluation")):
            return
        self.app.forget_evaluation(session)
        try:
            answer = await self.ask("kill", timeout=60.0, session=session)
        except RemoteError as error:
            self.app.show_error(f"the evaluation of {run} was not ended", error)
            return
        if not self._told_of_survivors(f"the evaluation of {run}", answer):
            self.receipt(f"evaluation of {run} ended", "no process of it is left")

    def _told_of_survivors(self, what: str, answer: dict[str, Any]) -> bool:
        """After a kill: whether processes did not end, and the user was told which."""
        if left := answer.get("left"):
            words = f"these processes did not end: {', '.join(map(str, left))}"
            self.app.show_error(f"{what} is not gone", RemoteError("left", words, "look at them on the box"))
        return bool(left)

    async def tell_failed_evaluation(self, run: str, session: str, code: int) -> None:
        """Say that an evaluation failed, with its last words."""
        try:
            text = str((await self.ask("capture_pane", session=session, lines=50)).get("text", ""))
        except RemoteError:
            text = ""
        said = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Pane is dead")]
        error = max((at for at, line in enumerate(said) if line.startswith("error: ")), default=None)
        words = one_line(" ".join(said[-2:]))[-400:] if error is None else one_line(" ".join(said[error:]))[7:400]
        words = words or f"exit code {code}; nothing was printed"
        self.app.notify(words, title=f"✖ evaluation of {run} failed", severity="error", timeout=60, markup=False)

    # attach ----------------------------------------------------------------------------------------------

    async def attach(self) -> None:
        from grpo_tui.screens.dialog import AttachScreen

        row = self.store.run
        sessions = self.store.sessions_of(row.name) if row else []
        if not sessions:
            return
        box = self.app.connection.box
        try:
            handover = await asyncio.to_thread(attach.plan, box, sessions[0])
        except Exception as error:  # no OpenSSH, an alias that does not resolve, …
            self.app.show_error("cannot attach", RemoteError("attach", str(error)))
            return
        screen = AttachScreen(sessions[0], self.store.box, command_line(handover.argv), handover.detach, handover.note)
        if await self.app.push_screen_wait(screen):
            code, problem = self.app.in_foreground(handover.argv, f"to come back: {handover.detach}")
            if problem:
                self.app.show_error("cannot attach", RemoteError("attach", problem))
            elif code:
                self.app.notify(
                    f"tmux ended with exit code {code}", title=f"attach to {sessions[0]}", severity="warning"
                )

    # boxes -----------------------------------------------------------------------------------------------

    async def boxes(self) -> None:
        from grpo_tui.screens.boxes import AddBoxScreen, BoxesScreen
        from remote.boxes import BoxesError, add_box, load_boxes

        file = self.app.options.boxes_file
        try:
            boxes = await asyncio.to_thread(load_boxes, file)
        except BoxesError as error:
            self.app.show_error("the list of boxes cannot be read", RemoteError("boxes", str(error)))
            return
        current = self.app.connection.box
        if all(box.name != current.name for box in boxes):
            boxes = [current, *boxes]
        chosen = await self.app.push_screen_wait(BoxesScreen(boxes, current.name))
        if chosen == "+":
            box = await self.app.push_screen_wait(AddBoxScreen(lambda new: add_box(file, new)))
            if box is not None:
                self.receipt(f"box {box.name} added", "connecting to it")
                await self.app.use_box(box)
        elif chosen == current.name:
            await self.reconnect()
        elif chosen is not None:
            await self.app.use_box(next(box for box in boxes if box.name == chosen))

    async def reconnect(self) -> None:
        """Try again; with the box as boxes.yaml has it now, for one may have corrected it there meanwhile."""
        from remote.boxes import BoxesError

        if not self.store.connected or self.store.ailment():
            current = self.app.connection.box
            try:
                box = await asyncio.to_thread(self.app.options.look_up, current)
            except BoxesError as error:
                self.app.show_error("the list of boxes cannot be read", RemoteError("boxes", str(error)))
                return
            if box != current:
                await self.app.use_box(box)
                return
        if (client := self.app.connection.client) is not None:
            client.reconnect_now()
        if self.store.connected:
            await self.examine()

    async def examine(self) -> None:
        """Let the box's doctor look, so that what is missing can be named."""
        try:
            self.store.examined(await self.ask("doctor", timeout=60.0))
        except RemoteError:
            pass  # the link says what is wrong

    # the run that is shown -------------------------------------------------------------------------------

    async def refresh_shown(self, run: str) -> None:
        """Ask again for the run's checkpoints and evaluations."""
        try:
            self.store.show(run, await self.ask("show_run", timeout=15.0, run=run))
        except RemoteError:
            pass  # the age of what is shown tells

    async def answer_host_key(self) -> None:
        from grpo_tui.screens.dialog import HostKeyScreen

        asked, client = self.store.host_key, self.app.connection.client
        if asked is None or client is None:
            return
        screen = HostKeyScreen(asked.host, asked.key_type, asked.fingerprint)
        accepted: bool | None = await self.app.push_screen_wait(screen)
        client.answer_host_key(bool(accepted))

    def receipt(self, words: str, more: str = "") -> None:
        """Say what came of an action."""
        self.app.notify(more or words, title=words if more else "", timeout=6, markup=False)


def local_configs() -> list[tuple[str, str]]:
    """Name and text of each training config of this machine."""
    try:
        folder = config_folder()
        return [(config["name"], read_config(folder, config["name"])) for config in list_configs(folder)]
    except (UserError, OSError):
        return []


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
