"""How long the stages of a run may take, from earlier runs like it or from bench figures. Torch-free."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.config import ConfigError, load_config, read_config_text
from grpo_train.config.schema import Config, TaskConfig
from grpo_train.config.tasks import OPTIONS, GameOptions
from grpo_train.history.cost import Forecast
from grpo_train.platforms.choices import find_shape
from grpo_train.platforms.facts import read_machine
from grpo_train.platforms.memory import QWEN2_5
from grpo_train.platforms.speeds import (
    AssumedLengths,
    Work,
    find_speed,
    is_kind,
    machine_name,
    read_speeds,
    shape_parameters,
)
from grpo_train.policy.locate import PolicyError
from grpo_train.run_dir import RunDir, list_runs
from grpo_train.run_dir.files import read_jsonl, to_float
from grpo_train.run_dir.safe_json import leave_out
from grpo_train.supervisor.stages import Stage, thread_count
from grpo_train.tasks import TaskError, load_task

RUNS = 3
"""Number of newest runs like this one that are read."""
LOOKED = 50
"""Newest runs whose configs are compared."""
STEPS = 200
"""Last steps of each run."""
RUNS_FACTOR = 1.3
"""How far measured times were from those of earlier runs: docs/performance.md."""
SAME = ("model", "rollout", "train", "task")
"""Sections that decide how long a step takes, with the number of processes and updates per buffer."""
HUB_PROBLEMS = {"gsm8k": 1319, "mbpp": 500}
"""Problems of the official test splits, which need not be here to be counted."""
TINY_PARAMETERS = 884_736.0
"""Of the tiny model (``shape_parameters``)."""
Ends = tuple[float, float]
"""Seconds with likely lengths of completions, and with the longest that the config allows."""


@dataclass
class _Earlier:
    """What an earlier run of the same task tells of lengths."""

    run: str
    prompt: float
    mean: float
    longest: float
    trained: float


class Estimates:
    """Medians of the steps and stages of the newest runs of the same shape on the same kind of machine; where there are
    none, what bench figures say of it."""

    def __init__(self, root: Path, config: Config, machine: str | None = None) -> None:
        """``machine``: the kind of machine, as ``H100``; "" = unknown, so any earlier run counts; None = this one."""
        self.sources: list[str] = []
        """Names of the runs that the estimates come from."""
        self.root, self.config = root, config
        self.threads = thread_count(config.run.nproc, config.run.nodes)
        self.machine = _this_machine(config) if machine is None else machine
        self._steps: list[float] = []
        self._overheads: list[float] = []
        """Seconds of a training stage beside its steps."""
        self._stages: dict[str, list[float]] = defaultdict(list)
        self._earlier: _Earlier | None = None
        for run in list_runs(root)[:LOOKED]:
            if len(self.sources) < RUNS and (other := _config_of(run)) is not None:
                self._look(run, other)
        self.work, self.problem = (None, "") if self._steps else self._bench()

    def seconds(self, stage: Stage, start: int) -> Ends | None:
        """Duration of a stage of a run that has trained to step ``start``; None where nothing is known."""
        known = self._stages.get(_shape(stage.name)) or (None if stage.kind == "eval" else self._stages.get(stage.kind))
        if stage.kind == "train":
            return self._training(max(0, stage.until - start), start)
        if known:
            return (statistics.median(known),) * 2
        return self._evaluation(stage) if stage.kind == "eval" and self.work is not None else None

    def forecast(self, stages: Sequence[Stage], start: int = 0) -> Forecast:
        """The stages together."""
        low = high = 0.0
        left_out: dict[str, int] = {}
        for stage in stages:
            ends = self.seconds(stage, start)
            start = max(start, stage.until)
            if ends is None:
                left_out[stage.kind] = left_out.get(stage.kind, 0) + 1
            else:
                low, high = low + ends[0], high + ends[1]
        if "train" in left_out or not high:
            return Forecast(basis=self.problem)
        names = {"eval": "evaluations", "backup": "backups", "cleanup": "cleanups"}
        without = [f"{count} {names[kind]}"[: None if count > 1 else -1] for kind, count in left_out.items()]
        if self.work is not None:
            without += [] if self.work.speed.startup else ["startup and saves"]
            without += ["further rounds of rollout.filter_groups"] if self.config.rollout.filter_groups else []
        return Forecast(low, high, self.basis, self._assumed(), self.factor, ", ".join(without))

    @property
    def basis(self) -> str:
        """Where the time of a step comes from."""
        return self.work.speed.name if self.work is not None else ", ".join(self.sources)

    @property
    def factor(self) -> float:
        return RUNS_FACTOR if self.work is None else self.work.factor

    def _assumed(self) -> str:
        if self.work is None:
            return ""
        likely, longest = (self._lengths(is_longest) for is_longest in (False, True))
        of = f"as in {self._earlier.run}" if self._earlier else "half the maximum"
        scaled = "" if self.work.is_same else "scaled by the model's size and training; "
        return f"{scaled}completions of {likely.mean:.0f} to {longest.mean:.0f} tokens ({of} to the maximum)"

    # ------------------------------------------------------------------------------------------------ earlier runs

    def _look(self, run: RunDir, other: Config) -> None:
        is_like = all(map(_same, _shape_of(other), _shape_of(self.config)))
        is_same_task = other.task.name == self.config.task.name and self._earlier is None
        if not is_like and not is_same_task:
            return
        status = run.read_status() or {}
        device, threads = str(status.get("device") or ""), status.get("threads")
        is_here = not self.machine or not device or is_kind(device, self.machine)
        is_here &= device != "CPU" or threads in (None, self.threads)
        rows = list(run.read_log("train_log.jsonl")) if (is_like and is_here) or is_same_task else []
        if is_same_task and rows:
            self._earlier = _lengths_of(run, rows[-STEPS:], other)
        if is_like and is_here:
            self._read(run, rows)

    def _read(self, run: RunDir, rows: list[dict[str, Any]]) -> None:
        steps = [seconds for row in rows if (seconds := to_float(row.get("time/step"))) is not None]
        stages = [row for _, row in read_jsonl(run.events_file) if row.get("event") == "stage_done"]
        if steps or stages:
            self.sources.append(run.name)
        self._steps += steps[-STEPS:]
        for row in stages:
            if (seconds := to_float(row.get("seconds"))) is not None:
                self._stages[_shape(str(row.get("stage")))].append(seconds)
                self._stages[str(row.get("kind"))].append(seconds)
        trained = [to_float(row.get("seconds")) or 0.0 for row in stages if row.get("kind") == "train"]
        if trained:
            self._overheads.append(max(0.0, sum(trained) - sum(steps)) / len(trained))

    def _training(self, steps: int, start: int) -> Ends | None:
        if not steps:
            return 0.0, 0.0
        if self._steps:
            overhead = statistics.median(self._overheads) if self._overheads else 0.0
            return (statistics.median(self._steps) * steps + overhead,) * 2
        if self.work is None:
            return None
        every, speed = self.config.run.save_every, self.work.speed
        saves = (start + steps) // every - start // every
        likely, longest = (self.work.step(self._lengths(is_longest)) * steps for is_longest in (False, True))
        return likely + speed.startup + saves * speed.save, longest + speed.startup + saves * speed.save

    # ----------------------------------------------------------------------------------------------- bench figures

    def _bench(self) -> tuple[Work | None, str]:
        """What bench figures say of the config, or why they say nothing."""
        config = self.config
        if config.rollout.backend == "vllm":
            return None, "no earlier run like this one, and grpo-train bench does not measure vLLM"
        if ":" in config.rollout.backend:
            return None, "no earlier run like this one, and grpo-train bench does not measure a backend of your own"
        if any(_is_game(part) for part in config.task.parts or [config.task]):
            return None, "no earlier run like this one, and the turns of a game are not known before"
        if not self.machine:
            return None, "no earlier run like this one, and the kind of machine is not known here"
        parameters = _parameters(config, self.root)
        speed = find_speed(read_speeds(self.root), self.machine, self.threads, parameters, config)
        if speed is not None and parameters is not None:
            return Work(speed, config, parameters), ""
        model = config.model.backbone.removesuffix("_instruct")
        option = f" --model {model}" if model in ("tiny", *QWEN2_5) else ""
        machine = machine_name(self.machine, self.threads)
        return None, (
            f"no earlier run like this one, and no bench figures for {machine}; run  "
            f"grpo-train bench{option}  there (minutes)"
        )

    def _lengths(self, is_longest: bool) -> AssumedLengths:
        rollout, earlier = self.config.rollout, self._earlier
        most = float(rollout.max_completion_length)
        prompt = min(earlier.prompt if earlier else rollout.max_prompt_length / 2, rollout.max_prompt_length)
        if is_longest:
            return AssumedLengths(prompt if earlier else float(rollout.max_prompt_length), most, most)
        if earlier is None:
            return AssumedLengths(prompt, most / 2, most / 2)
        trained = earlier.trained if self.config.train.skip_zero_advantages else 1.0
        return AssumedLengths(prompt, min(earlier.mean, most), min(earlier.longest, most), trained)

    def _evaluation(self, stage: Stage) -> Ends | None:
        assert self.work is not None
        evaluation, options = self.config.eval, dict(zip(stage.options[::2], stage.options[1::2], strict=False))
        problems = self._problems(stage, options)
        if problems is None:
            return None
        samples = int(options.get("--num-samples") or evaluation.num_samples)
        most = evaluation.max_completion_length or self.config.rollout.max_completion_length
        scale = most / self.config.rollout.max_completion_length
        at_once = 0 if evaluation.batch_size == "auto" else evaluation.batch_size
        ends = []
        for is_longest in (False, True):
            each = self._lengths(is_longest)
            lengths = AssumedLengths(each.prompt, each.mean * scale, each.longest * scale)
            ends.append(self.work.rollout(problems * samples, lengths, at_once) + self.work.speed.startup)
        return ends[0], ends[1]

    def _problems(self, stage: Stage, options: dict[str, str]) -> int | None:
        """How many problems an evaluation asks; None where the data is not here to be counted."""
        wanted = options.get("--num-problems") or self.config.eval.num_problems
        if wanted is not None and wanted != "auto":
            return int(wanted)
        parts = {part.part_label: part for part in self.config.task.parts} or {"": self.config.task}
        task = parts.get(stage.dataset)
        if task is None or ":" in task.name:  # another task's data, or a user's code
            return None
        count = HUB_PROBLEMS.get(task.name) if task.path is None and self.config.eval.split == "test" else None
        if count is None:
            if task.path is None and task.name in HUB_PROBLEMS:
                return None
            try:
                count = load_task(task).size(self.config.eval.split)
            except (TaskError, OSError):  # data that is not there yet
                return None
        return max(1, round(count * float(options.get("--subset-frac") or self.config.eval.subset_frac)))


def _this_machine(config: Config) -> str:
    machine = read_machine()
    return machine.gpus[0].name if machine.gpus and config.model.device != "cpu" else "CPU"


def _parameters(config: Config, root: Path) -> float | None:
    """Weights of the model; None for one of unknown shape."""
    try:
        return shape_parameters(find_shape(config.model.backbone, root))
    except PolicyError:
        return TINY_PARAMETERS if config.model.backbone == "tiny" else None  # made at the first launch


def _is_game(task: TaskConfig) -> bool:
    return issubclass(OPTIONS.get(task.name, object), GameOptions)


def _lengths_of(run: RunDir, rows: list[dict[str, Any]], config: Config) -> _Earlier | None:
    def mean_of(key: str) -> float | None:
        values = [value for row in rows if (value := to_float(row.get(key))) is not None]
        return statistics.mean(values) if values else None

    mean, longest = mean_of("completions/mean_length"), mean_of("completions/max_length")
    if mean is None:
        return None
    drawn, prompt = config.rollout.buffer_size * config.rollout.num_generations, config.rollout.max_prompt_length / 2
    tokens = [to_float(row.get("num_tokens")) or 0.0 for row in rows[:: config.steps_per_buffer]]
    if len(tokens) > 1 and tokens[-1] > tokens[0]:
        prompt = max(1.0, (tokens[-1] - tokens[0]) / (len(tokens) - 1) / drawn - mean)
    trained = 1 - (mean_of("frac_reward_zero_std") or 0.0)
    return _Earlier(run.name, prompt, mean, max(mean, longest or mean), max(trained, 0.05))


def _shape(name: str) -> str:
    """The name of a stage without its step."""
    return " ".join(word for word in name.split() if not word.isdigit())


def _config_of(run: RunDir) -> Config | None:
    if not run.config_file.exists():  # it never started
        return None
    try:
        return load_config(read_config_text(run.config_file), source=str(run.config_file))
    except ConfigError as error:  # of another version
        leave_out(run.config_file, error)
        return None


def _same(known: Any, asked: Any) -> bool:
    """Whether two values are equal, or the one asked for is resolved at launch."""
    if isinstance(known, dict) and isinstance(asked, dict):
        return all(_same(known.get(key), value) for key, value in asked.items())
    return bool(known == asked or asked == "auto")


def _shape_of(config: Config) -> list[Any]:
    document = config.model_dump(mode="json")
    for task in document["task"].get("parts", [document["task"]]):
        del task["path"]  # absolute in a run's config
    return [*(document[section] for section in SAME), config.run.nproc, config.steps_per_buffer]
