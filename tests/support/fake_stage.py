#!/usr/bin/env python3
"""A stage without torch: a process that does what its words say, as a supervisor sees it.

``fake_stage.py RUN WORD …``: ``train:N`` logs and saves the steps up to N; ``log:N`` logs the next N steps only;
``report:TEXT`` leaves the report of an exception and fails; ``exit:N``; ``killed`` and ``stopped`` by a signal of its
own; ``deaf`` prints SIGTERM and lives on, as does its worker; ``obeys`` waits until the run is stopping, clears the
request as a trainer does that has saved, and says so; ``waits`` for the file ``control/go``; ``hangs``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import append_jsonl, atomic_write, to_json, utc_now
from tests.run_dir.helpers import make_checkpoint

ORPHAN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def log_step(run: RunDir, step: int) -> None:
    append_jsonl(run.logs / "train_log.jsonl", {"step": step, "reward": 0.5, "time/step": 0.1})


def main() -> int:
    run = RunDir(Path(sys.argv[1]))
    for word in sys.argv[2:]:
        kind, _, value = word.partition(":")
        if kind == "train":
            run.log_event("training", device="cpu")
            for step in range(run.newest_step() + 1, int(value) + 1):
                log_step(run, step)
                make_checkpoint(run, step)
        elif kind == "log":
            for _ in range(int(value)):
                log_step(run, int(run.last_step_row().get("step", 0)) + 1)
        elif kind == "report":
            report = {"rank": 0, "time": utc_now(), "code": "internal", "message": value, "traceback": f"…{value}"}
            atomic_write(run.path / "control" / "error_rank0.json", to_json(report) + "\n")
            return 1
        elif kind == "exit":
            print("error: the store says no", file=sys.stderr)
            return int(value)
        elif kind in ("killed", "stopped"):
            os.kill(os.getpid(), signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
        elif kind == "deaf":
            signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM", flush=True))
            with subprocess.Popen(  # a worker has its own session
                [sys.executable, "-c", ORPHAN], start_new_session=True, stdout=subprocess.PIPE
            ) as worker:
                assert worker.stdout is not None
                worker.stdout.readline()
                print("deaf", flush=True)
                worker.wait()
        elif kind == "obeys":
            while not (run.stop_requested() and (run.read_status() or {}).get("state") == "stopping"):
                time.sleep(0.005)
            run.clear_stop()
            print("obeyed", flush=True)
        elif kind == "waits":
            print("waits", flush=True)
            while not (run.path / "control" / "go").exists():
                time.sleep(0.005)
        elif kind == "hangs":
            print("hangs", flush=True)
            signal.pause()
        else:
            raise ValueError(word)
    return 0


if __name__ == "__main__":
    sys.exit(main())
