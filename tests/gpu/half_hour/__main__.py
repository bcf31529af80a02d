"""``python -m tests.gpu.half_hour COMMAND``: half an hour on a GPU, in calls of at most ten minutes. See docs/gpu.md.

    prepare                 here: wheels of what the machine lacks in .whl, the tests' tiny model in .pytest_cache
    smoke                   there: a line for each check, then the tests of rollouts and gradients in what time is left
    measure                 there: a line for each measurement
    again smoke|measure [NAMES]   there: the named ones, separated by commas
    dry                     anywhere, on a CPU: both lists with a tiny model, to find errors of the scripts

Variables: GPU_BUDGET (seconds of the checks), GPU_ONLY (names, separated by commas), NO_PYTEST=1 (no tests after the
checks), GPU_DRY=1 (on a CPU), OUT (folder of the results).

The exit status is 0 only if nothing failed. This file installs the wheels, so it does not import the engine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
WHEELS = Path(".whl")
SITE = Path("/tmp/site")
"""Where the wheels are installed, on a machine that the session gives back."""
NEEDED = {
    "pydantic": "2.14.4", "pydantic_core": "2.50.5", "annotated_types": "0.8.0", "typing_inspection": "0.4.5",
    "dotenv": "1.2.4", "platformdirs": "4.14.8", "trl": "1.16.0", "datasets": "5.2.0", "dill": "0.4.1",
    "multiprocess": "0.70.19", "pytest_asyncio": "1.5.0", "typing_extensions": "4.16.0",
}  # fmt: skip
"""Modules that images with torch, transformers, peft and pytest lack, with the version of the wheel. The last one is
there, but too old for pydantic."""
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
CALL_S = 575
"""Seconds of a call."""
BUDGETS = {"smoke": 400, "measure": 560, "again": 540}
DRY_BUDGET = 3600
"""Of each list on a CPU, which other work may share."""
TESTS = ("tests/gpu/test_invariance.py", "tests/gpu/test_native.py")
LEAST_TESTS_S = 45
KEPT_BYTES = 15_000_000
"""Of the standard error of a call."""


def prepare() -> int:
    """Download the wheels and make the tiny model."""
    python = Path(sys.base_prefix) / "bin" / "python3"  # an environment of uv has no pip
    options = ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"]
    options += [word for name in PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    missing = 0
    for module, version in NEEDED.items():
        wheel = f"{'python-dotenv' if module == 'dotenv' else module.replace('_', '-')}=={version}"
        command = [str(python), "-m", "pip", "download", "-q", *options, "-d", str(WHEELS), wheel]
        if subprocess.run(command, cwd=REPOSITORY, capture_output=True).returncode:
            print(f"not found: {wheel}", flush=True)
            missing += 1
    from tests.support.tiny import kept_tiny_model

    model = kept_tiny_model(REPOSITORY / ".pytest_cache" / "d" / "tiny-model")
    print(f"{len(NEEDED) - missing} wheels in {WHEELS}, tiny model in {model.relative_to(REPOSITORY)}")
    return 1 if missing else 0


def install() -> dict[str, str]:
    """The environment of the checks; installs the wheels, without a network, where modules are missing."""
    path = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    if any(find_spec(module) is None for module in NEEDED) and (REPOSITORY / WHEELS).is_dir():
        if not (SITE / "pydantic").is_dir():
            options = ["-q", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--target", str(SITE)]
            wheels = map(str, sorted((REPOSITORY / WHEELS).glob("*.whl")))
            subprocess.run([sys.executable, "-m", "pip", "install", *options, *wheels], check=True)
        path.insert(0, str(SITE))
    threads = "1" if os.environ.get("GPU_DRY") else "8"
    return {
        "OMP_NUM_THREADS": threads, **os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip


def run_list(name: str, environment: Mapping[str, str], budget: float, log: str) -> bool:
    """Run a list of checks in a process of its own; whether nothing failed. Its standard error goes to ``log``."""
    out = Path(environment["OUT"])
    more = {"GPU_BUDGET": str(budget), "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    command = [sys.executable, "-m", f"tests.gpu.half_hour.{name}"]
    with (out / f"{log}.stderr").open("w+b") as errors:
        try:
            done = subprocess.run(
                command, env={**environment, **more}, stderr=errors, cwd=REPOSITORY, timeout=budget + 20
            )
            status = done.returncode
        except subprocess.TimeoutExpired:
            print(f"{name}: killed {budget + 20:.0f} s after its start", flush=True)
            status = 124
        size = errors.seek(0, os.SEEK_END)
        errors.seek(max(0, size - KEPT_BYTES))
        end = errors.read()
    (out / f"{log}.stderr").write_bytes(end)
    if status not in (0, 1):  # 1: the lines say what failed
        print(f"{name}: exit {status}\n{end.decode(errors='replace')[-2000:]}", flush=True)
    return status == 0


def run_tests(environment: Mapping[str, str], seconds: float) -> bool:
    """The tests of rollouts and gradients; whether they passed."""
    out = Path(environment["OUT"])
    print(f"== pytest, {seconds:.0f} s", flush=True)
    # A time limit of pytest would report a failing test twice there.
    options = ["-s", "-q", "-o", "timeout=0", "--tb=short", f"--junitxml={out / 'pytest.xml'}"]
    with (out / "pytest.txt").open("w") as report:
        command = [sys.executable, "-m", "pytest", *options, *TESTS]
        try:
            done = subprocess.run(
                command, env=environment, stdout=report, stderr=subprocess.STDOUT, cwd=REPOSITORY, timeout=seconds
            )
            is_passed = done.returncode == 0
        except subprocess.TimeoutExpired:
            report.write(f"killed after {seconds:.0f} s\n")
            is_passed = False
    words = ("FAILED", "ERROR", "differ", "mismatch", "times as", "completions", "passed", "failed", "killed")
    lines = (out / "pytest.txt").read_text(errors="replace").splitlines()
    print("\n".join([line for line in lines if any(word in line for word in words)][-40:]), flush=True)
    return is_passed


def run(mode: str, names: list[str]) -> int:
    """One call on the machine: ``smoke``, ``measure`` or ``again``."""
    began, is_dry = time.monotonic(), bool(os.environ.get("GPU_DRY"))
    environment = install()
    if mode == "again":
        environment["GPU_ONLY"] = ",".join(names[1:])
    which = names[0] if mode == "again" else mode
    budget = float(environment.get("GPU_BUDGET") or (DRY_BUDGET if is_dry else BUDGETS[mode]))
    out = Path(environment.get("OUT") or tempfile.mkdtemp(prefix="half_hour.out.")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    print(f"results in {out}, ready after {time.monotonic() - began:.0f} s", flush=True)
    with tempfile.TemporaryDirectory(prefix="half_hour.") as folder:
        # The runs of the checks do not belong among a user's.
        environment |= {"LOCALFS_ROOT": folder, "XDG_CONFIG_HOME": folder, "OUT": str(out)}
        is_good = run_list(which, environment, budget, mode)
    left = CALL_S - (time.monotonic() - began)
    if mode == "smoke" and not is_dry and not environment.get("NO_PYTEST") and left > LEAST_TESTS_S:
        is_good = run_tests(environment, left) and is_good
    print(f"== {time.monotonic() - began:.0f} s in all: {'nothing failed' if is_good else 'FAILED'}", flush=True)
    if is_dry and is_good and "OUT" not in os.environ:
        shutil.rmtree(out)
    if not is_dry and shutil.which("nvidia-smi"):
        subprocess.run(["nvidia-smi", "--query-gpu=name,clocks.sm,memory.used", "--format=csv,noheader"])
    return 0 if is_good else 1


def main(words: list[str]) -> int:
    match words:
        case ["prepare"]:
            return prepare()
        case ["smoke" | "measure" as mode]:
            return run(mode, [])
        case ["again", "smoke" | "measure", *_] if len(words) <= 3:
            return run("again", words[1:])
        case ["dry"]:
            os.environ.update(GPU_DRY="1", CUDA_VISIBLE_DEVICES="")
            return max(run("smoke", []), run("measure", []))
    print(__doc__)
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
