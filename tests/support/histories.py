"""Runs of a root as history reads them, made without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo_train.history.database import Database, News
from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.files import append_jsonl, to_json, utc_from
from grpo_train.run_dir.verdict import RunVerdict

BEGAN = 1_790_000_000.0
"""When the first run was launched; each takes an hour."""
HOUR = 3600.0
COLLAPSED = RunVerdict("collapsed", 41, 50, "reward", 1.84, 0.31)


def make_run(
    root: Path,
    name: str,
    *,
    state: str = "finished",
    began: float = BEGAN,
    hours: float = 1.0,
    steps: int = 10,
    reward: float = 0.5,
    config: str = "",
    fallen: int | None = None,
    accuracy: tuple[float, ...] = (),
    **status: Any,
) -> RunDir:
    """A run that ran once, and was evaluated on gsm8k at as many steps as there are accuracies.

    ``fallen``: the step from which on its reward is 0.
    """
    run = create_run(root, {"argv": [name], "time": utc_from(began)}, name)
    ended = began + hours * HOUR
    run.config_file.write_text(
        "run:\n  total_steps: 20\ntask:\n  name: gsm8k\noptimizer:\n  learning_rate: 1.0e-05\n"
        f"rollout:\n  buffer_size: 4\n  num_generations: 8\n{config}"
    )
    run.events_file.unlink()
    append_jsonl(run.events_file, {"step": 0, "time": utc_from(began), "event": "launched"})
    if state in ("finished", "stopped", "crashed"):
        append_jsonl(run.events_file, {"step": steps, "time": utc_from(ended), "event": state})
    with (run.logs / "train_log.jsonl").open("w") as log:
        for step in range(1, steps + 1):
            at = began + hours * HOUR * step / steps
            share = reward * step / steps if step < steps else reward
            if fallen is not None and step >= fallen:
                share = 0.0
            row = {
                "step": step,
                "time": utc_from(at),
                "reward": share,
                "loss": 1 / step,
                "time/step": hours * HOUR / steps,
            }
            log.write(to_json(row) + "\n")
    fields = {
        "state": state, "started_at": utc_from(began), "updated_at": utc_from(ended), "run_seconds": hours * HOUR,
        "total_steps": 20, "nproc": 1, "device": "NVIDIA H200", **status,
    }  # fmt: skip
    run.status_file.write_text(json.dumps(fields))
    if accuracy:
        evaluate(run, accuracy, began=ended)
    return run


def evaluate(run: RunDir, accuracy: tuple[float, ...], began: float = BEGAN, hours: float = 0.5) -> None:
    """An evaluation of a run, a step per accuracy: 0, 10, 20, …"""
    folder = run.root / "eval_runs" / f"{run.name}_gsm8k"
    folder.mkdir(parents=True, exist_ok=True)
    status = {
        "state": "finished", "training_run": run.name, "dataset": "gsm8k", "started_at": utc_from(began),
        "updated_at": utc_from(began + hours * HOUR),
    }  # fmt: skip
    (folder / "status.json").write_text(json.dumps(status))
    lines = ["step,name,dataset,status,done,total,error,code,accuracy,ci_low,ci_high,n"]
    for index, value in enumerate(accuracy):
        step = 10 * index
        lines.append(f"{step},step_{step},gsm8k,ok,200,200,,,{value},{value - 0.03:.4f},{value + 0.03:.4f},200")
    (folder / "consolidated_metrics.csv").write_text("\n".join(lines) + "\n")


def fill_history(file: Path, now: float, box: str = "h200-a", run: str = "run_gsm8k_demo") -> Database:
    """A history of three boxes, one of which is gone, and of a backup; ``run`` is live on ``box``."""
    database = Database(file)
    for name, price in ((box, 2.49), ("a100-old", 1.10)):
        database.box_heard(name, "/data", {0.0: price}, now)
    database.box_up(box, (now - 30 * HOUR, now))

    def news(identity: str, where: str, name: str, state: str, ago: float, hours: float, **more: Any) -> News:
        began = now - ago * HOUR
        reward, config = more.pop("reward", 0.5), more.pop("config", {})
        summary = {
            "state": state, "step": 100, "total_steps": 200, "reward": reward, "launched_at": utc_from(began),
            "updated_at": utc_from(began + hours * HOUR), "run_seconds": hours * HOUR, "step_seconds": 36.0,
            "device": "NVIDIA H200", "nproc": 1, **more.pop("summary", {}),
        }  # fmt: skip
        return News(
            identity, where, more.pop("root", "/data"), name, summary=summary,
            config={"task.name": "gsm8k", "optimizer.learning_rate": 1e-5, "rollout.buffer_size": 4,
                    "rollout.num_generations": 8, **config},
            metrics={"reward": [reward, 0.1, reward], "kl": [0.02, 0.0, 0.1]}, **more,
        )  # fmt: skip

    def evaluations(*accuracies: float) -> list[dict[str, Any]]:
        rows = [
            {"step": 50.0 * index, "accuracy": value, "ci_low": value - 0.03, "ci_high": value + 0.03}
            for index, value in enumerate(accuracies)
        ]
        return [{"dataset": "gsm8k", "state": "finished", "rows": rows}]

    page = "https://wandb.ai/team/grpo-tui/runs/" + "a" * 16
    tracked = [{"event": "tracking", "time": utc_from(now - 9 * HOUR), "mode": "online", "url": page}]
    failed = {"event": "tracking_failed", "time": utc_from(now - 50 * HOUR), "error": "CommError: 401 Unauthorized"}
    database.write(
        [
            news("a" * 16, box, run, "running", 9.0, 9.0, reward=1.61, evaluations=evaluations(0.41, 0.55, 0.62),
                 events=tracked, backup="behind", spans=[(now - 9 * HOUR, now)], config={"tracking.wandb": "online"}),
            news("b" * 16, box, "lr_scan_high", "crashed", 26.0, 3.5, reward=0.31, backup="none",
                 summary={"error": "rank 1 was killed by SIGKILL (out of memory?)", "sweep": "lr_scan"},
                 spans=[(now - 26 * HOUR, now - 22.5 * HOUR)], config={"optimizer.learning_rate": 1e-4}),
            news("c" * 16, "a100-old", "night-2026-11-02", "finished", 52.0, 6.0, reward=1.4, backup="complete",
                 evaluations=evaluations(0.38, 0.52), events=[failed], spans=[(now - 52 * HOUR, now - 46 * HOUR)],
                 config={"tracking.wandb": "auto", "task.name": "math"},
                 summary={"note": "before the prompt changed", "verdict": COLLAPSED.to_json()}),
            news("d" * 16, "disk", "selfplay", "lost", 90.0, 2.0, reward=0.2, root="file:///mnt/backups",
                 backup="complete", parent="b" * 16, config={"task.name": "connect4"}),
        ]
    )  # fmt: skip
    return database
