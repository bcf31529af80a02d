"""The tables of the compare view: configuration, evaluations, and where the runs are at the same step or cost.

A table has a column per run. One that is too wide keeps the key and the pinned run in place, and shows the other runs
from about the current one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text
from textual.content import Content

from grpo_train.run_dir.display import signed
from grpo_tui.box.charts import RUN_LOOKS
from grpo_tui.box.formatting import GAP, Sized, compact_number, counted, fraction, metric_value, one_line
from grpo_tui.box.run_columns import column
from grpo_tui.box.store import NO_PRICE, Store
from grpo_tui.kit.lists import LinesPanel, PageSource, Palette, row_text
from grpo_tui.kit.panel import link_age, toned
from grpo_tui.kit.sources import wrapped
from grpo_tui.views.compare.chart import letters
from grpo_tui.views.compare.model import CHANGED, Accuracy, Compared, Comparison, PairedResults, differ, differing
from grpo_tui.views.compare.standing import goal, mean_of, table

SCALES_NAMED = 2
"""Keys that are named where rewards cannot be ranked."""
WHOLE = 10_000
"""Cells in which every table fits."""


class ComparePanel(LinesPanel):
    """A table, or several as tabs. Left and right belong to the crosshair."""

    def action_browse(self, by: int) -> None:
        self.call_later(self.run_action, f"screen.move_crosshair({by})")

    def text(self) -> str:
        """The table with all of its columns."""
        first, end = self.source.bounds(WHOLE)
        return "\n".join(self.source.line(index, WHOLE, self.palette).plain.rstrip() for index in range(first, end))

    def age(self) -> Content:
        """These are several runs, over or not: only a lost link says that a table may be old."""
        return toned(link_age(self.store))

    @property
    def palette(self) -> Palette:
        colors = self.app.theme_variables
        names = {f"run-{look.id}": colors.get(f"run-{look.id}", "default") for look in RUN_LOOKS}
        return Palette({**super().palette, **names})


class CompareSource(PageSource):
    """A table of the compared runs."""

    def __init__(self, store: Store, comparison: Comparison) -> None:
        super().__init__(store)
        self.comparison = comparison

    @property
    def empty(self) -> str:
        waiting = [run for run in self.comparison.runs if run.facts is None]
        if not self.store.connected or not waiting:
            return ""
        failed = [run for run in waiting if run.asking.problem]
        return (failed or waiting)[0].asking.instead()

    def header(self, first: str, palette: Palette) -> list[Text]:
        """The first column and the letters of the runs."""
        names = [self.letter(run, palette) for run in self.comparison.runs]
        return [Text(first, style=palette["muted"]), *names]

    def grid(
        self,
        rows: Sequence[Sequence[Text]],
        width: int,
        palette: Palette,
        groups: Sequence[Sequence[int]] = (),
        best: int | None = None,
    ) -> list[Text]:
        """Lines of a table whose first row is its header; ``best`` is the place of a run that is always shown."""
        places = {run.name: place for place, run in enumerate(self.comparison.runs)}
        pinned, current = (places.get(name, 0) for name in (self.comparison.pinned, self.comparison.current))
        return run_table(rows, width, palette, pinned, current, groups, best)

    @staticmethod
    def letter(run: Compared, palette: Palette) -> Text:
        return Text(run.letter, style=f"bold {palette[f'run-{run.look.id}']}")


class StandingSource(CompareSource):
    """The mean reward of each run at the same step, tokens, GPU time and cost; how it ended."""

    title, tab = "reward at the same step, tokens, time and cost", "at the same"

    @property
    def note(self) -> str:
        waiting = [run for run in self.comparison.runs if run.curves.track is None and run.curves.is_coarse]
        if waiting and any(run.curves.curves for run in waiting):
            return f"[$warning]waiting for {letters(waiting)}: coarse[/]"
        over = mean_of([run.curves.track for run in self.comparison.runs])
        mean = f"[$text-muted]rewards: means of {counted(over, 'step')}[/]"
        names = [column(key).title.replace("[", r"\[") for key in self.comparison.scales()]
        if not names:
            return mean
        more = ", …" if len(names) > SCALES_NAMED else ""
        verb = "differs" if len(names) == 1 else "differ"
        return f"[$warning]no ★: {', '.join(names[:SCALES_NAMED])}{more} {verb}[/] · {mean}"

    def state(self) -> object:
        facts = tuple(id(run.facts) for run in self.comparison.runs)
        return (facts, self.comparison.version, self.store.versions["runs"], self.store.connected)

    def layout(self, width: int, palette: Palette) -> list[Text]:
        runs = self.comparison.runs
        tracks = [run.curves.track for run in runs]
        if not runs:
            return []
        shares = [run.row.nproc or 1 if run.row is not None else 1 for run in runs]
        devices = {run.row.device for run in runs if run.row is not None}
        unit = "CPU" if devices == {"CPU"} else "GPU"
        rows, leader, is_ranked = [], None, not self.comparison.scales()
        for line in table(tracks, shares, self.store.price_per_hour, unit):
            best = _only([value for value in line.values if value is not None], max) if is_ranked else None
            cells = [self._value(value, value == best, palette) for value in line.values]
            if leader is None and best is not None:
                leader = line.values.index(best)
            rows.append([Text(line.label), *cells])
        if (reward := goal(tracks)) is not None:
            over = mean_of(tracks)
            steps = [track.reaches(reward, over) if track is not None else None for track in tracks]
            first = _only([step for step in steps if step is not None], min) if is_ranked else None
            cells = [Text("–") if at is None else self._count(at, at == first, palette) for at in steps]
            rows.append([Text(f"first step at {compact_number(reward)}"), *cells])
        rows.append([Text("now" if any(run.row and run.row.is_live for run in runs) else "final")])
        rows[-1] += [self._state(run, palette) for run in runs]
        lines = self.grid([self.header("", palette), *rows], width, palette, best=leader)
        if self.store.price_per_hour is None:
            lines.append(Text(NO_PRICE, style=palette["muted"]))
        return [*lines, *self._errors(width, palette)]

    @staticmethod
    def _value(value: float | None, is_best: bool, palette: Palette) -> Text:
        style = f"bold {palette['good']}" if is_best else ""
        return Text("–") if value is None else Text(metric_value(value) + (" ★" if is_best else ""), style=style)

    @staticmethod
    def _count(steps: float, is_first: bool, palette: Palette) -> Text:
        style = f"bold {palette['good']}" if is_first else ""
        return Text(f"{steps:,.0f}" + (" ★" if is_first else ""), style=style)

    @staticmethod
    def _state(run: Compared, palette: Palette) -> Text:
        if run.row is None:
            return Text("–")
        glyph, word, tone = run.row.label
        if tone != "bad" and (verdict := run.row.verdict) is not None and verdict.tone != "good":
            return Text(f"{verdict.mark} {verdict.word}", style=palette[verdict.tone])
        return Text(f"{glyph} {word}", style=palette[tone] if tone in ("good", "bad", "warn") else "")

    def _errors(self, width: int, palette: Palette) -> list[Text]:
        """Why a run failed, in full."""
        lines = []
        for run in self.comparison.runs:
            if run.row is not None and run.row.error:
                text = Text.assemble(self.letter(run, palette), " ", one_line(str(run.row.error.get("summary", ""))))
                lines += wrapped(text, width)
        return lines


class ConfigSource(CompareSource):
    """The keys whose values differ between the runs; ``≠`` marks a value other than the pinned run's."""

    title, tab = "what differs in the configuration", "configuration"

    def __init__(self, store: Store, comparison: Comparison, key: str) -> None:
        super().__init__(store, comparison)
        self._key = key
        """The key that shows all."""

    def _configs(self) -> list[dict[str, str] | None]:
        return [dict(run.facts.config) if run.facts is not None else None for run in self.comparison.runs]

    def state(self) -> object:
        facts = tuple(id(run.facts) for run in self.comparison.runs)
        problems = tuple(run.asking.problem or run.asking.words() for run in self.comparison.runs)
        return (facts, problems, self.comparison.version, self.comparison.shows_all, self.store.connected)

    def counts(self) -> tuple[int, int]:
        """Keys that differ, and all keys."""
        found, count = differing(self._configs())
        return len(found), count

    def layout(self, width: int, palette: Palette) -> list[Text]:
        runs, configs = self.comparison.runs, self._configs()
        known = [config for config in configs if config is not None]
        lines = []
        for run in runs:
            problem = run.asking.problem or (run.facts.problem if run.facts is not None else "")
            if problem:
                lines += wrapped(Text.assemble(self.letter(run, palette), f" {problem}", style=palette["warn"]), width)
        if not known:
            return lines
        found, count = differing(configs)
        keys = found
        if self.comparison.shows_all:
            keys = [*found, *sorted({key for config in known for key in config} - set(found))]
        pin = self.comparison.pin
        pinned = dict(pin.facts.config) if pin is not None and pin.facts is not None else None
        cells = [[self._cell(key, config, pinned, palette) for config in configs] for key in keys]
        if cells:
            rows = [[Text(key), *row] for key, row in zip(keys, cells, strict=True)]
            if not fits([self.header("key", palette), *rows], width):  # as Home names them
                titles = [column(key).title for key in keys]
                rows = [
                    [Text(title if titles.count(title) == 1 else key), *map(last_value, row)]
                    for key, title, row in zip(keys, titles, cells, strict=True)
                ]
            lines += self.grid([self.header("key", palette), *rows], width, palette)
        lines.append(Text(""))
        same = count - len(found)
        verb = "hides them" if self.comparison.shows_all else "shows all"
        text = (
            f"{counted(same, 'key is', 'keys are')} the same   {self._key} {verb}"
            if found
            else f"all {count} keys are the same"
        )
        lines.append(Text(text, style=palette["muted"]))
        if missing := [run for run in runs if run.facts is None and not run.asking.problem]:
            text = f"{missing[0].asking.instead()} ({letters(missing)})"
            lines.append(Text(text, style=palette["muted"]))
        return lines

    @staticmethod
    def _cell(key: str, config: dict[str, str] | None, pinned: dict[str, str] | None, palette: Palette) -> Text:
        if config is None:
            return Text("…", style=palette["muted"])
        value = config.get(key)
        text = Text("–" if value is None else value or "null")
        if pinned is not None and differ(value, pinned.get(key)):
            text.append(" ≠", style=palette["warn"])
        return text


def last_value(cell: Text) -> Text:
    """Of a value that a resume changed, ``1e-4→0.03 ≠``, what it is now: ``→0.03 ≠``."""
    at = cell.plain.rfind(CHANGED)
    return cell if at < 0 else cell[at:]


class EvaluationsSource(CompareSource):
    """Held-out accuracy of each evaluated step, and the paired difference to the pinned run."""

    tab = "evaluations"

    def __init__(self, store: Store, comparison: Comparison, paired: PairedResults, key: str) -> None:
        super().__init__(store, comparison)
        self.paired, self._key = paired, key
        """``key`` lists the problems of a difference."""

    @property
    def title(self) -> str:
        problems = {pair.problems for pair in self.paired.pairs.values()}
        count = f" ({problems.pop():,} problems, in pairs)" if len(problems) == 1 else ""
        datasets = self._datasets()
        return f"held-out accuracy{f', {datasets[0]}' if len(datasets) == 1 else ''}{count}".replace("[", r"\[")

    @property
    def note(self) -> str:
        if self.paired.is_waiting:
            return "[$text-muted]asking the box[/]"
        if self.paired.problems:
            return f"[$warning]{counted(len(self.paired.problems), 'pair')} not compared: why is below[/]"
        return f"[$text-muted]{self._key}: problem by problem[/]" if self.paired.pairs else ""

    def state(self) -> object:
        facts = tuple(id(run.facts) for run in self.comparison.runs)
        return (facts, self.comparison.version, len(self.paired.pairs), tuple(self.paired.problems),
                self.paired.is_waiting, self.store.connected)  # fmt: skip

    def _datasets(self) -> list[str]:
        found = (run.facts.accuracies for run in self.comparison.runs if run.facts is not None)
        return list(dict.fromkeys(dataset for accuracies in found for dataset in accuracies))

    def layout(self, width: int, palette: Palette) -> list[Text]:
        datasets = self._datasets()
        if not datasets:
            if any(run.facts is None for run in self.comparison.runs):
                return []
            return wrapped(Text("No run is evaluated. e on Home evaluates one.", style=palette["muted"]), width)
        lines: list[Text] = []
        for dataset in datasets:
            title = [Text(dataset, style="bold")] if len(datasets) > 1 else []
            lines += [
                *title,
                *self._table(dataset, width, palette),
                *self._baselines(dataset, width, palette),
                Text(""),
            ]
        lines += wrapped(Text(self._verdict(), style=palette["muted"]), width)
        lines += [part for line in self._sums(palette) for part in wrapped(line, width)]
        for problem in self.paired.problems:
            lines += wrapped(Text(problem, style=palette["warn"]), width)
        return lines

    def _table(self, dataset: str, width: int, palette: Palette) -> list[Text]:
        """Accuracies, then differences. One that is too wide leaves out the intervals of the accuracies, then runs."""
        runs, pin = self.comparison.runs, self.comparison.pin
        results = {run.name: run.facts.accuracies.get(dataset, {}) if run.facts else {} for run in runs}
        others = [run for run in runs if run is not pin and any(key[:2] == (dataset, run.name) for key in self._keys)]
        header = self.header("step", palette)
        for run in others:
            header.append(Text.assemble(self.letter(run, palette), " − ", self.letter(pin or run, palette)))
        rows: list[list[Text]] = []
        for has_spread in (True, False):
            rows = []
            for step in sorted({step for found in results.values() for step in found}, reverse=True):
                cells = [_accuracy(results[run.name].get(step), has_spread, palette) for run in runs]
                cells += [self._difference(dataset, run, step, palette) for run in others]
                rows.append([Text(f"{step:,}"), *cells])
            if fits([header, *rows], width):
                break
        columns = {run.name: [place + 1] for place, run in enumerate(runs) if run is not pin}
        for place, run in enumerate(others):
            columns[run.name].append(1 + len(runs) + place)
        return self.grid([header, *rows], width, palette, list(columns.values()))

    def _baselines(self, dataset: str, width: int, palette: Palette) -> list[Text]:
        """The models that were evaluated without a run on the dataset, a line each."""
        facts = [run.facts for run in self.comparison.runs if run.facts is not None]
        found = {name: result for one in facts for name, result in one.baselines.get(dataset, {}).items()}
        lines = []
        for name, result in sorted(found.items()):
            text = Text.assemble((f"{name}  ", palette["muted"]), _accuracy(result, True, palette))
            if result.problems is not None:
                text.append(f"  {result.problems:,} problems", style=palette["muted"])
            lines += wrapped(text, width)
        return lines

    @property
    def _keys(self) -> list[tuple[str, str, int]]:
        return list(self.paired.pairs)

    def _difference(self, dataset: str, run: Compared, step: int, palette: Palette) -> Text:
        pair = self.paired.pairs.get((dataset, run.name, step))
        if pair is None:
            return Text("–", style=palette["muted"])
        text = Text(f"{signed(pair.difference, fraction)} ±{fraction(pair.spread)}")
        if pair.is_clear:
            text.append(" ≠", style=palette["good" if pair.difference > 0 else "bad"])
        return text

    def _sums(self, palette: Palette) -> list[Text]:
        """The problems that each run gained and lost at the newest step it is compared at."""
        lines = []
        for run in self.comparison.runs:
            keys = [key for key in self.paired.pairs if key[1] == run.name]
            for dataset in dict.fromkeys(key[0] for key in keys):
                step = max(key[2] for key in keys if key[0] == dataset)
                pair = self.paired.pairs[dataset, run.name, step]
                if pair.gained is None or pair.lost is None:
                    continue
                text = f" at step {step:,}: {pair.gained:,} gained, {pair.lost:,} lost of {pair.problems:,} problems"
                lines.append(Text.assemble(self.letter(run, palette), text))
        return lines

    def _verdict(self) -> str:
        pairs = self.paired.pairs
        if not pairs:
            if self.paired.is_waiting or self.paired.problems:
                return ""
            return "no step is evaluated for the pinned run and another one"
        clear = [key for key, pair in pairs.items() if pair.is_clear]
        if not clear:
            return "no difference at any step is beyond its interval"
        return f"≠ {len(clear)} of {len(pairs)} differences are beyond their 95 % intervals"


def _accuracy(found: Accuracy | None, has_spread: bool, palette: Palette) -> Text:
    if found is None:
        return Text("–", style=palette["muted"])
    text = Text(fraction(found.value))
    if has_spread and found.spread is not None:
        text.append(f" ±{fraction(found.spread)}", style=palette["muted"])
    return text


def _only(values: list[float], best: Callable[[list[float]], float]) -> float | None:
    """The best value, if one run alone has it."""
    found = best(values) if values else None
    return found if values.count(found) == 1 else None  # type: ignore[arg-type]


WIDEST = 32
"""Cells of a value; a longer one is cut in the middle."""
SIGNS = len(" ‹9 9›")
NARROWED = (16, 12, 9)
"""The same in a table that is too wide: the widest one in which all runs are shown."""
KEY_LEAST = 20
"""Cells that are left to the keys in such a table."""

Table = Sequence[Sequence[Text]]


def run_table(
    table: Table,
    width: int,
    palette: Palette,
    pinned: int,
    current: int,
    groups: Sequence[Sequence[int]] = (),
    best: int | None = None,
) -> list[Text]:
    """Lines of a table, whose first row is its header.

    ``pinned`` and ``current`` are runs by their place. ``groups`` has the columns of each run but the pinned one, in
    order; by default the column of its place. A table that fits has its columns in their order; one that does not is
    turned, without ``groups``, if it has room with a line per run.
    """
    count = len(table[0])
    widths = _widths(table, count)
    if fits(table, width):
        return _lines(table, widths, range(count))
    if not groups and (turned := _turned(table, [place + 1 for place in (pinned, best) if place is not None])):
        across = _widths(turned, len(turned[0]))
        if _total(across, range(len(across))) <= width:
            return _lines(turned, across, range(len(across)))
    for most in NARROWED:
        narrowed = [min(widths[0], KEY_LEAST), *(min(most, cells) for cells in widths[1:])]
        if not groups and (room := width - _total(narrowed, range(count))) >= 0:
            return _lines(table, [min(widths[0], narrowed[0] + room), *narrowed[1:]], range(count))
    others = list(groups) or [[place + 1] for place in range(count - 1) if place not in (pinned, best)]
    kept = [place + 1 for place in dict.fromkeys((pinned, best)) if place is not None and place + 1 < count]
    return _windowed(table, widths, width, palette, kept, current, others)


def fits(table: Table, width: int) -> bool:
    """Whether a table has room for all of its columns."""
    count = len(table[0])
    return _total(_widths(table, count), range(count)) <= width


def _turned(table: Table, first: Sequence[int]) -> list[list[Text]]:
    """A line per run: the heading, those of the ``first`` columns where there are two, the others."""
    whole = [row for row in table if len(row) > 1]
    order = dict.fromkeys([0, *(first if len(first) > 1 else ()), *range(len(table[0]))])
    return [[row[i] for row in whole] for i in order] if whole else []


def _windowed(
    table: Table,
    widths: list[int],
    width: int,
    palette: Palette,
    kept: Sequence[int],
    current: int,
    groups: list[Sequence[int]],
) -> list[Text]:
    """Key, ``kept`` columns, and as many of the others about the current run as fit; the first heading counts the
    rest."""
    fixed = [0, *kept]
    widths = [widths[0], *(min(NARROWED[0], cells) for cells in widths[1:])]
    at = next((i for i, group in enumerate(groups) if current + 1 in group), 0)
    two = sorted((_total(widths, group) + GAP for group in groups), reverse=True)[:2]
    spare = width - _total(widths, fixed[1:]) - GAP - sum(two)
    wanted = max(widths[0], table[0][0].cell_len + SIGNS)
    widths[0] = max(1, min(wanted, max(KEY_LEAST, spare)))
    room = width - _total(widths, fixed)
    first = last = at
    used = _total(widths, groups[at]) + GAP if groups else 0
    while groups:
        right = _total(widths, groups[last + 1]) + GAP if last + 1 < len(groups) else None
        left = _total(widths, groups[first - 1]) + GAP if first else None
        if right is not None and used + right <= room:
            last, used = last + 1, used + right
        elif left is not None and used + left <= room:
            first, used = first - 1, used + left
        else:
            break
    shown = [*fixed, *(column for group in groups[first : last + 1] for column in group)]
    lines = _lines(
        [[_counted(table[0][0], first, len(groups) - 1 - last, palette), *table[0][1:]], *table[1:]], widths, shown
    )
    return lines


def _counted(heading: Text, before: int, after: int, palette: Palette) -> Text:
    """``key  ‹2 5›``: runs to the left and right of those that are shown."""
    text = heading.copy()
    if before or after:
        signs = " ".join(filter(None, [f"‹{before}" if before else "", f"{after}›" if after else ""]))
        text.append(f"{' ' if text else ''}{signs}", style=f"bold {palette['warn']}")
    return text


def _widths(table: Table, count: int) -> list[int]:
    return [min(WIDEST, max((row[i].cell_len for row in table if i < len(row)), default=0)) for i in range(count)]


def _total(widths: Sequence[int], columns: Sequence[int] | range) -> int:
    return sum(widths[column] for column in columns) + GAP * max(0, len(columns) - 1)


def _lines(table: Table, widths: Sequence[int], columns: Sequence[int] | range) -> list[Text]:
    """Lines of some columns."""
    shown = [Sized(str(column), widths[column]) for column in columns]
    return [row_text(shown, [line[column] if column < len(line) else Text() for column in columns]) for line in table]
