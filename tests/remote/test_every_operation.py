"""Each operation once over an agent of its own process, started from its bundle as on a box.

Only there an import fails that the bundle does not carry, or that needs the environment of a checkout.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from remote import gate
from remote.protocol import OPERATIONS, RemoteError
from tests.remote.conftest import FAKE_ENGINE
from tests.support.agent import RawAgent
from tests.support.backups import make_run
from tests.support.terminal import unlink_socket

LOG = "training_runs/one/logs/train_log.jsonl"
NONE = "0" * 32
WHERE = {"run": "one", "where": ["step", "=", 1]}
PARAMETERS: dict[str, dict[str, Any]] = {
    "show_run": {"run": "one"},
    "compare_evaluations": {"run": "one", "others": ["two"]},
    "report": {"runs": ["one"]},
    "run_facts": {"runs": ["one"]},
    "read_config": {"name": "demo.yaml"},
    "check_weights": {"path": "models"},
    "capture_pane": {"session": "shell"},
    "series": {"run": "one", "metrics": ["reward"]},
    "metrics": {"run": "one"},
    "verdict": {"run": "one"},
    "show_step": {"run": "one", "at": 1},
    "level_changes": {"run": "one", "metric": "reward"},
    "problem_changes": {"run": "one", "step": 1},
    "rollout_steps": {"run": "one"},
    "rollout_step": {"run": "one", "step": 1},
    "samples": {"run": "one", "offsets": [0]},
    "search_rollouts": WHERE,
    "log_files": {"run": "one"},
    "read_log": {"run": "one", "path": LOG},
    "search_log": {"run": "one", "path": LOG, "pattern": "reward"},
    "log_bytes": {"run": "one", "path": LOG},
    "gpu_history": {"run": "one", "low": 0, "high": 1},
    "stored_history": {"source": "disk"},
    "plan_resume": {"run": "one"},
    "plan_cleanup": {"run": "one"},
    "launch": {"config_text": "short"},
    "resume": {"run": "two"},
    "evaluate": {"run": "one"},
    "back_up": {"run": "one"},
    "back_up_all": {},
    "restore": {"run": "one"},
    "archive": {"run": "one"},
    "clean_up": {"run": "one"},
    "verify_backup": {"run": "one"},
    "stop": {"run": "one"},
    "kill": {"run": "one"},
    "open_ask": {"run": "one", "steps": [2], "idempotency_key": "key"},
    "ask": {"ask": NONE, "prompt": "1 + 1", "idempotency_key": "key"},
    "cancel_answer": {"ask": NONE, "question": NONE},
    "close_ask": {"ask": NONE},
    "note": {"run": "one", "text": "good"},
    "place_env": {"text": "A=1\n"},
    "open_tensorboard": {"run": "one"},
    "send_line": {"session": "shell", "line": "true"},
}
REFUSED = {
    **dict.fromkeys(
        ("list_destinations", "list_backups", "stored_history", "plan_resume", "plan_cleanup", "plan_back_up_all"),
        "no_answer",
    ),
    "stop": "not_running",
    "kill": "not_running",
    "ask": "ask_ended",
    "cancel_answer": "ask_ended",
    "set_up": "bad_request",
    "open_tensorboard": "no_tensorboard",
    "show_grant": "no_grant",
}
"""Code of each refusal: of the box, or because this engine does not answer."""
ENGINE = f"""\
#!/bin/sh
case "$1" in
tasks) echo '{{"tasks": {{"addition": "adds"}}}}' ;;
compare) echo '{{"comparisons": [], "errors": []}}' ;;
report) echo '<html></html>' > "$5" ;;
safe-to-terminate) echo '{{"safe": false, "kept": "", "obstacles": []}}' ;;
*) exec {FAKE_ENGINE} "$@" ;;
esac
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawAgent]:
    """An agent with two runs, a checkout with a config, and a shell."""
    root, repo = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("repo")
    for name in ("one", "two"):
        make_run(root, name, 2)
    (root / "models").mkdir()
    (repo / "config").mkdir()
    (repo / "config" / "demo.yaml").write_text("run: {total_steps: 1}\n")
    engine = repo / "grpo-train"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    tmux_socket = f"grpo-every-{secrets.token_hex(4)}"
    raw = RawAgent(root, process=True, engine=[str(engine)], repo=str(repo), tmux_socket=tmux_socket)
    assert raw.request("open_shell")["ok"]
    yield raw
    raw.close()
    subprocess.run(["tmux", "-L", tmux_socket, "kill-server"], capture_output=True, timeout=10)
    unlink_socket(tmux_socket)


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_operation_over_the_bundle(agent: RawAgent, op: str) -> None:
    answer = agent.request(op, **PARAMETERS.get(op, {}))
    try:
        gate.reply(op, answer)
        code = ""
    except RemoteError as error:
        code = error.code
    assert code == REFUSED.get(op, ""), answer
