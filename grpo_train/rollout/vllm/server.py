"""Where vLLM runs: a server that this process starts and ends, or one that is running already. Torch-free."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from grpo_train.config.schema import Rollout
from grpo_train.policy.locate import PolicyError
from grpo_train.rollout.vllm.client import QUICK_S, ServerGoneError, ServerRefusedError, call_server
from grpo_train.rollout.vllm.serve import FOLDER_VARIABLE
from grpo_train.run_dir.processes import RUN_ID_VARIABLE

START_S = 900.0
"""Longest start of a server: it loads and compiles the model."""
ENVIRONMENT = Path(__file__).parents[3] / ".vllm"
"""Where ``make setup-vllm`` installs vLLM."""
_DISTRIBUTED = re.compile(
    r"(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE)|GROUP_WORLD_SIZE|ROLE_NAME|MASTER_.*|TORCHELASTIC_.*"
)
"""torchrun's variables: a server is not a part of the training's process group."""
_SECRET = re.compile(r".*(?:TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY).*|AWS_.*|SSH_AUTH_SOCK")


class Server(Protocol):
    """A vLLM server with the base model, and what it has been given."""

    address: str
    folder: Path
    """Directory that this process and the server see."""
    model: str
    """The base model's name in requests."""
    holds: set[object]
    """Adapters by name, or the backend whose full weights it has; empty after a start."""

    def restart(self) -> bool:
        """Start a server that has ended again; False for one that is not ours."""
        ...

    @property
    def where(self) -> str:
        """For messages: the address, or the log."""
        ...


class RunningServer:
    """:class:`Server` at a URL."""

    def __init__(self, url: str, shared_dir: Path) -> None:
        """Raises PolicyError if it cannot be reached."""
        self.address = url
        self.holds: set[object] = set()
        check_url(url)
        try:
            self.model = call_server(url, "/v1/models", timeout_s=QUICK_S)["data"][0]["id"]
        except (ServerGoneError, ServerRefusedError, KeyError, IndexError, TypeError) as error:
            raise PolicyError(f"rollout.vllm_urls: {url} names no model: {error}") from error
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="grpo-vllm-", dir=shared_dir))
        except OSError as error:
            raise PolicyError(f"rollout.vllm_shared_dir {shared_dir}: {error.strerror}") from error
        self.folder.chmod(0o755)  # the server may be another user's
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)

    def restart(self) -> bool:
        return False

    @property
    def where(self) -> str:
        return self.address


class LocalServer:
    """:class:`Server` that this process starts, on a socket that only this user can reach."""

    def __init__(self, python: Path, options: Sequence[str], *, gpu: int | None) -> None:
        """Start it and wait until it answers.

        Args:
            python: interpreter of vLLM's environment.
            options: of ``vllm serve``.
            gpu: index among this process's GPUs; None = on the CPU.

        Raises PolicyError if it ends or does not answer in time.
        """
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="grpo-vllm-", dir=memory if os.access(memory, os.W_OK) else None))
        self.address = str(self.folder / "socket")
        self.model = "base"
        self.holds: set[object] = set()
        run = Path(os.environ.get(RUN_ID_VARIABLE, ""), "logs")
        self.log = (
            run if run.is_absolute() and run.is_dir() else self.folder
        ) / f"vllm_{os.environ.get('RANK', 0)}.log"
        self._command = [
            str(python), str(Path(__file__).with_name("serve.py")), *options,
            "--uds", self.address, "--served-model-name", self.model, "--disable-uvicorn-access-log",
        ]  # fmt: skip
        self._environment = _environment(self.folder, gpu)
        self._start()
        atexit.register(self.close)

    @property
    def where(self) -> str:
        return f"its log is {self.log}"

    def restart(self) -> bool:
        self._kill()
        self._start()
        return True

    def close(self) -> None:
        """End the server and remove its directory."""
        self._kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        self.holds.clear()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        Path(self.address).unlink(missing_ok=True)
        started = time.monotonic()
        with self.log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=self._environment,
                    cwd=self.folder, start_new_session=True,
                )  # fmt: skip
            except OSError as error:  # an environment that was removed
                raise PolicyError(f"cannot start {self._command[0]}: {error.strerror}") from error
        while True:
            with suppress(ServerGoneError):  # it loads its model
                call_server(self.address, "/health", timeout_s=QUICK_S)
                break
            if (status := self._process.poll()) is not None:
                reason = self._last_error()
                self._kill()
                raise PolicyError(f"vLLM ended with status {status} while it started: {reason}; {self.where}")
            if time.monotonic() - started > START_S:
                self._kill()
                raise PolicyError(f"vLLM did not start within {START_S / 60:.0f} minutes; {self.where}")
            time.sleep(0.2)
        version = (call_server(self.address, "/version", timeout_s=QUICK_S) or {}).get("version", "?")
        print(f"rollouts by vLLM {version}, started in {time.monotonic() - started:.0f} s; {self.where}", flush=True)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _last_error(self) -> str:
        """The last line of the log that names an exception."""
        lines = self.log.read_text(errors="replace").splitlines()
        found = [line for line in lines if re.search(r"\b\w+(?:Error|Exception): ", line)]
        return (found or lines or ["no output"])[-1].strip()[-300:]


def python_of(settings: Rollout) -> Path:
    """Interpreter of vLLM's environment. Raises PolicyError without one."""
    python = Path(settings.vllm_python).expanduser() if settings.vllm_python else ENVIRONMENT / "bin" / "python"
    test = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    with suppress(OSError):  # no such program
        if subprocess.run([python, "-c", test], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0:
            return python.absolute()
    raise PolicyError(
        f"rollout.backend: vllm needs an environment with vLLM, and {python} is none; make setup-vllm makes one in a "
        "checkout, rollout.vllm_python names another"
    )


def check_url(url: str) -> None:
    """Raise PolicyError if no server answers at ``url``."""
    try:
        call_server(url, "/health", timeout_s=QUICK_S)
    except (ServerGoneError, ServerRefusedError) as error:
        raise PolicyError(f"rollout.vllm_urls: no vLLM server answers at {url}: {error}") from error


def check_servers(settings: Rollout) -> None:
    """Raise PolicyError if ``rollout.backend: vllm`` has no environment, or a server that does not answer."""
    for url in settings.vllm_urls:
        check_url(url)
    if not settings.vllm_urls:
        python_of(settings)


def _environment(folder: Path, gpu: int | None) -> dict[str, str]:
    """Variables of a server: no secret, no part of the training's process group, no network."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    found = {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not _DISTRIBUTED.fullmatch(name) and not _SECRET.fullmatch(name)
    }
    found |= {
        FOLDER_VARIABLE: str(folder),
        "HF_HUB_OFFLINE": "1",  # the policy was loaded from the same files
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # for reload_weights; nobody else reaches the socket
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if gpu is None:
        found.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    else:
        visible = found.get("CUDA_VISIBLE_DEVICES")
        found["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)
    return found
