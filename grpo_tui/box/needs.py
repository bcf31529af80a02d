"""What needs the user, and which runs and evaluations ended between two reports of the box. No Textual."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from grpo_train.history.cost import dollars
from grpo_train.run_dir.display import duration, metric_text, setting, state_label
from grpo_train.run_dir.files import to_float
from grpo_tui.box.asking import monotonic
from grpo_tui.box.events import AlarmRule
from grpo_tui.box.formatting import money, one_line, shortened
from grpo_tui.box.rows import NAME_IN_MESSAGE, CheckpointView, RunRow, command_of, done_notice, failure_title
from grpo_tui.box.run_facts import KnownFacts
from grpo_tui.box.store import Store

ANNOUNCED = 4
ANNOUNCED_S = 10.0
MESSAGE_LENGTH = 400
"""Maximum characters of a run's error in a message."""
End = TypeVar("End")


def end_notice(store: Store, row: RunRow, eval_key: str) -> tuple[str, str, bool]:
    """Title and message that announce the end of a run, and whether it ended badly."""
    glyph, word, tone = state_label(row.state)
    verdict = row.verdict
    if tone != "bad" and verdict is not None and verdict.tone != "good":
        title = f"{verdict.mark} {shortened(row.name, NAME_IN_MESSAGE)} {word}: {verdict.word}"
        return title, verdict.text, verdict.tone == "bad"
    message = one_line(row.error.get("summary") or "")[:MESSAGE_LENGTH] or f"at step {row.step}"
    shown = row.name == store.selected
    if row.state == "finished" and shown and not any(view.evaluations for view in store.checkpoints()):
        message += f"; press {eval_key} to evaluate its checkpoints"
    return f"{glyph} {shortened(row.name, NAME_IN_MESSAGE)} {word}", message, tone == "bad"


class Pace:
    """At most ANNOUNCED messages in ANNOUNCED_S seconds: a box may report the end of 10,000 runs at once."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=ANNOUNCED)

    def first(self, ends: list[End]) -> list[End]:
        """Those to announce now; the list of runs shows the others."""
        now, found = monotonic(), []
        for end in ends:
            if len(self._times) == ANNOUNCED and now - self._times[0] < ANNOUNCED_S:
                break
            self._times.append(now)
            found.append(end)
        return found


def job_done(session: str, run: str) -> tuple[str, str]:
    """Title and message for an evaluation, or a command on backups, that succeeded."""
    if command := command_of(session, run):
        return done_notice(command, run)
    return f"✔ {run} evaluated", "results are next to the checkpoints"


def job_failed(session: str, run: str, code: int) -> str:
    """Title for an evaluation, or a command on backups, that did not succeed."""
    command = command_of(session, run)
    return failure_title(command, run, code) if command else f"✖ evaluation of {run} failed"


class EndWatch:
    """Compares each report with the one before."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._live: set[str] = set()
        self._working: set[str] = set()

    def ended_runs(self) -> list[RunRow]:
        """Runs that were live when last read and are over now. A run that cannot be read now is not over."""
        rows = self._store.runs or []
        ended = [row for row in rows if row.name in self._live and row.is_over]
        self._live = {row.name for row in rows if row.is_live or (row.name in self._live and not row.is_over)}
        return ended

    def ended_jobs(self) -> list[tuple[str, str, int]]:
        """Evaluations and commands on backups that ended since the previous report: session, run, exit status."""
        ended = []
        for session in self._store.sessions:
            name = session["name"]
            run = session.get("run") or name.removeprefix("eval_")
            if not name.startswith("eval_") and not command_of(name, run):
                continue
            if not session.get("dead"):
                self._working.add(name)
            elif name in self._working:
                self._working.discard(name)
                ended.append((name, run, int(session.get("exit_status") or 0)))
        return ended

    def ignore_evaluation(self, session: str) -> None:
        """Do not report the end of this evaluation: the user killed it."""
        self._working.discard(session)


OLDEST_S = 7 * 86_400.0
"""What happened earlier is left out."""
MOST = 100
IDLE_S = 600.0
"""A GPU that is idle for this long needs the user."""
IDLE_PERCENT = 5.0
SUMMARY_LENGTH = 300
GLYPHS = {"bad": "✖", "warn": "▲", "good": "✔"}
TOLD = {
    "diverging": "diverges",
    "suspicious": "looks better than it is",
    "no signal": "hardly learns",
    "flat": "is flat",
}
"""What a run does, for the words of verdicts that do not follow its name."""
NEXT = {
    ("no signal", "all correct"): "try harder problems",
    ("no signal", "all wrong"): "try easier problems",
    ("flat", ""): "try a higher learning rate",
}
"""What helps where no change of the config explains it, by word and way."""
RATE = "optimizer.learning_rate"


@dataclass(frozen=True)
class Need:
    """One entry: what happened, and what to do about it."""

    key: str
    """Names the event: once dismissed, it does not come back."""
    at: float
    """Seconds since the epoch on this machine's clock."""
    tone: str
    """``bad``, ``warn`` or ``good``."""
    run: str
    """"" for a GPU."""
    text: str
    detail: str
    then: str = ""
    """What to do; it stays where the detail is too long."""
    action: str = ""
    """The action that does it, to the run under the cursor."""
    before: int = 0
    """A resume is useful from a checkpoint before this step only; 0 = from any."""
    is_first: bool = False


def dismissed_in(kept: Any) -> set[str]:
    """The keys of dismissed entries, as the app kept them; none where that is damaged."""
    keys = kept.get("dismissed") if isinstance(kept, dict) else None
    return {str(key) for key in keys} if isinstance(keys, list) else set()


class Needs:
    """The entries of one box, newest first."""

    def __init__(self, dismissed: set[str], rules: Sequence[AlarmRule] = (), facts: KnownFacts | None = None) -> None:
        self.dismissed, self._rules, self._facts = dismissed, rules, facts or KnownFacts()
        self._heard: set[str] | None = None
        """Keys of the entries that were there already."""
        self._key: Callable[[str], str] = str
        self._failed: dict[str, float] = {}
        """Key of a failed transfer to the time since when it is known."""
        self.entries: list[Need] = []
        self.asked: dict[str, CheckpointView | None] = {}
        """Key of a failed run's entry to the checkpoint that a resume continues from, or one of step 0 where there is
        none; None while the box is asked."""
        self._judged: dict[str, float] = {}
        """Key of a verdict on a live run to the time since when it is known."""
        self._idle: dict[int, float] = {}
        """GPU to the time since when it is idle."""
        self._made_of: object = None

    def update(self, store: Store, names: Mapping[str, str], key: Callable[[str], str]) -> None:
        """Make the entries anew if anything changed. ``names`` are the short ones; ``key`` is that of an action."""
        self._sample(store)
        minute = int(store.now() // 60)
        idle = tuple(sorted(self._idle.items()))
        made_of = (
            id(store), store.versions["runs"], store.versions["sessions"], idle, minute, len(self.dismissed),
            tuple(self.asked.items()), len(names), self._facts.version, self._logged(store) if self._rules else None,
        )  # fmt: skip
        if made_of == self._made_of or store.runs is None:
            return
        self._made_of = made_of
        alarms = [*self._alarms(store, names), *self._broken_rules(store, names)]
        self._key = key
        found = [*self._ended(store, names), *alarms, *self._gpus(store, key("box"))]
        found += [*self._stalled(store, names), *self._transfers(store, names)]
        found += self._verdicts(store, names)
        since = store.now() - OLDEST_S
        found = [need for need in found if need.at >= since and need.key not in self.dismissed]
        self.entries = sorted(found, key=lambda need: (not need.is_first, -need.at))[:MOST]

    def dismiss(self, key: str) -> None:
        """Remove an entry, until :meth:`bring_back`."""
        self.dismissed.add(key)
        self.entries = [need for need in self.entries if need.key != key]
        self._made_of = None

    def bring_back(self) -> int:
        """Show what was dismissed again; returns how many entries that were."""
        count = len(self.dismissed)
        self.dismissed.clear()
        self._made_of = None
        return count

    def to_ask(self) -> Need | None:
        """A run to resume whose checkpoints are not known yet; it is asked for then."""
        need = next((one for one in self.entries if one.action == "resume" and one.key not in self.asked), None)
        if need is not None:
            self.asked[need.key] = None
        return need

    def answered(self, need: Need, checkpoints: Iterable[CheckpointView]) -> None:
        """The checkpoints of a run: the newest one that a resume is useful from is named."""
        usable = [one for one in checkpoints if one.is_complete and (not need.before or (one.step or 0) < need.before)]
        self.asked[need.key] = max(usable, key=lambda one: one.step or 0, default=CheckpointView(0))

    def _ended(self, store: Store, names: Mapping[str, str]) -> Iterable[Need]:
        for row in store.runs or ():
            if not row.is_over or row.layout != "run":
                continue
            age = store.age(row.updated_at)
            if age is None:
                continue
            key, at, name = f"{row.state} {row.name} {row.started}", store.now() - age, names.get(row.name, row.name)
            if row.state in ("crashed", "lost"):
                why = one_line(str(row.error.get("summary") or ""))[:SUMMARY_LENGTH]
                text = f"{name} crashed at step {row.step}" if row.state == "crashed" else f"{name} is lost"
                yield Need(key, at, "bad", row.name, text, why, self._resumes(key), "resume")
            elif row.reason:
                what = "stopped by itself" if row.state == "stopped" else "finished with failures"
                yield Need(key, at, "warn", row.name, f"{name} {what} at step {row.step}", one_line(row.reason))
            elif row.state == "finished" and row.has_workflow:
                yield Need(key, at, "good", row.name, f"{name} finished its workflow", f"step {row.step}")
            elif row.verdict is not None and row.verdict.tone != "good":
                continue
            elif row.state == "finished" and not _is_evaluated(store, row):
                detail = "its last checkpoint is not evaluated"
                yield Need(key, at, "good", row.name, f"{name} finished", detail, "evaluate it", "eval")

    def _stalled(self, store: Store, names: Mapping[str, str]) -> Iterable[Need]:
        for row in store.live_runs():
            if row.state == "stalled" and (age := store.age(row.updated_at)) is not None:
                key, name = f"stalled {row.name} {row.started} {row.restarts}", names.get(row.name, row.name)
                text = f"{name} is stalled at step {row.step}"
                detail = "no sign of life; its stacks are in console.log"
                yield Need(key, store.now() - age, "bad", row.name, text, detail)

    def _transfers(self, store: Store, names: Mapping[str, str]) -> Iterable[Need]:
        """Failed commands on backups: since when is not known, so they are as new as this program's knowledge."""
        failed: dict[str, float] = {}
        for row in store.runs or ():
            transfer = row.transfer
            if transfer is not None and transfer.phase == "failed":
                key, name = f"transfer {row.name} {transfer.command} {transfer.error}", names.get(row.name, row.name)
                failed[key] = self._failed.get(key, store.now())
                text = f"{transfer.command} of {name} failed"
                yield Need(key, failed[key], "bad", row.name, text, one_line(transfer.error)[:SUMMARY_LENGTH])
        self._failed = failed

    def _resumes(self, key: str, before: int = 0, undone: str = "") -> str:
        checkpoint = self.asked.get(key)
        if checkpoint is None:
            return ""
        if not checkpoint.step:
            return "no checkpoint before it" if before else "no complete checkpoint to resume from"
        held_out = next((f" (held-out {one.figure})" for one in checkpoint.evaluations if one.accuracy), "")
        return f"resume at {checkpoint.step}{undone and f', {undone}'}{held_out}"

    def _verdicts(self, store: Store, names: Mapping[str, str]) -> Iterable[Need]:
        """Runs that train, or have finished, and are not well."""
        judged: dict[str, float] = {}
        for row in store.runs or ():
            verdict = row.verdict
            if verdict is None or verdict.tone == "good" or not (row.is_live or row.state in ("finished", "stopped")):
                continue
            key, name = f"verdict {row.name} {row.started} {verdict.word}", names.get(row.name, row.name)
            age = None if row.is_live else store.age(row.updated_at)
            judged[key] = at = self._judged.get(key, store.now()) if age is None else store.now() - age
            is_bad, undone = verdict.tone == "bad", verdict.undone
            then, action = NEXT.get((verdict.word, verdict.how), ""), ""
            if verdict.word == "suspicious":
                then, action = "read its completions", "rollouts"
            elif is_bad or undone:
                then, action = self._resumes(key, verdict.since, undone), "resume"
            elif verdict.word == "flat" and (rate := self._facts.configs.get(row.name, {}).get(RATE)) is not None:
                then += f" than {setting(rate)}"
            text = f"{name} {TOLD.get(verdict.word, verdict.word)} "
            text += f"at step {verdict.since}: {verdict.change}" if is_bad else f"since step {verdict.since}"
            detail = verdict.cause or (verdict.when if is_bad else verdict.change)
            yield Need(key, at, verdict.tone, row.name, text, detail, then, action, verdict.since, is_bad)
        self._judged = judged

    def next_of(self, run: str) -> str:
        """What to do about a run that is not well, after the key that does it."""
        need = next((one for one in self.entries if one.run == run and one.tone != "good"), None)
        if need is None or not need.then:
            return ""
        return f"{self._key(need.action)}: {need.then}" if need.action else need.then

    def _alarms(self, store: Store, names: Mapping[str, str]) -> Iterable[Need]:
        for row in store.live_runs():
            if row.alarm and (age := store.row_age(row)) is not None:
                name = names.get(row.name, row.name)
                words = "".join(c for c in row.alarm.partition(":")[0] if not (c.isdigit() or c in "<>"))
                key = f"alarm {row.name} {row.started} {words}"
                yield Need(key, store.now() - age, "bad", row.name, f"{name} at step {row.step}", one_line(row.alarm))

    def _logged(self, store: Store) -> object:
        """A value that differs whenever the selected run has logged something."""
        return store.logs.version["train_log"] if store.logs else 0

    def _broken_rules(self, store: Store, names: Mapping[str, str]) -> Iterable[Need]:
        for row in store.live_runs() if self._rules else ():
            logged = store.logs.rows.last if store.logs is not None and row.name == store.selected else None
            for rule in self._rules:
                value = (
                    to_float(logged.fields.get(rule.metric)) if logged else self._facts.metric(row.name, rule.metric)
                )
                if rule.is_broken(value) and (age := store.row_age(row)) is not None:
                    key, name = f"rule {row.name} {row.started} {rule}", names.get(row.name, row.name)
                    detail = f"{rule.metric} {metric_text(rule.metric, value)}: {rule.words}"
                    yield Need(key, store.now() - age, "bad", row.name, f"{name} at step {row.step}", detail)

    def new_entries(self) -> list[Need]:
        """Entries that were not there at the last call, newest first; those of the first list are known."""
        heard, self._heard = self._heard, (self._heard or set()) | {need.key for need in self.entries}
        return [] if heard is None else [need for need in self.entries if need.key not in heard]

    def _sample(self, store: Store) -> None:
        """Note since when each GPU is idle: free, and nearly without use."""
        now, seen = store.gpu_at, set()
        for gpu in store.gpus or ():
            index, use = gpu.get("index"), gpu.get("utilization_percent")
            if not isinstance(index, (int, float)):
                continue
            if use is not None and use < IDLE_PERCENT and gpu.get("free"):
                seen.add(int(index))
                self._idle.setdefault(int(index), now)
        self._idle = {index: at for index, at in self._idle.items() if index in seen}

    def _gpus(self, store: Store, box: str) -> Iterable[Need]:
        count = len(store.gpus or ())
        for index, at in self._idle.items():
            idle = store.gpu_at - at
            if idle < IDLE_S:
                continue
            price = store.price_per_hour
            share = "" if price is None else f"{money(dollars(price / count, idle))} at this price"
            text, then = f"GPU {index} idle for {duration(idle)}", f"{box} shows what to do"
            yield Need(f"gpu {index} {at:.0f}", at + IDLE_S, "warn", "", text, share, then)


def _is_evaluated(store: Store, row: RunRow) -> bool:
    """Whether the last checkpoint of a finished run is evaluated, or being evaluated."""
    return bool(store.evaluation_sessions(row.name)) or (row.held_out is not None and row.held_out.step >= row.step)
