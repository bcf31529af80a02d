"""The batch script of a run. It can be submitted by hand, too: ``sbatch training_runs/RUN/slurm.sh``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.slurm_job import REQUEUE_EXIT, REQUEUE_VARIABLE
from remote.agent.slurm.commands import options_text
from remote.protocol.slurm import JobOptions

SAVE_BEFORE_S = 120
"""SLURM sends SIGUSR1 this long before the time limit."""
LOG = "slurm.log"
"""In the run's logs: what script and supervisor print, and why the node's daemon ended them."""

_SCRIPT = """\
#!/bin/bash
{options}
# Written by grpo-tui. The supervisor saves on SIGUSR1 and SIGTERM and exits with {requeue}: the job is requeued.
exec >>{log} 2>&1 # also where --output was changed
cd {directory} || exit
{exports}
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && [ -e {config} ]; then
    set -- {again}
else
    set -- {first}
fi
child=
for name in TERM USR1 INT; do trap '[ -z "$child" ] || kill -s '$name' "$child" 2>/dev/null' "$name"; done
"$@" &
child=$!
while wait "$child"; kill -0 "$child" 2>/dev/null; do :; done
wait "$child"
code=$?
case $code in {requeue} | 138 | 143) # 138, 143: a signal came before the supervisor handled it
    case $(scontrol -o show job "$SLURM_JOB_ID") in *JobState=RUNNING*) # else SLURM itself has ended or requeued it
        if [ ! -e {killed} ] && scontrol requeue "$SLURM_JOB_ID"; then sleep 60; fi ;;
    esac ;;
esac
exit $code
"""


def batch_script(
    run: RunDir,
    options: JobOptions,
    note: str,
    directory: Path,
    environment: Mapping[str, str],
    first: Sequence[str],
    again: Sequence[str],
) -> str:
    """Text of the script.

    Args:
        note: comment of the job.
        directory: where commands run.
        environment: variables that they get.
        first: command of the first start.
        again: command after a requeue, once the run has a config.
    """
    log = run.logs / LOG
    arguments = [
        f"--job-name={run.name}",
        f"--comment={note}",
        f"--output={shlex.quote(str(log).replace('%', '%%'))}",  # %j and the like are patterns
        *("--open-mode=append", "--requeue", f"--signal=B:USR1@{SAVE_BEFORE_S}"),
        *options.arguments(),
    ]
    variables = {**environment, REQUEUE_VARIABLE: "1"}
    return _SCRIPT.format(
        options=options_text(arguments),
        requeue=REQUEUE_EXIT,
        log=shlex.quote(str(log)),
        directory=shlex.quote(str(directory)),
        exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        config=shlex.quote(str(run.config_file)),
        killed=shlex.quote(str(run.killed_file)),
        first=shlex.join(first),
        again=shlex.join(again),
    )
