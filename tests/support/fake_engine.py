#!/usr/bin/python3
"""A stand-in for ``grpo-train``: a supervisor that logs until a stop is requested.

The config text of the launch selects its behavior: ``obedient`` ends on SIGTERM; ``stubborn`` ignores it, and so do its
workers, which have their own sessions; ``deaf`` ignores a hangup; ``short`` exits at once with code 7; ``frugal``
writes no log, and survives a full disk. Each start of a supervisor appends its pid to ``starts``, beside the run's
directory of logs.

It starts in milliseconds: with the system's Python, as no wrapper of another one is in between, and with imports only
for commands that need them. An agent asks for the version again and again.
"""

import os
import sys

REPOSITORY = os.path.realpath(f"{__file__}/../../..")
WORKER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def short_answer(command: str) -> str:
    """What a command prints that does nothing else; "" for others."""
    if command == "--version":
        names: dict[str, str] = {}
        with open(f"{REPOSITORY}/grpo_train/run_dir/version.py") as file:
            exec(file.read(), names)
        return f"grpo-train {names['VERSION']} (format {names['FORMAT']})"
    return {"device": "CPU", "check-launch": "{}"}.get(command, "")


def main() -> int:
    command, arguments = sys.argv[1], sys.argv[2:]
    if answer := short_answer(command):
        print(answer)
        return 0
    if "--dry-run" in arguments:  # it cannot plan
        return 1
    import signal
    import subprocess
    import time
    from contextlib import suppress
    from pathlib import Path

    sys.path.insert(0, REPOSITORY)

    from grpo_train.run_dir import StatusWriter, open_run
    from grpo_train.run_dir.files import append_jsonl, utc_now
    from grpo_train.run_dir.machine import set_umask
    from grpo_train.run_dir.processes import RUN_ID_VARIABLE, run_id_of

    print("fake engine:", *sys.argv[1:], flush=True)
    set_umask()
    root = Path(arguments[arguments.index("--root") + 1])
    assert os.environ["LOCALFS_ROOT"] == str(root)
    if command in ("eval", "backup", "generate"):
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
