"""The session of an assistant: what its grant allows is done and written down, all else is refused and written down.

``training_runs/.grants-UID/ACCOUNT.jsonl`` has what was reserved, done, freed and refused. It is the ledger of the
money, locked while money is reserved: two sessions cannot spend the same dollar. Where it cannot be written, nothing is
done. A run that ended has cost what it ran, and the rest of its reservation is free again; until then it has cost all
that was reserved, and it carries that as its ``budget``: its supervisor stops it, whoever is connected.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from grpo_train.run_dir import RunDir, RunDirError, list_runs, open_run
from grpo_train.run_dir.configs import config_values
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import to_float, utc_now
from grpo_train.run_dir.root import find_by_key
from grpo_train.run_dir.rows import printable
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, read_bytes
from grpo_train.run_dir.status import END_STATES
from remote.agent.box import BoxContext
from remote.protocol import Operation, RemoteError
from remote.protocol.grants import BUDGET_KEY, PAID, Grant, GrantReply, dollars_of, outside, runs_of, seconds_of
from remote.protocol.operations import NoParameters

FOLDER = ".grants"
MAX_BYTES = 4 * 1024 * 1024
"""Of a record. A full one ends the grant: what is not written down is not done."""
MAX_TEXT = 300
PRICE_KEY = "budget.price_per_hour"
EVENT = "by_assistant"
"""Of a run, for each act."""
BEYOND_S = 1_200.0
"""A supervisor ends a run so long after its budget was spent, and two steps more
(:data:`grpo_train.supervisor.process.BEYOND_S`). What the run cost beyond that is another's."""
_COMMENT = re.compile(r"(?:^|[ \t])[ \t]*#.*$", re.MULTILINE)
_FLOW = re.compile(r"^budget:[ \t]*\{([^{}\n]*)\}[ \t]*$", re.MULTILINE)
_DOLLARS = re.compile(r"(?:^|[{,])[ \t]*[\"']?dollars[\"']?[ \t]*:", re.MULTILINE)
Row = dict[str, Any]
Handler = Callable[[BoxContext, Any], Any]


def carry_out(box: BoxContext, operation: Operation, request: Any, handler: Handler) -> Any:
    """Answer a request of an assistant. Raises RemoteError ``not_granted``."""
    grant, op = box.grant, operation.name
    assert grant is not None
    record = _GrantRecord(box, grant)

    def check() -> None:
        if reason := outside(grant, op, operation.changes_state, request, box.clock.time(), record.is_own):
            raise _refused(reason)
        for name in () if grant.allows_code else runs_of(request):
            if not record.has(name) and os.path.exists(name):  # a name is looked up in the agent's directory, too
                raise _refused(f"'{name}' is not a run of this root")

    try:
        check()
        if not operation.changes_state:
            return handler(box, request)
        # a key finds nothing of another act, account or person: their keys can be read
        key = _digest(f"{grant.account}\0{op}\0{request.idempotency_key}")
        request = replace(request, idempotency_key=key)
        if getattr(request, "dry_run", False):
            with record.locked("plan"):  # each starts an engine
                return handler(box, _as_granted(op, request, grant, record))
        with record.locked(op):
            check()  # it may have expired meanwhile
            request = _as_granted(op, request, grant, record)
            return _act(box, op, request, handler, record)
    except RemoteError as error:
        if error.code == "not_granted":
            record.add("refused", op=op, run=_run_of(request), reason=error.message, by=grant.by)
        raise


def _act(box: BoxContext, op: str, request: Any, handler: Handler, record: _GrantRecord) -> Any:
    key = request.idempotency_key
    if record.has_done(op, key):  # the record of the request may be gone: it is not carried out again
        return handler(box, replace(request, recall=True))
    if op not in PAID:
        record.add("begun", op=op, key=key, run=_run_of(request))
    try:
        reply = handler(box, request)
    except UserError as error:  # after anything else it may have started
        if op == "launch" and (run := find_by_key(box.root, key)) is not None:
            record.add("begun", op=op, key=key, run=run.name)
        elif error.code != "tmux":
            record.free(op, key)
        raise
    record.done(op, request, str(reply.get("run") or _run_of(request)))
    return reply


def show_grant(box: BoxContext, request: NoParameters) -> GrantReply:
    """What this session may do. Raises RemoteError ``no_grant`` for one of a person."""
    grant = box.grant
    if grant is None:
        raise RemoteError("no_grant", "this session is a person's")
    record = _GrantRecord(box, grant)
    own = [run.name for run in list_runs(box.root) if record.is_own(run.name)]
    return {
        "verbs": grant.verbs,
        "run_names": [*grant.runs, *(name for name in own if name not in grant.runs)],
        "configs": list(grant.configs),
        "until": grant.until,
        "dollars": grant.dollars,
        "left": None if grant.dollars is None else round(max(0.0, grant.dollars - record.reserved()), 4),
        "price_per_hour": grant.price_per_hour,
        "refused": sum(row.get("what") == "refused" for row in record.rows()),
    }


def _refused(reason: str) -> RemoteError:
    return RemoteError("not_granted", reason, "tell the person what you would do and why")


def _digest(key: str) -> str:
    """An idempotency key as the agent knows it: keys of any length stay different."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:32]


def _run_of(request: Any) -> str:
    return str(getattr(request, "run", "") or getattr(request, "run_name", ""))


def _as_granted(op: str, request: Any, grant: Grant, record: _GrantRecord) -> Any:
    """The request with its money reserved, and with who asks. Raises RemoteError ``not_granted``."""
    if hasattr(request, "by"):
        request = replace(request, by=grant.by)
    if op not in PAID:
        return request
    price = grant.price_per_hour
    if not price:
        raise _refused("the price of this box is not known, so nothing is started: set price_per_hour in boxes.yaml")
    if grant.dollars is None:
        raise _refused("no money is granted (--budget-dollars)")
    asked, key, name = _asked(op, request, price), request.idempotency_key, _run_of(request)
    run = open_run(record.root, request.run) if op == "resume" else None
    before, own = (_seconds(run) if run else 0.0), None
    if op != "evaluate":
        own = _limit_of_person(request, run)
    if (held := record.reservation(op, key)) is not None:
        if (asked, name) != (held.get("dollars"), held.get("run")):
            raise _refused("this key was used for another request")
        before, own = to_float(held.get("before")) or 0.0, to_float(held.get("person"))
    elif request.recall:
        raise RemoteError("not_received", f"nothing was reserved for this {op}")
    elif asked > (left := grant.dollars - record.reserved()) + 1e-9:
        raise _refused(f"${asked:.2f} is more than the ${max(0.0, left):.2f} that are left of the grant")
    elif not getattr(request, "dry_run", False):
        record.add("reserved", op=op, key=key, run=name, dollars=asked, before=before, price=price, person=own)
    if op == "evaluate":
        return request
    limit = asked + before * price / 3600
    limit = limit if own is None else min(limit, own)
    others = [text for text in request.overrides if text.partition("=")[0].strip() not in (BUDGET_KEY, PRICE_KEY)]
    return replace(request, overrides=[*others, f"{BUDGET_KEY}={limit:.6g}", f"{PRICE_KEY}={price:.6g}"])


def _asked(op: str, request: Any, price: float) -> float:
    """The dollars that a request may cost."""
    if op == "evaluate":
        seconds = seconds_of(request)
        if seconds is None:
            raise _refused("an evaluation needs a list of 'steps' and a 'timeout' in seconds for each: it costs money")
        return seconds * price / 3600
    asked = dollars_of(request.overrides)
    if asked is None or asked <= 0:
        raise _refused(f"say what it may cost: {BUDGET_KEY}=N among the overrides")
    return asked


def _limit_of_person(request: Any, run: RunDir | None) -> float | None:
    """``budget.dollars`` that a person gave the run, which no assistant raises. Raises RemoteError ``not_granted``."""
    if run is None or not run.config_file.exists():
        launch = run.read_launch() if run else {"config_text": request.config_text}
        overrides = [str(each) for each in launch.get("overrides") or []]
        text = _COMMENT.sub("", str(launch.get("config_text") or ""))
        text = _FLOW.sub(lambda flow: "budget:" + "".join(f"\n  {each.strip()}" for each in flow[1].split(",")), text)
        found: Row = {BUDGET_KEY: given} if (given := dollars_of(overrides)) is not None else dict(config_values(text))
        if _DOLLARS.search(text) and not isinstance(found.get(BUDGET_KEY, ""), (int, float, type(None))):
            hint = "the person has to write it as 'dollars: N' on a line below 'budget:'"
            raise _refused(f"{BUDGET_KEY} of the config cannot be read here: {hint}")
    else:
        text = (read_bytes(run.config_file, MAX_RUN_FILE_BYTES) or b"").decode(errors="replace")
        found = dict(config_values(text))
    limit = to_float(found.get(BUDGET_KEY))
    acts = [row for _, row in run.events() if row.get("event") == EVENT and "limit" in row] if run else []
    # what an assistant set is none of the person's, who had set another before
    return to_float(acts[-1].get("person")) if acts and limit == acts[-1]["limit"] else limit


def _seconds(run: RunDir) -> float:
    """Seconds that a run was supervised."""
    return max(0.0, to_float((run.read_status() or {}).get("run_seconds")) or 0.0)


class _GrantRecord:
    """The record of an account."""

    def __init__(self, box: BoxContext, grant: Grant) -> None:
        self.root, self.grant = box.root, grant
        self._file = box.root / "training_runs" / f"{FOLDER}-{os.geteuid()}" / f"{grant.account}.jsonl"

    def is_own(self, name: str) -> bool:
        """Whether a run was launched under the account. A link or a run of the older layout may be another's."""
        try:
            run = RunDir(self.root / "training_runs" / name)
            if run.path.is_symlink() or os.path.lexists(self.root / "rl_runs" / name):
                return False
            return run.launch_text("grant") == self.grant.account
        except ValueError:  # a name that no file has
            return False

    def has(self, name: str) -> bool:
        """Whether a run of this name is below the root."""
        return any(os.path.lexists(self.root / folder / name) for folder in ("training_runs", "rl_runs"))

    def rows(self) -> list[Row]:
        try:
            lines = self._file.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        rows = []
        for line in lines:
            with suppress(ValueError, RecursionError):  # the last line of a process that was killed
                if isinstance(row := json.loads(line), dict):
                    rows.append(row)
        return rows

    def add(self, what: str, **fields: Any) -> None:
        """Write a row. Raises RemoteError ``not_granted`` where it cannot be written."""
        short = {key: printable(value[:MAX_TEXT]) if isinstance(value, str) else value for key, value in fields.items()}
        line = f"\n{json.dumps({'time': utc_now(), 'what': what, **short})}\n".encode()
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(descriptor).st_size + len(line) > MAX_BYTES:
                    raise OSError(f"it has {MAX_BYTES:,} bytes")
                os.write(descriptor, line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            reason = f"{self._file}: {error.strerror or error}"
            raise _refused(f"the record of the grant cannot be written, so nothing is done: {reason}") from error

    @contextmanager
    def locked(self, op: str) -> Iterator[None]:
        """One act that costs money at a time, from its reservation to its end; of the others, one of each kind."""
        import fcntl  # POSIX only

        file = self._file.with_suffix(f".{'paid' if op in PAID else op}.lock")
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _refused(f"the ledger cannot be locked: {file}: {error.strerror or error}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:  # a mount without locks: two sessions could spend the same money
                if op in PAID:
                    raise _refused(f"the ledger cannot be locked: {file}: {error.strerror or error}") from error
            yield
        finally:
            os.close(descriptor)

    def reservation(self, op: str, key: str) -> Row | None:
        """The reservation of a request; None without one that holds."""
        found = None
        for row in self.rows():
            if (row.get("op"), row.get("key")) == (op, key) and row.get("what") in ("reserved", "freed"):
                found = row if row["what"] == "reserved" else None
        return found

    def has_done(self, op: str, key: str) -> bool:
        """Whether an act was carried out."""
        return any((row.get("what"), row.get("op"), row.get("key")) == ("done", op, key) for row in self.rows())

    def free(self, op: str, key: str) -> None:
        """A request failed before it started anything: nothing of it costs money."""
        if self.reservation(op, key) is not None:
            self.add("freed", op=op, key=key)

    def done(self, op: str, request: Any, run: str) -> None:
        """Write an act down, here and among the events of its run."""
        key, why = request.idempotency_key, printable(request.why[:MAX_TEXT])
        said: Row = {"op": op, "by": self.grant.by, "why": why, "grant": self.grant.account}
        if (reserved := self.reservation(op, key)) is not None:
            said["dollars"] = reserved.get("dollars")
            if op != "evaluate":
                said |= {"limit": dollars_of(request.overrides), "person": reserved.get("person")}
        with suppress(RunDirError, OSError):  # a full disk; the act is done, and is in this record
            open_run(self.root, run).log_event(EVENT, **said)
        self.add("done", op=op, key=key, run=run, why=why, by=self.grant.by)

    def reserved(self) -> float:
        """Dollars of the account that are reserved or spent."""
        held: dict[tuple[Any, Any], Row] = {}
        for row in self.rows():
            key = row.get("op"), row.get("key")
            if row.get("what") == "reserved":
                held[key] = row
            elif row.get("what") == "freed":
                held.pop(key, None)
            elif row.get("what") in ("begun", "done") and key in held:
                held[key] = {**held[key], "run": row.get("run"), "done": True}
        rows = list(held.values())
        return sum(self._cost(row, rows[number + 1 :]) for number, row in enumerate(rows))

    def _cost(self, row: Row, later: list[Row]) -> float:
        """What a reservation counts: at least all of it, or once its run has ended what the run cost."""
        dollars, price = to_float(row.get("dollars")) or 0.0, to_float(row.get("price")) or 0.0
        if row.get("op") == "evaluate" or not row.get("done"):
            return dollars
        resumed = (each for each in later if each.get("op") == "resume" and each.get("done"))
        after = next((to_float(each.get("before")) for each in resumed if each.get("run") == row.get("run")), None)
        has_ended = after is not None
        if after is None:
            try:
                run = open_run(self.root, str(row.get("run")))
                is_other = row.get("op") == "launch" and run.launch_text("idempotency_key") != row.get("key")
                if is_other or not run.status_file.exists():
                    return dollars
                has_ended, after = run.observed_state().state in END_STATES, _seconds(run)
            except (RunDirError, OSError):
                return dollars
        cost = max(0.0, after - (to_float(row.get("before")) or 0.0)) * price / 3600
        cost = min(cost, 3 * dollars + BEYOND_S * price / 3600)
        return cost if has_ended else max(dollars, cost)
