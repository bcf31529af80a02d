"""Write a small program whose output another model cannot predict.

The policy writes a program; it is run; an opponent (``task.opponent``) reads the program and predicts its output.
``score`` is +1 if the opponent fails and -1 if it succeeds. A program that breaks the rules has no score and is left
out of its group: with a score of 0, between the two, breaking the rules would be the better move against a strong
opponent. To penalize it, add the reward function ``format``.

The rules separate hard programs from hopeless ones:

- the program runs twice, with another hash seed, directory, time and memory layout (six times if it may have a set,
  whose order varies), and always prints the same, non-empty output;
- it imports only deterministic modules (:data:`IMPORTS`: no random, time or hashes) and uses none of :data:`FORBIDDEN`
  and :data:`INNER`;
- it and its output are small: 300 characters of program and 60 of output, plus 100 and 20 per ``task.level``;
- its string literals are short, its numbers at most 999, and its output has at most eight digits in a row: copied
  constants, pseudo-random generators and towers of powers defeat any predictor and teach nothing. An output line that
  already occurs in the program does not count;
- its output can be spoken: printable characters, no answer tags, no special tokens ("<|im_end|>"). Special tokens are
  forbidden in the program, too.

Comments and docstrings are removed before the program is run and shown: they could only address the opponent. Requests
are generated from pairs of language features. Templates: as in code_execution.
"""

from __future__ import annotations

import ast
import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from grpo_train.config import schema
from grpo_train.rewards.tags import CLOSE_ANSWER, OPEN_ANSWER, last_tagged
from grpo_train.sandbox import ProgramResult, run_program
from grpo_train.sandbox.syntax import parse_program
from grpo_train.tasks.shared.adversarial import AdversarialTask, Play
from grpo_train.tasks.shared.base import Attempt, NoSplitError, Problem, Split, TaskKind, Verdict
from grpo_train.tasks.shared.code import COMPACT, ProgramTask, denials, make_frame, program_of
from grpo_train.tasks.shared.template import ask

HELD_OUT = 128
"""Requests of the test split."""
IMPORTS = frozenset(
    {
        "bisect", "collections", "copy", "dataclasses", "decimal", "enum", "fractions", "functools", "heapq",
        "itertools", "math", "operator", "re", "statistics", "string", "textwrap", "typing",
    }
)  # fmt: skip
FORBIDDEN = frozenset(
    {
        "hash", "id", "exec", "eval", "compile", "open", "input", "globals", "locals", "vars", "dir",
        "getattr", "attrgetter", "methodcaller", "get_field",
        "NormalDist", "kde_random",
    }
)  # fmt: skip
"""Names whose value depends on the process, is hidden from the opponent, or is random."""
INNER = frozenset(
    {
        "builtins", "bltns", "contextlib", "copyreg", "inspect", "random", "sys", "thread", "types", "warnings",
        "weakref",
    }
)  # fmt: skip
"""Modules that are attributes of those of :data:`IMPORTS` (``statistics.random``, ``collections._sys``)."""
DUNDERS = frozenset({"__init__", "__name__", "__class__", "__doc__"})
"""Dunder names that a program may use; it may define any."""
MAX_TEXT = 24
"""Maximum length of a string literal."""
MAX_NUMBER = 999
"""Maximum number in the program."""
MIN_COPIED = 4
"""Minimum length of an output line that counts as copied if it occurs in the program."""
_LONG_NUMBER = re.compile(r"\d{9}")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SPECIAL_TOKEN = re.compile(r"<\|.*?\|>|</?s>|\[/?INST\]")

FEATURES = (
    "a for loop", "a while loop with break", "nested loops", "a list comprehension", "a dictionary", "a set",
    "string slicing", "string methods", "sorting with a key", "a recursive function", "a generator", "enumerate",
    "zip", "tuple unpacking", "integer division and remainder", "bit operations", "a nested list", "a default argument",
    "a closure", "a class with a method", "try and except", "a lambda", "chained comparisons", "f-strings",
    "list methods", "boolean logic",
)  # fmt: skip
QUESTION = "What exactly does this Python program print?\n```python\n{program}\n```"
WIN, LOSS = 1.0, -1.0
TIMES = (981_173_106.0, 1_893_553_445.0)
"""The clock of odd and even runs, in seconds since 1970."""


@dataclass(frozen=True)
class Limits:
    """Limits of a program."""

    characters: int
    output: int
    """Characters of the output."""
    cpu_seconds: float = 1.0
    memory: int = 1 << 30
    """Bytes."""

    @property
    def nodes(self) -> int:
        """Nodes of the syntax tree."""
        return self.characters // 2


def load(config: schema.TaskConfig) -> CodeGameTask:
    """The task at ``config.level``. Raises TaskError for an unknown template."""
    frame = make_frame(config, {"compact": COMPACT}, default="compact")
    return CodeGameTask(
        name="code_game", label="code_game", stop=frame.stop, rewards=("score",), config=config, frame=frame
    )


@dataclass(frozen=True)
class CodeGameTask(ProgramTask, AdversarialTask):
    """The writer's side of the game, and the referee."""

    @property
    def limits(self) -> Limits:
        level, sandbox = self.config.level, self.sandbox
        return Limits(200 + 100 * level, 40 + 20 * level, min(1.0, sandbox.cpu_seconds), self.memory_bytes)

    def rows(self, split: Split) -> list[tuple[str, str, int]]:
        if split == "validation":
            raise NoSplitError("task code_game has no validation split: use test")
        return _requests()[:HELD_OUT] if split == "test" else _requests()[HELD_OUT:]

    def problem(self, split: Split, index: int) -> Problem:
        one, other, lines = self.rows(split)[index]
        limits = self.limits
        question = (
            f"Write a Python program of at most {lines} lines that uses {one} and {other}. It reads nothing, imports "
            f"nothing that depends on chance or time, and prints at most {limits.output} characters, always the same. "
            f"It has at most {limits.characters} characters and no number above {MAX_NUMBER}. Somebody will read it "
            "and say what it prints: make that hard."
        )
        return self.frame.ask(self.config, index, question)

    def judge(self, attempt: Attempt) -> Verdict:
        """Without a reply a valid program has no score and is not right: ``no_opponent``."""
        play = self.play(attempt)
        metrics = {"code_game/valid": float(play.is_valid), **play.metrics}
        won = False
        reason = play.reason
        if play.output is not None:
            reason = "no_opponent"
        if play.output is not None and attempt.reply is not None:
            answer, predicted = prediction(attempt.reply, play.output)
            won, reason = not predicted, "predicted" if predicted else "ok"
            metrics["code_game/predicted"] = float(predicted)
            metrics["code_game/no_answer"] = float(answer is None)
            metrics["reward/avg_batch_reward"] = WIN if won else LOSS
            metrics["reward/successful_predictions_count"] = float(predicted)
        return Verdict(
            correct=won,
            formatted=play.is_valid,
            reason=reason,
            answer=play.source,
            score=None if reason not in ("ok", "predicted") else WIN if won else LOSS,
            metrics=metrics,
            facts={**play.facts, "reply": attempt.reply},
        )

    def play(self, attempt: Attempt) -> Play:
        """The referee's ruling on the program. Never raises because of a model's text."""
        program = program_of(attempt.completion, self.frame, truncated=attempt.truncated)
        if program.source is None:
            return Play("truncated" if attempt.truncated else "no_code")
        return referee(program.source, self.limits)

    def question(self, play: Play) -> Problem:
        """The opponent's problem for a valid play; the answer is expected in answer tags."""
        template = "chat" if self.config.template == "chat" else "r1"
        assert play.source is not None
        return ask(self.config, 0, QUESTION.replace("{program}", play.source), play.output or "", template=template)


def prediction(reply: str, output: str) -> tuple[str | None, bool]:
    """The output that an opponent's reply predicts (None: no answer), and whether it is correct; white space around
    lines and around the whole is ignored."""
    answer = last_tagged(reply)
    return answer, answer is not None and _plain(answer).strip() == _plain(output).strip()


@lru_cache(maxsize=8192)
def referee(source: str, limits: Limits) -> Play:
    """Apply the rules to a program and run it; cached, so that judging it later does not run it again."""
    if len(source) > 4 * limits.characters:
        return Play("too_big")  # including comments: a longer text is not parsed
    try:
        tree = parse_program(source)
        shown = ast.unparse(_without_docstrings(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Play("syntax_error")
    metrics = {"code_game/program_characters": float(len(shown)), "code_game/program_nodes": float(_nodes(tree))}
    facts: dict[str, Any] = {"imports": sorted(set(_imports(tree)))}
    if reason := _broken_rule(tree, shown, limits):
        return Play(reason, shown, None, metrics, facts)

    def run(seed: int) -> ProgramResult:
        return run_program(
            _displaced(shown, seed),
            cpu_seconds=limits.cpu_seconds,
            memory=limits.memory,
            hash_seed=str(seed),
            fake_time=TIMES[seed % 2],
        )

    runs = [run(1)]
    first = runs[0]
    facts["isolation"] = first.isolation
    metrics |= denials(first.denials)
    if first.status != "ok":
        return Play(first.status, shown, None, metrics, facts)
    output = _plain(first.stdout)
    metrics["code_game/output_characters"] = float(len(output))
    if reason := _output_defect(output, shown, limits):
        return Play(reason, shown, None, metrics, facts)
    runs += [run(seed) for seed in range(2, 7 if _has_set(tree) else 3)]
    same = all((run.status, run.stdout) == (first.status, first.stdout) for run in runs)
    metrics["code_game/reproducible"] = float(same)
    if not same:
        return Play("not_reproducible", shown, None, metrics, facts)
    return Play("ok", shown, output, metrics, {**facts, "output": output})


def _broken_rule(tree: ast.Module, shown: str, limits: Limits) -> str:
    """The rule that a program's text breaks; "" if it keeps all."""
    if not tree.body:
        return "no_code"
    if len(shown) > limits.characters or _nodes(tree) > limits.nodes:
        return "too_big"
    if set(_imports(tree)) - IMPORTS:
        return "forbidden_import"
    if any(_is_forbidden(node) for node in ast.walk(tree)):
        return "forbidden_name"
    if _SPECIAL_TOKEN.search(shown):
        return "special_token"
    return "large_constant" if any(_is_large(node) for node in ast.walk(tree)) else ""


def _output_defect(output: str, shown: str, limits: Limits) -> str:
    """The rule that an output breaks; "" if it keeps all."""
    if not output:
        return "no_output"
    if len(output) > limits.output:
        return "output_too_long"
    if any(tag in output for tag in (OPEN_ANSWER, CLOSE_ANSWER)):
        return "answer_tag"  # a reply could not contain it
    if not all(line.replace("\t", "").isprintable() for line in output.split("\n")) or "\ufffd" in output:
        return "unprintable"
    if _SPECIAL_TOKEN.search(output):
        return "special_token"
    if _ADDRESS.search(output):
        return "address"
    if _LONG_NUMBER.search(output):
        return "long_number"
    return "" if any(line and not _is_copied(line, shown) for line in output.split("\n")) else "copied"


def _nodes(tree: ast.Module) -> int:
    return sum(1 for _ in ast.walk(tree))


def _imports(tree: ast.Module) -> Iterator[str]:
    """Top-level names of the modules that a program imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or ".").partition(".")[0]


def _is_forbidden(node: ast.AST) -> bool:
    names: list[str] = []
    if isinstance(node, ast.Name):
        names = [node.id]
    elif isinstance(node, ast.Attribute):
        names = [node.attr]
    elif isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names]
    for name in names:
        is_dunder = name.startswith("__") and name.endswith("__") and name not in DUNDERS
        if is_dunder or name in FORBIDDEN or (not isinstance(node, ast.Name) and name.strip("_") in INNER):
            return True
    return False


def _displaced(source: str, seed: int) -> str:
    """The program after objects that displace its own in memory, because ``repr`` shows addresses.

    They have many sizes, are made at compile time and at run time, and have a name that no program may use.
    """
    texts = ",".join(repr("x" * size + str(count)) for size in range(64) for count in range(seed))
    made = f"[(object(), 0.5 * n, bytes(16 * k)) for k in range(30) for n in range({3 * seed})]"
    return f"__elsewhere__ = {texts}, {made}\n{source}"


def _is_large(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, (str, bytes)):
        return len(value) > MAX_TEXT
    return isinstance(value, (int, float, complex)) and not abs(value) <= MAX_NUMBER


def _has_set(tree: ast.Module) -> bool:
    """Whether a program may have a set; keys and items of dictionaries count, because set operations return sets."""
    names, attributes = ("set", "frozenset"), ("keys", "items", "abc")
    return any(
        isinstance(node, (ast.Set, ast.SetComp))
        or (isinstance(node, ast.Name) and node.id in names)
        or (isinstance(node, ast.Attribute) and node.attr in attributes)
        for node in ast.walk(tree)
    )


def _without_docstrings(tree: ast.Module) -> ast.Module:
    """The tree without string statements; it has no comments."""
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if isinstance(statements, list):
                kept = [each for each in statements if not _is_string(each)]
                empty = block == "body" and statements and not kept and node is not tree
                setattr(node, block, [ast.Pass()] if empty else kept)
    return tree


def _is_string(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, (str, bytes))
    )


def _is_copied(line: str, source: str) -> bool:
    return len(line) >= MIN_COPIED and line in source


def _plain(text: str) -> str:
    """Text without trailing white space of lines and empty lines at both ends."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


@lru_cache(maxsize=1)
def _requests() -> list[tuple[str, str, int]]:
    pairs = [(one, other) for one, other in itertools.permutations(FEATURES, 2)]
    rng = random.Random("code game")
    rng.shuffle(pairs)
    return [(one, other, rng.randint(4, 10)) for one, other in pairs]


TASK = TaskKind("code_game", "Programs whose output another model cannot predict", load)
