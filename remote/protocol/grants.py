"""What a person grants an assistant on a box: verbs, runs, configs, money and time.

A session opens with the grant, and the agent holds it: whatever is sent later, :func:`outside` decides there, and
before that on the assistant's own machine. Standard library only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, TypedDict

from grpo_train.run_dir.errors import UserError
from remote.protocol.check import Quantity, Text, matches
from remote.protocol.record import record

VERBS: Mapping[str, str] = MappingProxyType(
    {"stop": "stop", "resume": "resume", "evaluate": "evaluate", "launch": "launch", "backup": "back_up"}
)
"""What can be granted, and its operation. Everything else that changes a box is never granted."""
CODE = "code"
"""Beside the verbs: what runs code, or leaves the box, too."""
PAID = ("launch", "resume", "evaluate")
"""Operations that take time on the box, and so money."""
NUMERIC_KEYS = frozenset(
    {
        "run.total_steps", "run.save_every", "run.eval_every", "run.seed",
        "rollout.buffer_size", "rollout.num_generations", "rollout.max_completion_length", "rollout.temperature",
        "rollout.top_p", "rollout.top_k",
        "algorithm.num_iterations", "algorithm.updates_per_buffer", "algorithm.epsilon", "algorithm.epsilon_high",
        "algorithm.delta", "algorithm.beta", "algorithm.entropy_coef", "algorithm.overlong_buffer",
        "algorithm.rollout_correction_cap",
        "optimizer.learning_rate", "optimizer.warmup_steps", "optimizer.min_lr_ratio", "optimizer.weight_decay",
        "optimizer.adam_beta1", "optimizer.adam_beta2", "optimizer.adam_epsilon", "optimizer.max_grad_norm",
        "model.lora_rank", "model.lora_alpha", "model.lora_dropout",
        "eval.temperature", "eval.top_p", "eval.num_samples", "eval.subset_frac",
    }
)  # fmt: skip
"""What an assistant may change without ``code``. None of them names a file, a program or an address, removes a
checkpoint or lifts a limit."""
BUDGET_KEY = "budget.dollars"
"""What a launch or resume may cost; the agent adds the price and, for a resume, what was spent before."""
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_STEP = re.compile(r"[0-9]{1,9}|latest|final")
"""Of an evaluation; ``all`` and ``1,2`` are more than one."""
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,-]{0,200}")
"""A name, or steps: neither a path nor an address."""
_ACCOUNT = re.compile(r"[0-9a-f]{16}")


@record(frozen=True)
class Grant:
    """Fixed when a session opens."""

    account: str
    """What its money and its runs are counted under: see :func:`account_of`."""
    by: str
    """Who acts, for the records of the runs."""
    verbs: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    """Runs it may act on besides those that were launched under the account."""
    configs: dict[str, str] = field(default_factory=dict)
    """Name to SHA-256 of the text of each config that it may launch."""
    overrides: list[str] = field(default_factory=list)
    """Overrides of the person's own that each launch carries, such as how to notify."""
    dollars: float | None = None
    """What all its acts may cost; None = it may not spend."""
    price_per_hour: float | None = None
    """Of the box; None = not known."""
    until: float | None = None
    """Seconds since the epoch, by either clock; None = without an end."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Grant:
        """Raises UserError (``bad_grant``) for anything but a grant: one that is read half would grant too much."""
        kinds: dict[str, Any] = {
            "account": str, "by": Text, "verbs": list[str], "runs": list[str], "configs": dict[str, str],
            "overrides": list[str],
            "dollars": Quantity | None, "price_per_hour": Quantity | None, "until": Quantity | None,
        }  # fmt: skip
        if not isinstance(value, dict):
            raise UserError("malformed grant: not an object", code="bad_grant")
        wrong = [key for key in kinds if key not in value or not matches(value[key], kinds[key])]
        if wrong or set(value) != set(kinds) or not _ACCOUNT.fullmatch(value["account"]):
            raise UserError(f"malformed grant: {', '.join(wrong) or 'unknown or wrong keys'}", code="bad_grant")
        if unknown := set(value["verbs"]) - {*VERBS, CODE}:
            raise UserError(f"malformed grant: no verb {', '.join(sorted(unknown))}", code="bad_grant")
        return cls(**value)

    @property
    def allows_code(self) -> bool:
        return CODE in self.verbs


class GrantReply(TypedDict):
    """What a session may do, and what is left of its money."""

    verbs: list[str]
    run_names: list[str]
    """Those it may act on, its own included."""
    configs: list[str]
    until: Quantity | None
    dollars: Quantity | None
    left: Quantity | None
    """Dollars that can still be reserved."""
    price_per_hour: Quantity | None
    refused: int
    """Attempts that were refused so far, under the account."""


def account_of(by: str, until: float | None) -> str:
    """The account of who asks and until when: a server that starts again has spent what it spent before."""
    return hashlib.sha256(f"{by}\0{until}".encode()).hexdigest()[:16]


def text_hash(text: str) -> str:
    """How a grant names the text of a config."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def dollars_of(overrides: Iterable[str]) -> float | None:
    """What a launch or resume asks for: the last ``budget.dollars`` among its overrides."""
    given = [value for key, _, value in (text.partition("=") for text in overrides) if key.strip() == BUDGET_KEY]
    return float(given[-1]) if given and _NUMBER.fullmatch(given[-1]) else None


def seconds_of(request: Any) -> float | None:
    """How long an evaluation may take; None where it does not say."""
    steps = request.steps
    if not isinstance(steps, list) or not steps or request.timeout is None or not _are_steps(steps):
        return None
    return float(len(steps) * request.timeout)


def runs_of(request: Any) -> list[str]:
    """The runs that a request is about."""
    run = getattr(request, "run", "")
    return [*([run] if run else []), *getattr(request, "runs", []), *getattr(request, "others", [])]


def outside(grant: Grant, op: str, changes_state: bool, request: Any, now: float, is_own: Callable[[str], bool]) -> str:
    """Why a request is outside a grant; "" if it is inside. The agent reserves its money (:mod:`remote.agent.grants`).

    ``now``: seconds since the epoch by the clock of whoever asks. ``is_own``: whether a run was launched under the
    account. A dry run is refused like the act.
    """
    if changes_state:
        verb = next((verb for verb, name in VERBS.items() if name == op), "")
        if not verb:
            return f"'{op}' is never granted to an assistant"
        if verb not in grant.verbs:
            return f"'{verb}' is not granted (granted: {', '.join(grant.verbs) or 'nothing but looking'})"
        if grant.until is not None and now >= grant.until:
            return "the grant has expired"
        run = getattr(request, "run", "")
        if op != "launch" and (not run or not (run in grant.runs or is_own(run))):
            return f"'{run}' is neither among the runs of the grant nor one that was launched under it"
        if not getattr(request, "dry_run", False):
            if not request.idempotency_key:
                return "an act needs an idempotency key"
            if not request.why.strip():
                return "an act needs a reason ('why'), which is written into the run"
    return "" if grant.allows_code else _needs_code(grant, op, request)


def _needs_code(grant: Grant, op: str, request: Any) -> str:
    """What in a request would run code or leave the box, which only ``code`` grants."""
    needs = f"; only '--allow {CODE}' grants that"
    if path := next((run for run in runs_of(request) if "/" in run or run[:1] in ("~", ".")), ""):
        return f"a run is named by its name, not by {path[:80]!r}{needs}"
    text = getattr(request, "config_text", "")
    if text and text_hash(text) not in grant.configs.values():
        named = ", ".join(grant.configs) or "none"
        return f"the config is none that the person named ({named}){needs}"
    if (name := getattr(request, "config_name", "")) and text_hash(text) != grant.configs.get(name):
        return f"the config named {name[:80]!r} has another text{needs}"
    own = grant.overrides if op == "launch" else []
    for override in (each for each in getattr(request, "overrides", []) if each not in own):
        key, _, value = override.partition("=")
        if key not in NUMERIC_KEYS and not (key == BUDGET_KEY and op in PAID):
            return f"'{key[:80]}' is not among the keys that an assistant may change{needs}"
        if not _NUMBER.fullmatch(value):
            return f"'{key}' takes a number, not {value[:80]!r}{needs}"
    for name, allowed in _LIMITS.get(op, {}).items():
        value = getattr(request, name)
        if value not in ("", None, []) and not allowed(value):
            return f"'{name}' of '{op}' cannot be {str(value)[:80]!r}{needs}"
    return ""


def _never(value: Any) -> bool:
    return False


def _is_word(value: Any) -> bool:
    return bool(_WORD.fullmatch(str(value)))


def _are_steps(value: Any) -> bool:
    return all(_STEP.fullmatch(str(step)) for step in (value if isinstance(value, list) else [value]))


def _is_then(value: Any) -> bool:
    return bool(value == "then")


_LIMITS: Mapping[str, Mapping[str, Callable[[Any], bool]]] = MappingProxyType(
    {
        "launch": {"ckpt": _never, "slurm": _never, "run_name": _is_word, "nproc": _never},
        "resume": {"from_step": _is_word, "confirmation": _never, "code": _is_then, "nproc": _never},
        "plan_resume": {"from_step": _is_word, "nproc": _never},
        "evaluate": {
            "steps": _are_steps, "eval_dataset": _is_word, "eval_path": _never, "ckpt_path": _never, "name": _never,
            "split": _is_word, "nproc": _never,
        },
        "back_up": {"steps": _is_word, "to": _is_word},
        "check_weights": {"path": _never},
        "capture_pane": {"session": _never},
        "plan_back_up_all": {"to": _is_word},
        "plan_cleanup": {"to": _is_word},
        "list_backups": {"source": _is_word},
        "stored_history": {"source": _is_word},
    }
)  # fmt: skip
"""Fields of an operation that hold more than a run, a number or a choice, and what may stand there without ``code``."""
