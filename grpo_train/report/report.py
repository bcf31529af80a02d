"""What a report says about each run, and how the runs differ. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.config import ConfigError, load_config
from grpo_train.config.schema import Config
from grpo_train.history.cost import dollars
from grpo_train.report.evaluations import (
    Evaluation,
    PairedSteps,
    baselines_of,
    evaluations_of,
    pairs_between,
    pairs_within,
)
from grpo_train.report.samples import Samples, pick_samples
from grpo_train.report.train_log import TrainLog, read_train_log
from grpo_train.run_dir import RunDir, RunDirError, open_run
from grpo_train.run_dir.display import AGENT, CHANGE, CRASH, LEVEL, RESUME, STOP, duration, money, setting
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.evaluations import list_evaluations
from grpo_train.run_dir.files import last_jsonl, read_json, to_float, to_json, utc_now
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, read_bytes
from grpo_train.run_dir.verdict import RunVerdict
from grpo_train.run_dir.verdict_rules import Evidence, held_out, judge
from grpo_train.run_dir.version import VERSION

LETTERS = "ABCDEFGHIJKL"
"""One for each run of a comparison."""
MARKED_EVENTS = {
    "resumed": RESUME, "stop_asked": STOP, "crashed": CRASH, "killed": CRASH, "level_raised": LEVEL,
    "by_assistant": AGENT,
}  # fmt: skip
"""Signs of the events on a chart's axis; a resume that changed more than the number of steps is a CHANGE."""
LEARNING_RATE, TOTAL = "optimizer.learning_rate", "run.total_steps"
MAX_EVENTS = 30
MAX_CHANGES = 200


@dataclass(frozen=True)
class Event:
    """Something that happened to a run."""

    step: int
    sign: str
    run: str
    """Letter of the run; "" for one run alone."""


@dataclass(frozen=True)
class ConfigChange:
    """A key of the config that a resume changed."""

    step: int
    key: str
    before: str
    after: str


@dataclass(frozen=True)
class RunReport:
    """One run."""

    letter: str
    """Of a comparison; "" for one run alone."""
    name: str
    summary: dict[str, Any]
    """As in a list of runs."""
    log: TrainLog
    config: dict[str, str]
    """``section.key`` to its value as JSON; {} if the config cannot be read."""
    problems: list[str]
    """Files that could not be read, with the reason."""
    evaluations: list[Evaluation]
    pairs: list[PairedSteps]
    """Each evaluated step against the first."""
    samples: list[Samples]
    events: list[Event]
    changes: list[ConfigChange]
    facts: list[tuple[str, str]]
    """Versions and hardware: label and value."""
    seconds: float | None
    """Run time, over all its starts."""
    cost: float | None
    """In dollars; None without a price or a run time."""
    verdict: RunVerdict | None = None


@dataclass(frozen=True)
class Report:
    """A report of one run, or of several compared."""

    runs: list[RunReport]
    pairs: list[PairedSteps]
    """Evaluations of the other runs against those of the first, then the last step of each run against baselines."""
    made_at: str
    made_by: str
    price: float | None
    """Dollars per hour."""
    baselines: list[Evaluation]
    """Models evaluated without a run, under the settings of the runs."""

    @property
    def is_comparison(self) -> bool:
        return len(self.runs) > 1

    @property
    def title(self) -> str:
        return " · ".join(run.name for run in self.runs)

    @property
    def problems(self) -> list[str]:
        """What could not be read, as the page says it, too."""
        pairs = [*self.pairs, *(pair for run in self.runs for pair in run.pairs)]
        of_runs = [f"{run.name}: {problem}" for run in self.runs for problem in run.problems]
        return [*of_runs, *(f"{pair.dataset}, {pair.name}: {pair.problem}" for pair in pairs if pair.problem)]


def make_report(root: Path, names: Sequence[str], price: float | None = None) -> Report:
    """Collect the report of some runs, by name or path.

    Raises RunDirError for a run that does not exist or cannot be read, and for more runs than there are letters.
    """
    runs = list(dict.fromkeys(open_run(root, name) for name in names))
    if len(runs) > len(LETTERS):
        raise RunDirError(f"{len(runs)} runs: a report compares at most {len(LETTERS)}")
    letters = LETTERS if len(runs) > 1 else [""]
    found = [_report_of(run, letter, price) for run, letter in zip(runs, letters, strict=False)]
    evaluations = [(run.letter, run.evaluations) for run in found]
    baselines, pairs = baselines_of(root, evaluations)
    pairs = [*(pairs_between(evaluations) if len(found) > 1 else []), *pairs]
    return Report(found, pairs, utc_now()[:19] + "Z", f"grpo-train {VERSION}", price, baselines)


def _report_of(run: RunDir, letter: str, price: float | None) -> RunReport:
    summary = run.summary()
    problems: list[str] = []
    if summary["state"] == "unreadable":
        problems.append(str((summary.get("error") or {}).get("summary", "")))
    log, config, samples = TrainLog(), {}, []
    try:
        log = read_train_log(run)
        samples = pick_samples(run, log.last_step, log.step_of_highest("grad_norm"))
    except PermissionError as error:  # another account's
        raise RunDirError(f"{run.name}: {error.filename} cannot be read by this account", code="not_ours") from error
    except (UserError, OSError) as error:
        problems.append(str(error))
    try:
        config = config_texts(run)
    except (UserError, OSError) as error:
        problems.append(f"config.yaml: {error}")
    evaluations = evaluations_of(run)
    seconds = to_float(summary.get("run_seconds"))
    return RunReport(
        letter=letter,
        name=run.name,
        summary=summary,
        log=log,
        config=config,
        problems=problems,
        evaluations=evaluations,
        pairs=[] if letter else [pair for evaluation in evaluations for pair in pairs_within(evaluation)],
        samples=samples,
        events=_events(run, letter),
        changes=_changes(run),
        facts=_facts(run, summary),
        seconds=seconds,
        cost=dollars(price, seconds) if price is not None and seconds is not None else None,
        verdict=_verdict(run, log, summary),
    )


def _verdict(run: RunDir, log: TrainLog, summary: dict[str, Any]) -> RunVerdict | None:
    """As :func:`grpo_train.run_dir.verdict_rules.verdict_of`, from a log that was read already."""
    reward = log.metrics.get("reward")
    if reward is None:
        return None
    steps = [int(step) for step in reward.steps]

    def column(name: str) -> list[float]:
        metric = log.metrics.get(name)
        found = {} if metric is None else dict(zip(metric.steps.tolist(), metric.values.tolist(), strict=True))
        return [found.get(step, math.nan) for step in steps]

    try:
        evaluations = held_out(list_evaluations(run.root, run.name))
        events = [event for _, event in run.events()]
    except OSError:
        return None  # the problems name the file
    total = summary.get("total_steps")
    return judge(Evidence(steps, column, evaluations, events, summary["state"] == "finished", int(total or 0)))


def config_texts(run: RunDir) -> dict[str, str]:
    """A run's config as ``section.key`` to its value; {} if it has none. Raises ConfigError, Unreadable, OSError."""
    data = read_bytes(run.config_file, MAX_RUN_FILE_BYTES)
    if data is None:
        return {}
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text ({error.reason} at byte {error.start})") from error
    return flat(load_config(text, source=run.name))


def flat(config: Config) -> dict[str, str]:
    """``section.key`` to its value: texts as they are, everything else as JSON."""
    sections = config.model_dump(mode="json")
    return {
        f"{section}.{key}": value if isinstance(value, str) else to_json(value)
        for section, keys in sections.items()
        for key, value in keys.items()
    }


def differences(runs: Sequence[RunReport]) -> dict[str, list[str | None]]:
    """Keys whose values differ between runs, with the value in each; None where a run lacks it."""
    configs = [run.config | _resumed_with(run) for run in runs]
    keys = dict.fromkeys(key for run in runs for key in run.config)
    values = {key: [config.get(key) for config in configs] for key in keys}
    return {key: each for key, each in values.items() if len(set(each)) > 1}


def _resumed_with(run: RunReport) -> dict[str, str]:
    """All values of each key that a resume changed: ``1e-4→2e-3``."""
    values: dict[str, list[str]] = {}
    for change in run.changes:
        values.setdefault(change.key, [change.before]).append(change.after)
    return {key: "→".join(map(setting, found)) for key, found in values.items()}


def _learning_rate(run: RunReport) -> str:
    """``1e-4``; ``1e-4, 2e-3 from step 40`` where a resume changed it."""
    changes = [change for change in run.changes if change.key == LEARNING_RATE]
    first = changes[0].before if changes else run.config[LEARNING_RATE]
    return ", ".join([setting(first), *(f"{setting(each.after)} from step {each.step:,}" for each in changes)])


def said_cost(run: RunReport, price: float | None) -> str | None:
    """The cost in words; None without one."""
    return None if run.cost is None or price is None else f"{money(run.cost)} (at {money(price)}/h)"


def overview(run: RunReport, price: float | None) -> list[tuple[str, str]]:
    """The first facts of a run: label and value."""
    summary, config = run.summary, run.config
    total = summary.get("total_steps")
    found = [("Step", f"{run.log.last_step:,}" + (f" of {total:,}" if total else ""))]
    if config:
        adapter = config["model.adapter"]
        adapter = f"LoRA r={config['model.lora_rank']}" if adapter == "lora" else "full weights"
        found += [
            ("Task", config["task.name"]),
            ("Model", f"{config['model.backbone']} ({adapter})"),
            ("Batch", f"{config['rollout.buffer_size']} prompts × {config['rollout.num_generations']}"),
            ("Learning rate", _learning_rate(run)),
            ("Seed", config["run.seed"]),
        ]
    found.append(("Launched", str(summary.get("launched_at") or "–")[:19].replace("T", " ")))
    if run.seconds is not None:
        found.append(("Run time", duration(run.seconds)))
    if (cost := said_cost(run, price)) is not None:
        found.append(("Cost", cost))
    return found


def _events(run: RunDir, letter: str) -> list[Event]:
    found = []
    for _, row in run.events():
        step, name = to_float(row.get("step")), row.get("event")
        if isinstance(name, str) and name in MARKED_EVENTS and step is not None and 0 <= step < 1e12:
            from_step = to_float(row.get("from_step"))
            at = from_step if name == "resumed" and from_step is not None and 0 <= from_step < 1e12 else step
            changes = row.get("changes")
            is_change = name == "resumed" and isinstance(changes, dict) and bool(changes.keys() - {TOTAL})
            found.append(Event(int(at), CHANGE if is_change else MARKED_EVENTS[name], letter))
    return found[-MAX_EVENTS:]


def _changes(run: RunDir) -> list[ConfigChange]:
    found = []
    for _, row in run.events():
        changes, step = row.get("changes"), to_float(row.get("step"))
        if row.get("event") != "resumed" or not isinstance(changes, dict) or step is None or not 0 <= step < 1e12:
            continue
        for key, pair in changes.items():
            if isinstance(pair, list) and len(pair) == 2:
                before, after = (value if isinstance(value, str) else to_json(value) for value in pair)
                found.append(ConfigChange(int(step), key[:255], before[:1000], after[:1000]))
    return found[-MAX_CHANGES:]


def _facts(run: RunDir, summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Versions and hardware."""
    info: dict[str, Any] = {}
    if newest := run.newest_checkpoint():
        info = read_json(newest.path / "training_info.json") or {}
    status = run.read_status() or {}
    versions, base = info.get("versions"), info.get("base_model")
    found = [("grpo-train", status.get("version"))]
    if isinstance(versions, dict):
        found += [(str(name)[:40], value) for name, value in list(versions.items())[:20]]
    if isinstance(base, dict):
        found += [("Start model", base.get("name")), ("SHA-256 of its weights", base.get("weights_sha256"))]
    found += [
        ("Device", summary.get("device")),
        ("GPU", _gpu(run)),
        ("Processes", summary.get("nproc")),
        ("Threads", status.get("threads")),
        ("Restarts", summary.get("restarts") or None),
    ]
    return [(label, str(value)[:255]) for label, value in found if value is not None]


def _gpu(run: RunDir) -> str | None:
    """Name and memory of a GPU of the box."""
    row = last_jsonl(run.logs / "gpu.jsonl") or {}
    name = row.get("name")
    if not isinstance(name, str):
        return None
    memory = to_float(row.get("memory_total_mib"))
    return name + (f", {memory / 1024:,.0f} GiB" if memory and memory < 1e9 else "")
