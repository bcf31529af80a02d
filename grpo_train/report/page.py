"""A report laid out: which sections, in which order, in which words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from grpo_train.config.schema import Config
from grpo_train.report import curves
from grpo_train.report.blocks import (
    Block,
    ChartBlock,
    ChartsBlock,
    CompletionBlock,
    FactsBlock,
    FoldedBlock,
    Name,
    NoteBlock,
    Page,
    Point,
    PointsBlock,
    SectionBlock,
    TableBlock,
)
from grpo_train.report.curves import Curve
from grpo_train.report.evaluations import EvaluatedStep, Evaluation, PairedSteps
from grpo_train.report.report import Report, RunReport, differences, flat, overview
from grpo_train.report.samples import PickedSample
from grpo_train.report.text import number_text, shorten, shorten_start
from grpo_train.report.train_log import Metric
from grpo_train.run_dir.curves import RAW
from grpo_train.run_dir.display import (
    EVENT_WORDS,
    fraction,
    metric_text,
    metric_value,
    percent,
    setting,
    signed,
    state_label,
)
from grpo_train.run_dir.files import to_float
from grpo_train.run_dir.verdict import alarm_of

COLUMNS = 240
"""Of a curve of one run; those of several runs share twice as many."""
MIN_COLUMNS = 80
RECENT = 10
"""Steps whose mean reward is a result of a run."""
PROMPT_LIMIT = 4_000
COMPLETION_LIMIT = 12_000
"""Characters."""
MAX_CHARTS = 120
"""Further metrics are in no chart; a run logs about 50."""
MAX_POINTS = 300
"""Evaluated steps of a run on a dataset; of more, the last ones."""
LEVELS = {"bad": "alarm", "warn": "warning", "good": ""}
"""Of a note, by the tone of a verdict."""


def lay_out(report: Report) -> Page:
    """The page of a report."""
    one = report.runs[0]
    blocks = [
        *_head(report),
        SectionBlock("Curves", [*_curves(report)]),
        SectionBlock("Held-out evaluations", [*_evaluations(report)]),
        SectionBlock("Health", [block for run in report.runs for block in _of_run(run, _health(run))]),
        SectionBlock("Completions", [block for run in report.runs for block in _of_run(run, _completions(run))]),
        SectionBlock("Configuration", [*_configuration(report)]),
        SectionBlock("Versions and hardware", [_versions(report)]),
    ]
    several = f"{len(report.runs)} runs, {one.letter} is the reference"
    return Page(
        title="Comparison of " + " and ".join(run.name for run in report.runs) if len(report.runs) == 2
        else "Comparison of runs" if report.is_comparison else one.name,
        subtitle=several if report.is_comparison else _state(one),
        blocks=blocks,
        footer=f"Made by {report.made_by} at {report.made_at}.",
    )  # fmt: skip


def _of_run(run: RunReport, blocks: Iterator[Block]) -> list[Block]:
    """The blocks of a run, under its name in a comparison."""
    return [SectionBlock(_label(run), [*blocks], level=3)] if run.letter else [*blocks]


def _label(run: RunReport) -> str:
    return f"{run.letter} {run.name}"


def _state(run: RunReport) -> str:
    alarm = alarm_of(run.verdict)
    glyph, word, _ = state_label(str(run.summary["state"]), str(run.summary.get("host") or ""), alarm)
    return f"{glyph} {word}"


def _head(report: Report) -> Iterator[Block]:
    if report.is_comparison:
        facts = [dict([("State", _state(run)), *overview(run, report.price)]) for run in report.runs]
        labels = list(dict.fromkeys(label for each in facts for label in each))
        rows = [[label, *(Name(each.get(label, "–")) for each in facts)] for label in labels]
        yield TableBlock(["", *(_label(run) for run in report.runs)], rows)
    else:
        yield FactsBlock([*_results(report.runs[0]), *overview(report.runs[0], report.price)])
    for run in report.runs:
        where = f"{_label(run)}: " if run.letter else ""
        if run.verdict is not None:
            level = LEVELS[run.verdict.tone]  # has a sign of its own
            mark = "" if level else f"{run.verdict.mark} "
            yield NoteBlock(f"{where}{mark}{run.verdict.word}: {run.verdict.text}", level)
        error = (run.summary.get("error") or {}).get("summary")
        if error and run.summary["state"] != "unreadable":
            yield NoteBlock(f"{where}{error}", "alarm")
        for problem in run.problems:
            yield NoteBlock(f"{where}not readable: {problem}", "alarm")
        if run.log.damaged:
            yield NoteBlock(f"{where}{_count(run.log.damaged, 'damaged row')} of train_log.jsonl left out", "warning")
        if run.log.superseded:
            yield NoteBlock(f"{where}{_count(run.log.superseded, 'row')} left out: a resume replaced their steps")


def _results(run: RunReport) -> Iterator[tuple[str, str]]:
    """Reward and held-out accuracy of a run."""
    if metric := run.log.metrics.get("reward"):
        recent = metric.values[np.isfinite(metric.values)][-RECENT:]
        if len(recent):
            yield f"Reward, mean of the last {_count(len(recent), 'step')}", metric_value(float(recent.mean()))
    for evaluation in run.evaluations:
        complete = [step for step in evaluation.steps if step.is_complete]
        if complete:
            yield f"Held-out accuracy, {evaluation.dataset}", f"{_accuracy(complete[-1])} at {complete[-1].name}"


def _accuracy(step: EvaluatedStep) -> str:
    return fraction(step.numbers["accuracy"])


# ------------------------------------------------------------------------------------------------------------ curves


def _curve(run: RunReport, name: str, width: int, bounds: tuple[int, int]) -> Curve | None:
    """A metric between two steps; None where the run has no finite value of it."""
    metric = run.log.metrics.get(name)
    if metric is None:
        return None
    curve = curves.reduce(metric, *bounds, width, RAW)
    return curve if len(curve.mean) or len(curve.gaps) else None


def _curves(report: Report) -> Iterator[Block]:
    logged = [run for run in report.runs if run.log.rows]
    if not logged:
        yield NoteBlock("No step has been logged.")
        return
    bounds = min(run.log.first_step for run in logged), max(run.log.last_step for run in logged)
    width = COLUMNS if not report.is_comparison else max(MIN_COLUMNS, 2 * COLUMNS // len(report.runs))
    events = [event for run in report.runs for event in run.events]
    names: dict[str, Metric] = {}
    for run in report.runs:
        for name, metric in run.log.metrics.items():
            if name not in names or names[name].is_constant:
                names[name] = metric
    main, groups, constant = curves.grouped(names)
    if report.is_comparison:  # constant in each run, but not the same
        values = {
            m.name: {run.log.metrics[m.name].last for run in logged if m.name in run.log.metrics} for m in constant
        }
        constant = [metric for metric in constant if len(values[metric.name]) == 1]

    def chart(metric: Metric) -> ChartBlock:
        found = [(run.letter, _curve(run, metric.name, width, bounds)) for run in report.runs]
        return ChartBlock(metric.name, [(letter, curve) for letter, curve in found if curve], *bounds, events)

    charts = [chart(metric) for metric in main]
    if over := sorted({curve.over for each in charts for _, curve in each.curves if curve.over}):
        means = f"Lines are means of {' or '.join(f'{count:,}' for count in over)} values around each place"
        yield NoteBlock(f"{means}." if report.is_comparison else f"{means}; the band behind them holds all values.")
    yield ChartsBlock(charts)
    if events:
        seen = [f"{sign} {word}" for sign, word in EVENT_WORDS.items() if any(sign == one.sign for one in events)]
        yield NoteBlock(
            f"Above the charts{', after the letter of the run' if events[0].run else ''}: {', '.join(seen)}."
        )
    left, more = MAX_CHARTS, []
    for title, metrics in groups.items():
        if metrics[:left]:
            more.append(SectionBlock(title, [ChartsBlock([chart(metric) for metric in metrics[:left]])], level=3))
        left = max(0, left - len(metrics))
    if more:
        yield FoldedBlock(f"{_count(sum(map(len, groups.values())), 'more metric')}: {', '.join(groups)}", [*more])
    if left_out := max(0, sum(map(len, groups.values())) - MAX_CHARTS):
        yield NoteBlock(f"{_count(left_out, 'metric')} without a chart: a report has {MAX_CHARTS} at most")
    if constant:
        constant = sorted(constant, key=lambda m: m.name)
        rows = [[Name(metric.name), metric_text(metric.name, metric.last)] for metric in constant]
        yield FoldedBlock(
            f"{_count(len(rows), 'constant metric')}", [TableBlock(["metric", "value"], rows, frozenset({1}))]
        )


# ------------------------------------------------------------------------------------------------------- evaluations


def _evaluations(report: Report) -> Iterator[Block]:
    by_dataset: dict[str, list[tuple[RunReport, Evaluation]]] = {}
    for run in report.runs:
        for evaluation in run.evaluations:
            by_dataset.setdefault(evaluation.dataset, []).append((run, evaluation))
    if not by_dataset:
        yield NoteBlock("No checkpoint has been evaluated (grpo-train eval).")
    for dataset, found in by_dataset.items():
        blocks: list[Block] = []
        series = [
            (run.letter, [Point(each.step, *(each.numbers[k] for k in ("accuracy", "ci_low", "ci_high")))
                          for each in evaluation.steps if each.is_complete][-MAX_POINTS:])
            for run, evaluation in found
        ]  # fmt: skip
        steps = [point.step for _, points in series for point in points]
        if len(set(steps)) > 1:
            blocks.append(PointsBlock(f"accuracy, {dataset}", series, min(steps), max(steps)))
        rows = [
            [*([run.letter] if run.letter else []), *cells]
            for run, evaluation in found
            for cells in map(_evaluated, evaluation.steps[-MAX_POINTS:])
        ]
        baselines = [each for each in report.baselines if each.dataset == dataset]
        rows += [
            [*(["–"] if report.is_comparison else []), *cells]
            for baseline in baselines
            for cells in map(_evaluated, baseline.steps)
        ]
        head = ["step", "accuracy", "95 % interval", "problems", "format", "truncated", "mean length"]
        if report.is_comparison:
            head.insert(0, "run")
        blocks.append(TableBlock(head, rows, frozenset(range(len(head)))))
        settings = {evaluation.settings for _, evaluation in found if evaluation.settings}
        if settings:
            blocks.append(NoteBlock(f"Settings: {'; '.join(sorted(settings))}."))
        for baseline in baselines:
            blocks.append(NoteBlock(f"{baseline.steps[0].name}: {baseline.model}, evaluated without a run."))
        pairs = [
            pair for pair in [*report.pairs, *(p for run in report.runs for p in run.pairs)] if pair.dataset == dataset
        ]
        blocks += _pairs(pairs[-MAX_POINTS:])
        yield SectionBlock(dataset, blocks, level=3)


def _evaluated(step: EvaluatedStep) -> list[str]:
    numbers = step.numbers
    if not step.is_complete:
        return [step.name, step.status, *[""] * 5]
    interval = f"[{fraction(numbers['ci_low'])}, {fraction(numbers['ci_high'])}]"
    shares = (percent(numbers[key], decimals=1) if key in numbers else "–" for key in ("format_rate", "truncated_rate"))
    problems, length = number_text(numbers.get("n")), number_text(numbers.get("mean_length"))
    return [step.name, _accuracy(step), interval, problems, *shares, length]


def _pairs(pairs: Sequence[PairedSteps]) -> Iterator[Block]:
    """Comparisons problem by problem."""
    if not pairs:
        return
    rows = []
    for pair in pairs:
        if (found := pair.result) is None:
            rows.append([pair.name, pair.reference, pair.problem, *[""] * 4])
            continue
        interval = f"[{signed(found.low, fraction)}, {signed(found.high, fraction)}]"
        clear = "" if found.low <= 0 <= found.high else " ≠"
        rows.append(
            [
                pair.name, pair.reference, f"{signed(found.difference, fraction)}{clear}", interval,
                f"+{found.gained} -{found.lost}", str(found.n), f"{found.p_value:.3g}",
            ]
        )  # fmt: skip
    head = ["step", "against", "difference", "95 % interval", "problems gained, lost", "of", "p (McNemar)"]
    yield TableBlock(head, rows, frozenset(range(2, 7)))
    yield NoteBlock("Compared problem by problem. ≠: zero is outside the interval.")


# --------------------------------------------------------------------------------------------- health and completions


def _health(run: RunReport) -> Iterator[Block]:
    conditions = run.log.conditions
    if not conditions:
        yield NoteBlock("Warnings in the log: none." if run.log.rows else "No step has been logged.")
        return
    rows = [
        [
            {"alarm": "✖ alarm", "warning": "▲ warning"}.get(each.level, each.level),
            f"{percent(each.steps / max(run.log.rows, 1), decimals=1)} of steps",
            f"steps {each.first:,}–{each.last:,}" if each.first != each.last else f"step {each.first:,}",
            each.message,
        ]
        for each in conditions
    ]
    yield TableBlock(["level", "share", "from–to", "latest message"], rows, frozenset({1, 2}), prose=True)


def _completions(run: RunReport) -> Iterator[Block]:
    if not run.samples:
        yield NoteBlock("No completion has been logged.")
    for samples in run.samples:
        if not samples.rows:
            yield NoteBlock(f"{samples.title}: its completions are not in rollouts.jsonl.")
            continue
        yield SectionBlock(
            samples.title, [_completion(sample) for sample in samples.rows], level=4 if run.letter else 3
        )


def _completion(sample: PickedSample) -> CompletionBlock:
    row = sample.row
    facts = [f"step {sample.step:,}"]
    for key, label in (("reward", "reward"), ("advantage", "advantage"), ("length", "tokens")):
        if (value := to_float(row.get(key))) is not None:
            facts.append(f"{label} {number_text(value) if key == 'length' else metric_value(value)}")
    facts += [f"{key} {str(row[key])[:200]}" for key in ("reason", "answer", "gold") if row.get(key) not in (None, "")]
    prompt, completion = (str(row.get(key) or "") for key in ("prompt", "completion"))
    return CompletionBlock(
        ", ".join(sample.why),
        " · ".join(facts),
        shorten_start(prompt, PROMPT_LIMIT),
        shorten(completion, COMPLETION_LIMIT),
    )


# ---------------------------------------------------------------------------------------- configuration and versions


def _configuration(report: Report) -> Iterator[Block]:
    defaults = flat(Config())
    if not any(run.config for run in report.runs):
        yield NoteBlock("No config can be read.")
    elif report.is_comparison:
        different = differences(report.runs)
        rows = [_settings(key, *values) for key, values in different.items()]
        if rows:
            yield TableBlock(["key", *(run.letter for run in report.runs)], rows)
        same = [_settings(*item) for item in report.runs[0].config.items() if item[0] not in different]
        yield FoldedBlock(f"{len(same)} keys are the same", [TableBlock(["key", "value"], same)])
    else:
        config = report.runs[0].config
        changed = [_settings(k, v, defaults.get(k)) for k, v in config.items() if v != defaults.get(k)]
        if changed:
            yield TableBlock(["key", "value", "default"], changed)
        if report.runs[0].changes:
            changes = [[f"{c.step:,}", *_settings(c.key, c.before, c.after)] for c in report.runs[0].changes]
            yield TableBlock(["changed after step", "key", "before", "after"], changes, frozenset({0}))
        same = [_settings(k, v) for k, v in config.items() if v == defaults.get(k)]
        yield FoldedBlock(f"{len(same)} keys have their default", [TableBlock(["key", "value"], same)])


def _settings(key: str, *values: str | None) -> list[str]:
    """A row of a table: a key of the config, and values of it."""
    return [Name(key), *(Name(setting(value)) for value in values)]


def _versions(report: Report) -> Block:
    if not report.is_comparison:
        return FactsBlock(report.runs[0].facts)
    facts = [dict(run.facts) for run in report.runs]
    labels = list(dict.fromkeys(label for each in facts for label in each))
    rows: list[list[str]] = [[label, *(Name(each.get(label, "–")) for each in facts)] for label in labels]
    return TableBlock(["", *(run.letter for run in report.runs)], rows)


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
