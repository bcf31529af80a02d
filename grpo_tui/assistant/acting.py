"""What an assistant may do within its grant: one method for each verb, whose docstring is what the assistant reads.

Each act is planned first: a call without ``confirm`` changes nothing, says what would happen and returns a word; the
same call with that word acts, once, however often it is repeated. The grant is checked here and again on the box. What
was asked, done and refused is written down here, in ``assistant.jsonl``, and there (:mod:`remote.agent.grants`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_train.run_dir import LIVE_STATES
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import append_jsonl, utc_from, utc_now
from grpo_tui.assistant.reading import LOOK_S, BoxReader, Row
from remote.boxes import Box
from remote.protocol import OPERATIONS, RemoteError
from remote.protocol.check import read_request
from remote.protocol.grants import BUDGET_KEY, NUMERIC_KEYS, Grant, outside

FILE = "assistant.jsonl"
MAX_BYTES = 4 * 1024 * 1024
MAX_PLANS = 200
START_S = 30.0
"""For a run to start: until then it has the state of its last end."""
UNKNOWN_CODES = ("timeout", "unreachable", "lost")
"""After these nobody knows yet whether the act happened."""


class BoxActor(BoxReader):
    """A box, asked and changed within a grant. Thread-safe."""

    def __init__(
        self,
        box: Box,
        boxes_file: str | None,
        grant: Grant,
        configs: dict[str, tuple[str, list[str]]],
        record: Path,
        clock: Clock = CLOCK,
    ) -> None:
        """``configs``: name to text and overrides of each config that the person named. ``record``: the file here."""
        super().__init__(box, boxes_file, clock, grant)
        self._grant, self._configs, self._record = grant, configs, record
        self._plans: dict[str, tuple[str, Row, str]] = {}
        """The word of a plan to its operation, its fields and its idempotency key."""

    # ------------------------------------------------------------------------------------------------------- acts

    def stop_run(self, run: str, why: str, confirm: str = "") -> Row:
        """Stop a run after its current step, saved; it can be resumed. Without confirm nothing is changed: the answer
        says what would happen, and the word to confirm it with."""
        return self._act("stop", {"run": run}, why, confirm)

    def resume_run(
        self,
        run: str,
        why: str,
        dollars: float,
        additional_steps: int | None = None,
        from_step: int | None = None,
        changes: dict[str, float] | None = None,
        confirm: str = "",
    ) -> Row:
        """Resume a run from its newest checkpoint, or from from_step, with the code it had. dollars: what this may
        cost; it stops there by itself. changes: numeric keys of its config, such as {"optimizer.learning_rate": 5e-7}.
        Without confirm nothing is changed: the answer says what would happen, and the word to confirm it with."""
        params = {
            "run": run, "additional_steps": additional_steps, "from_step": from_step, "code": "then",
            "overrides": [*_overrides(changes), f"{BUDGET_KEY}={dollars:g}"],
        }  # fmt: skip
        return self._act("resume", params, why, confirm)

    def evaluate_run(
        self,
        run: str,
        why: str,
        steps: list[int],
        timeout: int,
        temperature: float | None = None,
        num_samples: int | None = None,
        num_problems: int | None = None,
        confirm: str = "",
    ) -> Row:
        """Evaluate checkpoints of a run on its own held-out problems. timeout: seconds for each step, after which it
        ends; the price of that time is what this may cost. Without confirm nothing is changed: the answer says what
        would happen, and the word to confirm it with."""
        params = {
            "run": run, "steps": steps, "timeout": timeout, "temperature": temperature, "num_samples": num_samples,
            "num_problems": num_problems,
        }  # fmt: skip
        return self._act("evaluate", params, why, confirm)

    def launch_run(
        self,
        config: str,
        why: str,
        dollars: float,
        run_name: str = "",
        changes: dict[str, float] | None = None,
        confirm: str = "",
    ) -> Row:
        """Launch a run of a config that the person named (the tool 'grant' lists them). dollars: what it may cost; it
        stops there by itself. changes: numeric keys of the config. Without confirm nothing is changed: the answer says
        what would happen, and the word to confirm it with."""
        if config not in self._configs:
            return self._refuse("launch", config, f"the person named no config '{config}'", ", ".join(self._configs))
        text, overrides = self._configs[config]
        params = {
            "config_text": text, "config_name": config, "run_name": run_name,
            "overrides": [*overrides, *_overrides(changes), f"{BUDGET_KEY}={dollars:g}"],
        }  # fmt: skip
        return self._act("launch", params, why, confirm)

    def back_up_run(self, run: str, why: str, steps: str = "", to: str = "", confirm: str = "") -> Row:
        """Back up a run and its evaluations. steps: all, latest, final or such as "10,20"; to: a destination of the
        box's backup.yaml, "" = the first. Without confirm nothing is changed: the answer says what would happen, and
        the word to confirm it with."""
        return self._act("back_up", {"run": run, "steps": steps, "to": to}, why, confirm)

    def grant(self) -> Row:
        """What you may do on this box: verbs, runs, configs and their keys, until when, how many dollars are left."""
        found = self.request("show_grant")
        until, left = found.pop("until"), found.pop("left")
        ends = None if until is None else utc_from(until)
        return {**found, "keys": sorted(NUMERIC_KEYS), "until": ends, "dollars_left": left}

    def acts(self) -> list[Callable[..., Row]]:
        """The tools of the granted verbs."""
        by_verb: dict[str, Callable[..., Row]] = {
            "stop": self.stop_run, "resume": self.resume_run, "evaluate": self.evaluate_run, "launch": self.launch_run,
            "backup": self.back_up_run,
        }  # fmt: skip
        return [self.grant, *(tool for verb, tool in by_verb.items() if verb in self._grant.verbs)]

    # ------------------------------------------------------------------------------------------------------ inside

    def _act(self, op: str, params: Row, why: str, confirm: str) -> Row:
        params = {key: value for key, value in params.items() if value not in (None, "", [])} | {"why": why}
        plan = self._plans.get(confirm)
        if confirm and (plan is None or plan[:2] != (op, params)):
            reason = "'confirm' belongs to another request"
            return self._refuse(op, str(params.get("run", "")), reason, "call it without confirm first")
        key = plan[2] if plan else secrets.token_hex(12)
        request = read_request(OPERATIONS[op].request, {**params, "idempotency_key": key})
        own = set(self.request("show_grant")["run_names"])
        if reason := outside(self._grant, op, True, request, self._clock.time(), own.__contains__):
            return self._refuse(op, str(params.get("run", "")), reason)
        if plan is None:
            return self._plan(op, params, key)
        self._write("confirmed", op, params)
        try:
            reply = self.request(op, idempotency_key=key, **params)
        except RemoteError as error:
            self._write("refused" if error.code == "not_granted" else "failed", op, params, reason=str(error))
            if error.code in UNKNOWN_CODES:
                hint = "call it again with the same confirm: it is carried out once"
                raise RemoteError(error.code, error.message, hint) from error
            raise
        self._write("done", op, params, run=str(reply.get("run", "")))
        state = {"state": self._state_after(str(reply["run"]))} if op in ("launch", "resume") else {}
        return {"done": True, **_shown(reply), **state}

    def _state_after(self, run: str) -> str:
        """The state of a run once it has started, or after a while."""
        until = self._clock.monotonic() + START_S
        while True:
            state = str(self.request("show_run", run=run)["summary"]["state"])
            if state in LIVE_STATES - {"starting"} or self._clock.monotonic() > until:
                return state
            self._clock.sleep(LOOK_S)

    def _plan(self, op: str, params: Row, key: str) -> Row:
        """What an act would do, and the word for it."""
        if op == "stop":
            summary = self.request("show_run", run=params["run"])["summary"]
            would: Row = {name: summary.get(name) for name in ("run", "state", "step", "total_steps")}
        else:
            try:
                would = _shown(self.request(op, dry_run=True, **params))
            except RemoteError as error:
                if error.code == "not_granted":
                    self._write("refused", op, params, reason=error.message)
                raise
        word = secrets.token_hex(4)
        while len(self._plans) >= MAX_PLANS:
            del self._plans[next(iter(self._plans))]
        self._plans[word] = (op, params, key)
        self._write("planned", op, params)
        return {"done": False, "would": would, "confirm": word}

    def refuse_call(self, tool: str, arguments: Row, reason: str) -> None:
        """Write down a call that reached no tool: its name or its arguments are wrong."""
        self._write("refused", tool, arguments, reason=" ".join(reason.split()))

    def _refuse(self, op: str, run: str, reason: str, hint: str = "") -> Row:
        self._write("refused", op, {"run": run}, reason=reason)
        raise RemoteError("not_granted", reason, hint or "tell the person what you would do and why")

    def _write(self, what: str, op: str, params: Row, **fields: Any) -> None:
        """Write a request down. Raises UserError where that fails: what is not written down is not done."""
        row = {"time": utc_now(), "what": what, "box": self.box.name, "grant": self._grant.account, "op": op}
        row |= {"run": params.get("run") or params.get("run_name") or "", "why": params.get("why", ""), **fields}
        try:
            if self._record.exists() and self._record.stat().st_size > MAX_BYTES:
                raise OSError(f"it has {MAX_BYTES:,} bytes: move it away")
            self._record.parent.mkdir(parents=True, exist_ok=True)
            append_jsonl(self._record, {key: str(value)[:500] for key, value in row.items()})
        except OSError as error:
            raise UserError(
                f"{self._record}: cannot be written: {error.strerror or error}", code="disk_full"
            ) from error


def _overrides(changes: dict[str, float] | None) -> list[str]:
    return [f"{key}={int(value) if value.is_integer() else value!r}" for key, value in (changes or {}).items()]


def _shown(reply: Row) -> Row:
    keys = ("run", "state", "session", "job", "argv", "step", "estimate", "note", "started")
    return {key: reply[key] for key in keys if reply.get(key) not in (None, "")}
