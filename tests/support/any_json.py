"""Any JSON value in any field: frames and log lines of an honest box, with one field replaced."""

from __future__ import annotations

import copy
import math
from array import array
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from remote.protocol.box import pack_page
from remote.protocol.frames import pack
from remote.protocol.logs import COLUMNS

PLANTED = (
    "\x1b]52;c;cGxhbnRlZA==\x07\x1b]0;planted\x1b\\\x1bP+q706c\x1b\\\x1b_planted\x1b\\\x1b[31m\x9b31m"
    "\x9d52;c;cGxhbnRlZA==\x9c\x07\u202eplanted\u2066\u200f\u061c\u2028\x7f\x00"
)
MARKUP = "[/] [bold [@click=app.quit]planted[/x] $name \\[/]"


def nested(depth: int) -> Any:
    """A list in a list in a list …"""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


ODD: list[Any] = [
    None, True, "", 0, -1, 1e308, -1e308, 5e-324, 10**18, 2**63, 10**400, -(10**400), math.nan, math.inf, -math.inf,
    "NaN", "Infinity", "-Infinity", "1e999", "x" * 300, "x" * 20_000, PLANTED, MARKUP, "\udc1b", "9" * 400,
    "2026-13-45", "0001-01-01", "9999-12-31T23:59:59-23:59", [], {}, [None], ["x"], {"a": 1}, [[]], {"": ""},
    nested(40), nested(800), {"summary": 5}, {"summary": PLANTED, "console_tail": [PLANTED, MARKUP]},
    [{"message": 5}], [{"message": MARKUP}],
]  # fmt: skip
"""Values that broke something, or may."""

_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=20), st.sampled_from(ODD)
)
values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


def paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*above, key)
        yield from paths(item, (*above, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at a path; ``...`` removes it."""
    changed = copy.deepcopy(value)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    if new is ...:
        del parent[path[-1]]
    else:
        parent[path[-1]] = new
    return changed


@st.composite
def mutated(draw: st.DrawFn, templates: list[Any]) -> Any:
    """One of the templates, one field replaced or removed."""
    template = draw(st.sampled_from(templates))
    path = draw(st.sampled_from(list(paths(template))))
    return replaced(template, path, draw(st.just(...) | values))


ROW: dict[str, Any] = {
    "run": "middle", "state": "crashed", "host": "", "layout": "run", "step": 3, "total_steps": 9, "reward": 0.5,
    "step_seconds": 1.5, "logged_at": "2026-11-22T08:00:00Z", "started_at": None, "updated_at": "2026-11-22T08:00:00Z",
    "run_seconds": 60.0, "stage": "train", "exit_code": 1, "restarts": 0, "nproc": 2, "device": "CPU",
    "stop_asked": False, "launched_at": "2026-11-22T08:00:00Z", "note": "best", "alarm": "loss is NaN",
    "held_out": {"accuracy": 0.5, "dataset": "x", "step": 3, "best": 0.6, "best_step": 2},
    "error": {"code": "internal", "summary": "boom", "rank": 1, "signal": "SIGKILL", "console_tail": ["a", "b"]},
}  # fmt: skip
FIRST = {"run": "first", "state": "running", "step": 1}
LAST = {"run": "last", "state": "finished", "step": 2}
SESSION = {
    "name": "eval_middle", "run": "middle", "created": 1, "attached": 0, "dead": True, "exit_status": 1, "signal": "",
}  # fmt: skip
GPU = {
    "index": 0, "name": "NVIDIA H200", "utilization_percent": 94.0, "memory_used_mib": 1.0, "memory_total_mib": 2.0,
    "power_w": 612.0, "temperature_c": 61.0, "processes": [{"pid": 1, "memory_mib": 1.0, "run": "middle"}],
}  # fmt: skip
TABLE = {"step": "1", "status": "ok", "accuracy": "0.5", "ci_low": "0.4", "ci_high": "0.6", "done": "1", "total": "2"}
INDEXED = {"run": "r", "state": "coarse", "progress": 0.5, "rows": 7, "skipped": 0, "offset": 5}
SAMPLE = {
    "offset": 7, "step": 9, "group": 0, "sample": 1, "reward": 1.0, "advantage": "NaN", "length": 5, "correct": True,
    "formatted": None, "flexible": False, "truncated": False, "reason": "right",
}  # fmt: skip
RESULTS: dict[str, dict[str, Any]] = {
    "doctor": {"checks": [{"name": "tmux", "ok": False, "detail": "old", "hint": "new"}], "ok": False},
    "list_runs": {"runs": [ROW]},
    "show_run": {
        "run": "middle", "layout": "run", "path": "p", "summary": ROW, "status": {"a": 1}, "launch": {"b": 1},
        "config_text": "run: {}\n",
        "checkpoints": [{"step": 1, "complete": True, "problem": "", "aliases": ["latest"], "path": "p"}],
        "evaluations": [
            {"name": "middle_x", "state": "finished", "status": {}, "metrics": [TABLE, {**TABLE, "accuracy": ""}]}
        ],
        "baselines": [{"name": "@x_x", "dataset": "x", "model": "a/x", "metrics": [TABLE]}],
        "events": [{"step": 1, "time": "2026-11-22T08:00:00Z", "event": "launched"}],
        "superseded": {"train_log.jsonl": [[0, 10]]},
    },
    "compare_evaluations": {
        "comparisons": [
            {
                "name": "step_1", "run": "last", "dataset": "x", "step": 1, "n": 40, "difference": -0.1, "low": -0.2,
                "high": 0.0, "accuracy": 0.5, "gained": 1, "lost": 2, "p_value": 0.5,
            }
        ],
        "problems": ["step_2 of last is damaged"],
    },
    "report": {"page": pack_page(b"<html>a report</html>")},
    "run_facts": {
        "facts": [
            {"run": "middle", "config": {"run.seed": 1, "task.name": "x", "a.b": None}, "metrics": {"kl": "NaN"}},
            {"run": "last", "config": {"run.seed": 2.5, "a.b": True}, "metrics": {}},
        ],
        "same": {"model.backbone": "m"},
    },
    "note": {"run": "middle", "note": "best"},
    "list_configs": {"configs": [{"name": "a.yaml", "size": 1, "modified": "2026-11-22T08:00:00Z"}], "folder": "/f"},
    "read_config": {"name": "a.yaml", "text": "run: {}\n"},
    "list_tasks": {"tasks": {"addition": "sums", "mbpp": "programs"}},
    "list_weights": {"weights": [{"name": "w", "path": "models/w", "kind": "model", "modified": ""}]},
    "check_weights": {"path": "w", "kind": "model", "problem": ""},
    "capture_pane": {"session": "s", "text": "line\n"},
    "launch": {"run": "r", "session": "s", "argv": ["a"], "engine": "e", "started": True, "shell_argv": ["b"]},
    "series": {
        **INDEXED, "x": "step", "first": 1, "last": 9.0, "low": 1.0, "high": 9.0, "width": 2,
        "cursor": {
            "path": "p", "offset": 5, "head_length": 5, "head_sha256": "aa", "tail_sha256": "", "device": 1, "inode": 2,
        },
        "series": [
            {
                "metric": metric, "columns": pack([array("d", [1.0, 2.0])] * COLUMNS), "last": "NaN", "last_step": 9.0,
            }
            for metric in ("reward", "kl")
        ],
    },
    "metrics": {
        **INDEXED, "first_step": 1.0, "last_step": 9.0,
        "metrics": [
            {
                "name": "reward", "last": "NaN", "last_step": 9.0, "count": 5, "gaps": 1, "min": 0.0, "min_step": 2.0,
                "max": 1.0, "max_step": 3.0, "constant": False, "unusual": 3.5,
            }
        ],
    },
    "show_step": {
        "run": "r", "state": "whole", "step": 5.0, "offset": 7, "row": {"step": 5, "a": "b"}, "previous": 4.0,
        "next": None, "seconds": 3.0, "before": {"reward": 1.5}, "before_step": 1,
    },
    "level_changes": {
        "run": "r", "state": "whole", "levels": [{"x": 5.0, "step": 5, "before": 1.84, "after": 0.0}],
    },
    "problem_changes": {
        "run": "r", "state": "whole", "step": 5, "repeated": [
            {"problem": 7, "group": 0, "prompt": "p", "now": 0.0, "before": 1.0, "before_step": 2},
            {"problem": 8, "group": None, "prompt": "", "now": 0.5, "before": 1.0, "before_step": 2},
        ],
    },
    "rollout_steps": {
        **INDEXED, "first_step": 1, "last_step": 9, "total": 2, "length": 2,
        "table": pack([array("d", [1.0, 9.0])] * 6),
    },
    "rollout_step": {
        **INDEXED, "step": 9, "samples": [SAMPLE, {**SAMPLE, "reward": None}], "previous": 1, "next": None,
        "groups": [{"group": 0, "prompt": "p"}],
    },
    "samples": {
        "run": "r", "samples": [
            {
                **SAMPLE, "prompt": "p", "prompt_length": 1, "completion": "c", "completion_length": 1, "answer": "72",
                "gold": None, "role": None, "time": "", "rewards": {"accuracy": 1.0, "x": None}, "facts": {"a": [1]},
            }
        ],
    },
    "search_rollouts": {**INDEXED, "matches": [{**SAMPLE, "excerpt": "…x…"}], "searched": 0.5, "next": 7},
    "stop": {"run": "r", "state": "stopped"},
    "kill": {"left": [1], "forced": True, "run": "r"},
}  # fmt: skip
HELLO = {
    "type": "hello", "protocol": 1, "agent": "x", "engine": {"version": "0.2.0", "format": 2},
    "host": {"name": "h", "cpu_count": 2, "gpus": 1, "tmux": True, "root": "/r", "time": 1.7e9, "pid": 1},
}  # fmt: skip
UPDATES = [
    {"type": "update", "id": 1, "value": {"runs": [FIRST, ROW, LAST]}},
    {"type": "update", "id": 2, "value": {"sessions": [SESSION, {"name": "other", "dead": False}]}},
    {"type": "update", "id": 3, "value": {"gpus": [GPU, GPU], "note": "x"}},
    *({"type": "update", "id": i, "error": {"code": "io", "message": "gone", "hint": "mount it"}} for i in (1, 2, 3)),
]
"""The topics have the ids 1, 2 and 3 on every connection."""
LOG_ROWS: dict[str, list[dict[str, Any]]] = {
    "train_log": [
        {
            "step": 5, "time": "2026-11-22T08:00:00Z", "reward": 0.5, "loss": "NaN", "time/step": 2.0,
            "time/rollout": 1.0, "groups/all_correct": 0.1, "sandbox/isolation": "strong", "a/b/c": "x",
            "health": [{"code": "x", "level": "alarm", "message": "m", "n": 1}, "warning: old"],
        }
    ],
    "events": [{"step": 1, "event": "resumed", "superseded": {"train_log.jsonl": [0, 10], "rollouts.jsonl": [5, 9]}}],
    "rollouts": [
        {
            "step": 5, "time": "2026-11-22T08:00:00Z", "prompt": "p", "completion": "<think>c</think>", "reward": 1.0,
            "gold": "4",
        }
    ],
}  # fmt: skip
