"""``rollout.backend: file.py:function``: completions from a backend of the user's file.

``python -m grpo_train.rollout.own NAME`` says what is wrong with the function, without a model.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from grpo_train.config.schema import Config
from grpo_train.policy.memory import is_out_of_memory
from grpo_train.rewards.types import TaskError
from grpo_train.rewards.user_code import load_function
from grpo_train.rollout import Completion
from grpo_train.run_dir.errors import exiting_on_error

if TYPE_CHECKING:
    from grpo_train.policy.loading import Policy

KEY = "rollout.backend"
EXPECTED = "(policy, stop, config)"
OFF = {"top_p": 1.0, "top_k": 0, "batch_size": 0}
"""Values of arguments that change nothing."""


class OwnBackend:
    """What the user's function made, as a :class:`~grpo_train.rollout.RolloutBackend`. Each completion is checked: a
    step on tokens without their log-probabilities would look like training."""

    def __init__(self, name: str, policy: Policy, stop: Sequence[str], config: Config) -> None:
        """Raises TaskError."""
        self._name = name
        self._made = self._call(load_backend(name), policy, stop, config)
        if missing := [part for part in ("sync", "generate") if not callable(getattr(self._made, part, None))]:
            raise TaskError(
                f"{KEY}: {name} returns {type(self._made).__name__}, which has no {' and no '.join(missing)}"
            )
        taken = inspect.signature(self._made.generate).parameters
        self._takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
        self._taken = set(taken)
        self.fallbacks: dict[str, str] = {}

    def sync(self) -> None:
        self._call(self._made.sync)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        temperature: float,
        on_done: Callable[[int, Completion], None] | None = None,
        on_token: Callable[[int, int, int], None] | None = None,
        **sampling: Any,
    ) -> list[Completion]:
        """See :class:`~grpo_train.rollout.RolloutBackend`. Raises TaskError for what is not a completion of its prompt.

        A backend without ``on_done`` reports its completions together, at the end. One that does not take ``top_p``,
        ``top_k`` or ``batch_size`` fails where they are on.
        """
        done = set()

        def report(index: int, completion: Completion) -> None:
            if problem := _problem(completion, prompts[index], temperature):
                raise TaskError(f"{KEY}: {self._name}: generate, completion {index}: {problem}")
            done.add(index)
            if on_done is not None:
                on_done(index, completion)

        watching = {"on_done": report, "on_token": on_token}
        given = {**OFF, **sampling, "temperature": temperature, **watching}
        optional = {*watching, *(name for name, off in OFF.items() if given[name] == off)}
        taken = {k: v for k, v in given.items() if self._takes_all or k in self._taken or k not in optional}
        found: Any = self._call(self._made.generate, prompts, **taken)
        if not isinstance(found, list) or len(found) != len(prompts):
            what = f"{len(found)} completions" if isinstance(found, list) else type(found).__name__
            raise TaskError(f"{KEY}: {self._name}: generate returned {what}, not a list of {len(prompts)} completions")
        for index, completion in enumerate(found):
            if index not in done:
                report(index, completion)
        return found

    def _call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except TaskError:  # of one of this package's backends that it calls
            raise
        except Exception as error:  # user code may raise anything
            if is_out_of_memory(error):
                raise
            raise TaskError(f"{KEY}: {self._name} failed: {type(error).__name__}: {error}") from error


def load_backend(name: str) -> Callable[..., Any]:
    """The user's function, which takes ``(policy, stop, config)``. Raises TaskError."""
    function = load_function(name, KEY)
    try:
        inspect.signature(function).bind(None, (), None)
    except TypeError as error:
        raise TaskError(f"{KEY}: {name} must take {EXPECTED}: {error}") from error
    return function


def _problem(completion: Any, prompt: Sequence[int], temperature: float) -> str:
    """What is wrong with a completion, or nothing."""
    if not isinstance(completion, Completion):
        return f"{type(completion).__name__}, not a Completion (grpo_train.rollout)"
    if list(completion.prompt_ids) != list(prompt):
        return "its prompt_ids are not those of the prompt"
    if not completion.ids:
        return "it has no tokens"
    if (temperature or completion.logps) and len(completion.logps) != len(completion.ids):
        return f"{len(completion.ids)} tokens have {len(completion.logps)} log-probabilities"
    if not all(-float("inf") < logp <= 0 for logp in completion.logps):
        return "its log-probabilities must be numbers of 0 or less"
    return ""


if __name__ == "__main__":
    with exiting_on_error(""):
        load_backend(sys.argv[1])
