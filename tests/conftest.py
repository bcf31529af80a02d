"""Shared by all tests: thread settings, a tiny model, and roots with it."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import setuptools  # noqa: F401 - torch's compiler imports it, which fails in a process where distutils came first
from hypothesis import HealthCheck, settings

from grpo_train.run_dir import RunDir, machine
from tests.support.data import data_file

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads starve the processes under test
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
for variable in ("LOCALFS_ROOT", "GRPO_RUN_ID", "GRPO_PARENT_PID"):
    os.environ.pop(variable, None)

# Examples may take long: tests assert behavior, never speed. A change is judged by the same examples on every machine;
# `make soak` searches for new ones.
# A test that suppresses a check of its own would bring back "too slow": what one of them needs is here for all.
SUPPRESSED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("search", deadline=None, suppress_health_check=SUPPRESSED, max_examples=1_000)
settings.register_profile("same", settings.get_profile("search"), derandomize=True, max_examples=100)
settings.load_profile("same")

MEMORY = Path("/dev/shm")
MEMORY_NEEDED = 10 << 30
"""Bytes."""
REPOSITORY = Path(__file__).resolve().parent.parent
CPU_AT_START = pytest.StashKey[float]()


@pytest.fixture(autouse=True)
def unchanged_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test fails that leaves this process changed: all tests after it would run so. Commands set their own umask."""
    os.umask(0o022)
    before, failed = what_tests_share(), request.session.testsfailed
    yield
    if request.session.testsfailed == failed:  # pytest-timeout takes its handler away from a test that failed
        assert what_tests_share() == before


def what_tests_share() -> dict[str, object]:
    """Of this process: priority, working directory, and handlers of signals."""
    handlers = {number.name: signal.getsignal(number) for number in signal.Signals}
    return {"priority": os.nice(0), "directory": os.getcwd(), **handlers}


@pytest.fixture(scope="session", autouse=True)
def usual_priority() -> Iterator[None]:
    """Commands that run in this process leave its priority: lowered, all tests after them would wait for others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "LOWEST", 0)
        yield


@pytest.fixture(scope="session")
def tiny_model(request: pytest.FixtureRequest) -> Path:
    """A tiny model whose sampled answers are sometimes correct, kept in pytest's cache."""
    from tests.support.tiny import kept_tiny_model

    assert request.config.cache is not None
    return kept_tiny_model(request.config.cache.mkdir("tiny-model"))


@pytest.fixture(scope="session")
def make_root(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Create a new root with the tiny model, for fixtures of any scope."""

    def make() -> Path:
        root = tmp_path_factory.mktemp("root")
        shutil.copytree(tiny_model, root / "models" / "tiny")
        return root

    return make


@pytest.fixture
def root(make_root: Callable[[], Path], request: pytest.FixtureRequest) -> Iterator[Path]:
    """A new root with the tiny model; that of a failed test stays."""
    made, failed = make_root(), request.session.testsfailed
    yield made
    if request.session.testsfailed == failed:
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session")
def micro_model(request: pytest.FixtureRequest) -> Path:
    """The model of :mod:`tests.support.micro`, kept in pytest's cache."""
    from tests.support.golden import kept_model

    assert request.config.cache is not None
    return kept_model(request.config.cache)


@pytest.fixture(scope="session")
def micro_player(request: pytest.FixtureRequest) -> Path:
    """A micro model that plays tic-tac-toe with mistakes."""
    from tests.support.golden import kept_model

    assert request.config.cache is not None
    return kept_model(request.config.cache, "tictactoe")


@pytest.fixture(scope="session")
def make_micro_root(micro_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Create a new root whose ``tiny`` is the micro model, for fixtures of any scope."""

    def make() -> Path:
        root = tmp_path_factory.mktemp("root")
        shutil.copytree(micro_model, root / "models" / "tiny")
        return root

    return make


@pytest.fixture
def micro_root(make_micro_root: Callable[[], Path]) -> Path:
    """A new root whose ``tiny`` is the micro model."""
    return make_micro_root()


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunDir]:
    """``golden("lora")``: a copy of a finished run of :mod:`tests.support.golden`, in a root of its own."""
    from tests.support.golden import copy_of

    cache = request.config.cache
    assert cache is not None
    return lambda name: copy_of(cache, name, tmp_path_factory.mktemp("golden") / "root")


@pytest.fixture(scope="session")
def gsm8k_dir() -> Path:
    """Directory of GSM8K's two files: the official ones, or eight rows each in the same format."""
    return data_file("gsm8k_test.jsonl").parent


def pytest_xdist_auto_num_workers() -> int:
    """Workers of ``-n auto``: one more than cores, as many tests wait for a process or a timer."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in memory, and collect garbage less often.

    A run of the suite writes 4 GB, flushed file by file. With torch and Textual in one process, collecting garbage
    would be a third of the processor time.
    """
    config.stash[CPU_AT_START] = cpu_seconds()
    gc.set_threshold(50_000, 20, 100)
    executable = MEMORY.is_dir() and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC  # some tests write programs
    if executable and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_NEEDED:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_finish() -> None:
    """What the tests import is not garbage."""
    gc.freeze()
    atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that read the official files through ``gsm8k_dir``."""
    for item in items:
        if "gsm8k_dir" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.official_data)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the run cost, tmux's children and all other processes included."""
    if used := cpu_seconds() - config.stash[CPU_AT_START]:
        terminalreporter.write_sep("-", f"{used:,.0f} CPU-seconds of everything in this control group")


def cpu_seconds() -> float:
    """Processor time of this process's control group; 0 where it cannot be read (another system than Linux)."""
    with suppress(OSError):
        places = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
        for controllers, place in places.items():
            if "cpuacct" in controllers.split(","):  # version 1
                return int(Path(f"/sys/fs/cgroup/cpuacct{place}/cpuacct.usage").read_text()) / 1e9
        return int(Path(f"/sys/fs/cgroup{places.get('', '/')}/cpu.stat").read_text().split()[1]) / 1e6
    return 0.0
