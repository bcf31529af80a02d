#!/usr/bin/env python3
"""A stand-in for ``grpo-train``: a supervisor that logs until a stop is requested.

The config text of the launch selects its behavior: ``obedient`` ends on SIGTERM; ``stubborn`` ignores it, and so do its
workers, which have their own sessions; ``deaf`` ignores a hangup; ``short`` exits at once with code 7; ``frugal``
writes no log, and survives a full disk. Each start of a supervisor appends its pid to ``starts``, beside the run's
directory of logs.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_train.run_dir import StatusWriter, open_run
from grpo_train.run_dir.files import append_jsonl, utc_now
from grpo_train.run_dir.processes import RUN_ID_VARIABLE, run_id_of
from grpo_train.run_dir.umask import set_umask
from grpo_train.run_dir.version import FORMAT, VERSION

WORKER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def main() -> int:
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == "--version":
        print(f"grpo-train {VERSION} (format {FORMAT})")
        return 0
    if command == "device":
        print("CPU")
        return 0
    if command == "check-caches":
        print("{}")
        return 0
    print("fake engine:", *sys.argv[1:], flush=True)
    set_umask()
    root = Path(arguments[arguments.index("--root") + 1])
    assert os.environ["LOCALFS_ROOT"] == str(root)
    if command in ("eval", "backup"):
        time.sleep(600)
    name = arguments[0] if command == "supervise" else arguments[arguments.index("--training-run") + 1]
    run = open_run(root, name)
    behavior = run.read_launch()["config_text"]
    if behavior == "short":
        return 7
    os.environ[RUN_ID_VARIABLE] = run_id_of(run.path)
    status = StatusWriter(run.path)
    with suppress(OSError), (run.path / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    if behavior == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", WORKER], start_new_session=True)
    if behavior == "deaf":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    status.update(state="running", total_steps=100, started_at=utc_now())
    step = 0
    while not run.stop_requested():
        step += 1
        if behavior != "frugal":
            append_jsonl(run.logs / "train_log.jsonl", {"step": step, "reward": 0.5})
        time.sleep(0.1)
    run.clear_stop()
    try:
        status.update(state="stopped")
    except OSError as error:
        print(f"cannot write status.json: {error.strerror}", flush=True)
    return 0


sys.exit(main())
