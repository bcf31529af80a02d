"""Requests that start or change something on a box: runs, evaluations, shells, setup; what a launch chooses from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Annotated, Any, TypeAlias, TypedDict

from grpo_train.run_dir.errors import did_you_mean
from remote.protocol.check import SECRET, Label, Positive, Quantity, Row, Text, ValueRule
from remote.protocol.copies import NOW, THEN
from remote.protocol.frames import RemoteError
from remote.protocol.record import record


@record(frozen=True)
class JobOptions:
    """Resources of a job. What is not set is the cluster's default."""

    partition: str = ""
    account: str = ""
    time: str = ""
    """Time limit as sbatch takes it, such as ``24:00:00``; 120 s before it, the run saves and requeues."""
    nodes: int = 1
    gpus: int = 0
    """GPUs of each node."""
    cpus: int = 0
    """Cores of each node."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, each ``--name=value``."""

    def changed(self, values: Mapping[str, Any]) -> JobOptions:
        """With other values. Raises ValueError that names the key."""
        known = {item.name for item in fields(self)}
        checked: dict[str, Any] = {}
        for key, value in values.items():
            if key not in known:
                raise ValueError(f"unknown key '{key}'; {did_you_mean(key, sorted(known))}")
            checked[key] = _checked(key, value)
        return replace(self, **checked)

    def with_words(self, words: list[str]) -> JobOptions:
        """With ``key=value`` words. Raises ValueError."""
        pairs = [word.partition("=") for word in words]
        if wrong := next((key for key, sign, _ in pairs if not sign), None):
            raise ValueError(f"'{wrong}' is not key=value")
        further = (*self.options, *(value for key, _, value in pairs if key == "options"))
        values = {key: value for key, _, value in pairs if key != "options"}
        return self.changed({**values, "options": list(further)})

    def words(self) -> list[str]:
        """What is set, as ``key=value`` words."""
        given = [(item.name, getattr(self, item.name)) for item in fields(self) if item.name != "options"]
        set_ = [f"{name}={value}" for name, value in given if value not in ("", 0) and (name, value) != ("nodes", 1)]
        return [*set_, *(f"options={option}" for option in self.options)]

    def arguments(self) -> list[str]:
        """Options of sbatch."""
        named = [
            *((f"--{key}={value}") for key in ("partition", "account", "time") if (value := getattr(self, key))),
            *(f"--nodes={self.nodes}", "--ntasks-per-node=1"),
            *([f"--cpus-per-task={self.cpus}"] if self.cpus else []),
            *([f"--gres=gpu:{self.gpus}"] if self.gpus else []),
        ]
        return [*named, *self.options]


def _checked(key: str, value: Any) -> Any:
    if key in ("nodes", "gpus", "cpus"):
        text = str(value)
        if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or int(text) < (key == "nodes"):
            raise ValueError(f"'{key}' must be an integer of {int(key == 'nodes')} or more, not {value!r}")
        return int(text)
    if key == "options":
        if not isinstance(value, (list, tuple)) or not all(_is_option(item) for item in value):
            raise ValueError("'options' must be a list of options of sbatch, such as [--constraint=h100, --exclusive]")
        return tuple(value)
    text = str(value)
    if not text or not text.isprintable() or any(c.isspace() or c in "\"'\\" for c in text):
        hint = "; quote it, YAML reads 1:30:00 as a number" if key == "time" and isinstance(value, int) else ""
        raise ValueError(f"'{key}' must be one word, not {value!r}{hint}")
    if key == "time" and not isinstance(value, str):
        raise ValueError(
            f"'time' must be a string such as \"24:00:00\", not {value!r} (YAML reads 1:30:00 as a number)"
        )
    return text


def _is_option(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("-") and value.isprintable() and not set(value) & set("\"'\\")


Fraction: TypeAlias = Annotated[float, ValueRule("a number above 0 and at most 1", lambda value: 0 < value <= 1)]
Choice: TypeAlias = Annotated[str, ValueRule("then, now or empty", lambda value: value in ("", THEN, NOW))]
NonNegative: TypeAlias = Annotated[float, ValueRule("a number of 0 or more", lambda value: value >= 0)]
MAX_WHY = 300
Why: TypeAlias = Annotated[str, ValueRule(f"at most {MAX_WHY} characters", lambda value: len(value) <= MAX_WHY)]


@record(frozen=True, kw_only=True)
class ChangeRequest:
    """A request that changes state; :mod:`remote.protocol.operations` says what a key and ``recall`` do."""

    idempotency_key: str = ""
    recall: bool = False
    why: Why = ""
    """Of an assistant, for the run's events (:mod:`remote.protocol.grants`)."""


@record(frozen=True, kw_only=True)
class CommandRequest(ChangeRequest):
    """A request that starts a command of the engine."""

    dry_run: bool = False
    """Answer what would be started, and start nothing."""


@record(frozen=True)
class LaunchRequest(CommandRequest):
    config_text: Text
    config_name: str = ""
    overrides: list[str] = field(default_factory=list)
    """``section.key=value``, over the config's values."""
    run_name: str = ""
    """"" = named after the time."""
    ckpt: str = ""
    """Starting weights: an adapter or model directory, absolute or relative to the root."""
    nproc: Positive | None = None
    by: str = ""
    """Who asks, for the run's records."""
    slurm: list[str] = field(default_factory=list)
    """``key=value`` words that change what the job asks for, on a box with ``scheduler: slurm``."""


@record(frozen=True)
class ResumeRequest(CommandRequest):
    run: Text
    from_step: int | str = "latest"
    additional_steps: Positive | None = None
    nproc: Positive | None = None
    overrides: list[str] = field(default_factory=list)
    """``section.key=value``. Version 0.1.0 of the engine knows neither this nor ``nproc``."""
    confirmation: str = ""
    """Of an edited workflow, as ``plan_resume`` returns it; the box refuses another with ``workflow_edited``."""
    code: Choice = ""
    """``then``: the code of the run, ``now``: what was synced last; "" is refused with ``code_differs`` where they
    differ."""


@record(frozen=True)
class PlanResumeRequest:
    """What a resume with these fields would do."""

    run: Text
    from_step: int | str = "latest"
    additional_steps: Positive | None = None
    nproc: Positive | None = None
    overrides: list[str] = field(default_factory=list)


@record(frozen=True)
class EvaluateRequest(CommandRequest):
    """Evaluates checkpoints of ``run``, or the one at ``ckpt_path``."""

    run: str = ""
    steps: list[int | str] | int | str = ""
    """"" = every complete checkpoint."""
    eval_dataset: str = ""
    eval_path: str = ""
    ckpt_path: str = ""
    name: str = ""
    split: str = ""
    subset_frac: Fraction | None = None
    temperature: NonNegative | None = None
    """0 = greedy."""
    batch_size: Positive | None = None
    max_completion_length: Positive | None = None
    num_samples: Positive | None = None
    num_problems: Positive | None = None
    nproc: Positive | None = None
    timeout: Positive | None = None

    def __post_init__(self) -> None:
        if not self.run and not self.ckpt_path:
            raise RemoteError("bad_request", "'run' or 'ckpt_path' is required")


@record(frozen=True)
class StopRequest(ChangeRequest):
    run: Text
    by: str = ""


@record(frozen=True)
class KillRequest(ChangeRequest):
    """Ends ``run``, or an evaluation by its ``session``."""

    run: str = ""
    session: str = ""
    by: str = ""
    patience_s: NonNegative | None = None
    """Seconds between SIGTERM and SIGKILL; None = 15, which is also the maximum."""

    def __post_init__(self) -> None:
        if not self.run and not self.session:
            raise RemoteError("bad_request", "'run' or 'session' is required")


class _JobReply(TypedDict, total=False):
    job: str
    """Id of the SLURM job, on a box with ``scheduler: slurm``; its session is ""."""
    note: str
    """What the engine's check of a launch or resume found besides problems, or why it was not checked."""


class JobReply(_JobReply):
    run: str
    session: str
    argv: list[str]
    engine: str
    """Why this engine command."""
    started: bool
    """False for a dry run, and for a repeated idempotency key."""


class EstimateRow(TypedDict, total=False):
    """A :class:`grpo_train.history.cost.Forecast` as JSON."""

    low: Quantity | None
    """Seconds; null = no estimate, and ``basis`` says why."""
    high: Quantity | None
    basis: str
    assumed: str
    factor: Quantity
    left_out: str


class _LaunchReply(TypedDict, total=False):
    estimate: EstimateRow
    """Of a dry run: how long the run may take."""


class LaunchReply(JobReply, _LaunchReply):
    shell_argv: list[str]
    """The equivalent command for a shell on the box."""


class ResumeReply(JobReply):
    step: int


class PlanResumeReply(TypedDict):
    run: Label
    host: Label
    step: Quantity
    """Step that it continues from."""
    total_steps: Quantity
    left: list[str]
    """Stages that would run, in order."""
    edits: list[dict[str, Any]]
    """StageRow: all stages, if the workflow was edited since the last start; else []."""
    confirmation: Label
    """Of the edits, to be sent with the resume; "" = none is needed."""


class StageRow(TypedDict):
    """A stage in the comparison of a workflow with its last start."""

    stage: str
    change: Label
    """``kept``, ``removed`` or ``added``."""
    done: bool
    """Whether it was done before."""


class _StopReply(TypedDict):
    run: str
    state: str


class StopReply(_StopReply, total=False):
    note: str
    """What differs from an ordinary stop: a full disk."""


class _KillReply(TypedDict):
    left: list[int]
    """Processes that even SIGKILL did not end."""
    forced: bool
    """SIGTERM was not enough."""


class KillReply(_KillReply, total=False):
    run: str
    state: str
    session: str
    note: str
    """Why the end is not recorded yet: a full disk."""


MAX_PROMPT = 65_536
"""Characters of a question."""
MAX_COUNT = 64
"""Completions of each checkpoint."""
_ID = re.compile(r"[0-9a-f]{32}")
AskId: TypeAlias = Annotated[str, ValueRule("the id of an opened process", lambda value: bool(_ID.fullmatch(value)))]
QuestionId: TypeAlias = Annotated[str, ValueRule("the id of a question", lambda value: bool(_ID.fullmatch(value)))]
Prompt: TypeAlias = Annotated[
    str, ValueRule(f"a question of at most {MAX_PROMPT:,} characters", lambda value: len(value) <= MAX_PROMPT)
]
Samples: TypeAlias = Annotated[
    int, ValueRule(f"an integer from 1 to {MAX_COUNT}", lambda value: 1 <= value <= MAX_COUNT)
]
Number: TypeAlias = Annotated[int, ValueRule("an integer of 0 or more", lambda value: value >= 0)]
Checkpoints: TypeAlias = Annotated[
    list[Number],
    ValueRule("a list of 1 or 2 steps", lambda value: 1 <= len(value) <= 2 and len(set(value)) == len(value)),
]
Device: TypeAlias = Annotated[str, ValueRule("'cpu', 'cuda' or ''", lambda value: value in ("", "cpu", "cuda"))]


@record(frozen=True)
class OpenAskRequest(CommandRequest):
    """Starts the process in the session ``ask_<run>``; the key is required, and names the process."""

    run: Text
    steps: Checkpoints
    """One checkpoint, or two that get the same seeds. 0 = the model the run started from."""
    device: Device = ""
    """"" = as the run's config, but no GPU of a run that is training."""


@record(frozen=True)
class AskRequest(ChangeRequest):
    """Asks a question, or a held-out problem by its number."""

    ask: AskId
    prompt: Prompt = ""
    index: Number | None = None
    count: Samples = 1
    temperature: NonNegative | None = None
    """0 = greedy; None = as the run's evaluation."""
    seed: Number = 0

    def __post_init__(self) -> None:
        if bool(self.prompt.strip()) == (self.index is not None):
            raise RemoteError("bad_request", "either 'prompt' or 'index' is required")


@record(frozen=True)
class CancelAnswerRequest(ChangeRequest):
    """Stops the answer to one question; the process stays. An engine that does not know this answers to the end."""

    ask: AskId
    question: QuestionId


@record(frozen=True)
class CloseAskRequest(ChangeRequest):
    """Ends the process and removes its questions and answers."""

    ask: AskId


class OpenAskReply(JobReply):
    ask: str
    """Id of the process."""
    answers: str
    """Its file of events, relative to the root, to be followed as a log (:mod:`grpo_train.ask.output`)."""


class AskReply(TypedDict):
    question: str
    """Its events carry this id."""


class CancelAnswerReply(TypedDict):
    question: str


class CloseAskReply(TypedDict):
    left: list[int]
    """Processes that even SIGKILL did not end."""


MAX_LINE = 2_000
Line: TypeAlias = Annotated[
    str,
    ValueRule(
        f"1 to {MAX_LINE:,} printable characters", lambda value: 0 < len(value) <= MAX_LINE and value.isprintable()
    ),
]


@record(frozen=True)
class OpenShellRequest(ChangeRequest):
    """Opens a tmux session with the login shell of the account."""


class OpenShellReply(TypedDict):
    session: Label


@record(frozen=True)
class SendLineRequest(ChangeRequest):
    """Types a line into a session, and Enter."""

    session: Text
    line: Line


class SendLineReply(TypedDict):
    session: Label


Port: TypeAlias = Annotated[int, ValueRule("a port number", lambda value: 0 < value < 65_536)]


@record(frozen=True)
class OpenTensorBoardRequest(ChangeRequest):
    """Starts it in the session ``tensorboard_<run>``, or finds the one that runs. It ends without connections."""

    run: Text


class OpenTensorBoardReply(TypedDict):
    session: Label
    port: Port
    """On the box's loopback."""
    path: Label
    """``/RANDOM/``."""


MAX_ENV_BYTES = 16_384


@record(frozen=True)
class PlaceEnvRequest(ChangeRequest):
    """Replaces the ``.env`` of the account on the box (:mod:`grpo_train.run_dir.machine`)."""

    text: str = field(repr=False, metadata=SECRET)
    """At most MAX_ENV_BYTES. It is in no record, message or command line."""


class PlaceEnvReply(TypedDict):
    path: Label
    replaced: bool
    """Whether there was one before."""


@record(frozen=True)
class SetUpRequest(CommandRequest):
    """Installs the engine of the checkout in a tmux session, or finds the one that is at it."""


class ListConfigsReply(TypedDict):
    configs: list[Row]
    """name, size, modified."""
    folder: str


@record(frozen=True)
class ReadConfigRequest:
    name: Text
    """A name that ``list_configs`` lists."""


class ReadConfigReply(TypedDict):
    name: str
    text: str


class ListTasksReply(TypedDict):
    tasks: dict[str, str]
    """Name to description."""


class ListWeightsReply(TypedDict):
    weights: list[Row]
    """name, path (relative to the root), kind (``adapter`` or ``model``), modified."""


@record(frozen=True)
class CheckWeightsRequest:
    path: Text
    """A directory on the box, absolute or relative to the root."""


class CheckWeightsReply(TypedDict):
    path: str
    kind: str
    """``adapter``, ``model``, or "" where the directory cannot be used."""
    problem: str
