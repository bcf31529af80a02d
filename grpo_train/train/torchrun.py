"""torchrun with a failure report.

``python -m grpo_train.train.torchrun REPORT [torchrun arguments]`` runs ``torchrun …``. If a worker fails, it writes
the JSON file REPORT with rank, pid, exit code and signal of each failed worker, which torchrun only prints.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from grpo_train.run_dir.files import atomic_write
from grpo_train.run_dir.garbage import end_at_once, pause_collection, resume_collection
from grpo_train.run_dir.processes import NODE_VARIABLE, PARENT_VARIABLE, die_with_parent
from grpo_train.run_dir.slurm_job import REQUEUE_VARIABLE


def main() -> int:
    report, *arguments = sys.argv[1:]
    die_with_parent()  # on SIGTERM torchrun ends its workers
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    if os.environ.get(REQUEUE_VARIABLE):  # torchrun would end its workers on signals that are for the supervisor
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    pause_collection()
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    resume_collection()
    try:
        torchrun.main(arguments)
    except ChildFailedError as error:
        failures = [
            {"rank": rank, "pid": failure.pid, "exit_code": failure.exitcode, "signal": failure.signal_name()}
            for rank, failure in error.failures.items()
        ]
        node = os.environ.get(NODE_VARIABLE) or os.environ.get("SLURM_NODEID", "0")
        node = node if "--standalone" not in arguments else "0"
        file = Path(report) if node == "0" else Path(report).with_suffix(f".{node}.json")  # each node its own
        atomic_write(file, json.dumps({"failures": failures}) + "\n")
        return 1
    return 0


if __name__ == "__main__":
    end_at_once(main())
