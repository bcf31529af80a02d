"""The two kinds of user-defined reward functions, told apart by their parameters.

- *attempt*: ``f(attempt, verdict) -> float | None``, called for each completion;
- *trl*: ``f(prompts, completions, completion_ids, **columns) -> list[float | None]``, called as TRL's GRPOTrainer calls
  it, for all completions of a prompt at once. Prompts and completions are lists of messages where the prompt is, or
  where the annotation of ``completions`` asks for them (``list[list[dict[str, str]]]``).

Both may be ``async``.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal

from grpo_train.rewards.types import Attempt, Problem, TaskError
from grpo_train.run_dir.errors import did_you_mean

Kind = Literal["attempt", "trl"]
TRL_PREFIX = "trl:"
"""Before a name, it says that the function is TRL's kind, whatever its parameters."""
_TRL_ONLY = frozenset({"prompts", "completions", "completion_ids"})


def split_prefix(name: str) -> tuple[str, bool]:
    """``module:function`` of a name in ``task.rewards``, and whether it has the prefix ``trl:``."""
    has_prefix = name.startswith(TRL_PREFIX) and ":" in name.removeprefix(TRL_PREFIX)
    return (name.removeprefix(TRL_PREFIX), True) if has_prefix else (name, False)


def kind_of(function: Callable[..., Any], name: str) -> Kind:
    """The kind of a function without a prefix. Raises TaskError if it fits neither."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a builtin
        return "attempt"
    if _TRL_ONLY.intersection(signature.parameters):
        return "trl"
    try:
        signature.bind(None, None)
    except TypeError:
        if any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
            return "trl"
        raise TaskError(
            f"task.rewards: '{name}' takes {signature}; expected (attempt, verdict) or, as for TRL, "
            f"(prompts, completions, **kwargs){place_of(function)}"
        ) from None
    return "attempt"


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine, also of an object with an ``async`` ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def trl_arguments(function: Callable[..., Any], name: str, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """The arguments of a call for the attempts at one problem, without those that the function does not take.

    Raises TaskError for a required argument that the data has no column for.
    """
    parameters = inspect.signature(function).parameters
    problem = attempts[0].problem
    columns = {key: value for key, value in problem.columns.items() if key not in ("prompt", "completion")}
    as_messages = bool(problem.messages) or "dict" in str(getattr(parameters.get("completions"), "annotation", ""))
    arguments: dict[str, Any] = {key: [value] * len(attempts) for key, value in columns.items()}
    arguments |= {
        "prompts": [_prompt(problem, as_messages) for _ in attempts],
        "completions": [_completion(attempt.completion, as_messages) for attempt in attempts],
        "completion_ids": [list(attempt.ids) for attempt in attempts],
        "log_extra": _log_nothing,
        "log_metric": _log_nothing,
    }
    named = {
        each.name: each for each in parameters.values() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    }
    for parameter in named.values():
        if parameter.default is parameter.empty and parameter.name not in arguments:
            raise TaskError(
                f"task.rewards: '{name}' needs the argument '{parameter.name}', which is not a column of the data; "
                f"{did_you_mean(parameter.name, list(columns))}{place_of(function)}"
            )
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return arguments
    return {key: value for key, value in arguments.items() if key in named}


def place_of(function: Callable[..., Any], error: BaseException | None = None) -> str:
    """`` (file:line)`` of the function, or of the last line in its file that ``error`` passed; "" of a builtin."""
    inner = inspect.unwrap(getattr(function, "func", function))
    code = getattr(inner, "__code__", None) or getattr(getattr(type(inner), "__call__", None), "__code__", None)  # noqa: B004
    if code is None:
        return ""
    line = code.co_firstlineno
    if error is not None:
        passed = [
            each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == code.co_filename
        ]
        line = passed[-1] if passed and passed[-1] else line
    return f" ({code.co_filename}:{line})"


def _prompt(problem: Problem, as_messages: bool) -> Any:
    if not as_messages:
        return problem.prompt
    return [{"role": role, "content": text} for role, text in problem.messages or (("user", problem.prompt),)]


def _completion(text: str, as_messages: bool) -> Any:
    return [{"role": "assistant", "content": text}] if as_messages else text


def _log_nothing(*_: Any) -> None:
    """TRL's ``log_extra`` and ``log_metric``: the rewards themselves are in the logs."""
