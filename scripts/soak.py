"""Run the long tests in named parts, and remember which parts passed for which sources. Standard library only.

    soak.py          every part that has not passed with today's sources; a call after an interruption continues
    soak.py link     the parts named ``link`` or ``link-…``, also those that passed
    soak.py list     all parts: state, age, and minutes of the last run

Each file of tests/soak is a part with the file's name. A file that takes longer than 20 minutes is split: SHARES is
the number of parts that divide its tests, LOOPS the parts of a test that repeats. The part ``image`` runs tests of the
engine with the libraries of a GPU image. A part passes for the hash of SOURCES: any change there makes every part due
again. Versions of libraries are not in the hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCES = ("grpo_train", "remote", "grpo_tui", "tests", "config", "pyproject.toml")
STATE = REPOSITORY / ".soak" / "state.json"
LIMIT_MINUTES = 20
SHARES = {"edges_inputs": 20, "floods": 5, "ladder_learning": 2, "learning": 2, "link_jobs": 8, "slurm": 2, "vllm": 2}
LOADS = ("fast", "many", "trickle", "rotating")
LOOPS: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "link_standing": {
        **{load: ("faults", {"LINK_LOAD": load, "LINK_FAULTS": "250"}) for load in LOADS},
        # An hour in three parts. Without this script LINK_HOUR_S=3600 makes it one.
        **{f"hour-{number}": ("hour", {"LINK_HOUR_S": "1140"}) for number in (1, 2, 3)},
    }
}
"""File to parts: the tests (``-k``) and the environment."""
SEARCH = {"app": ["tests/tui"], "link": ["tests/index", "tests/link", "tests/remote", "tests/supervisor"]}
"""Folders whose property tests look for new examples in one part; ``search-engine`` has all other folders."""
NEED_VLLM = ("vllm", "vllm_export")
IMAGE = ("tests/policy", "tests/rollout", "tests/platforms", "tests/tiny", "tests/train", "tests/gpu")
"""What the part ``image`` (``make test-image``) runs with the libraries of a GPU image."""


@dataclass(frozen=True)
class Part:
    """One call of pytest."""

    arguments: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    setup: str = ""
    """Option of scripts/setup.sh for what the part needs."""
    python: str = sys.executable


def parts() -> dict[str, Part]:
    """All parts by name."""
    found = {}
    for path in sorted((REPOSITORY / "tests" / "soak").glob("test_*.py")):
        stem = path.stem.removeprefix("test_")
        command = ["--timeout=3600", "-s", str(path.relative_to(REPOSITORY))]
        if stem in LOOPS:
            made = {name: Part([*command, "-k", tests], variables) for name, (tests, variables) in LOOPS[stem].items()}
        else:
            count, setup = SHARES.get(stem, 1), "--vllm" if stem in NEED_VLLM else ""
            shares = {"": {}} if count == 1 else {str(n): {"SOAK_SHARE": f"{n}/{count}"} for n in range(1, count + 1)}
            made = {name: Part(command, variables, setup) for name, variables in shares.items()}
        found |= {f"{stem}-{name}".strip("-").replace("_", "-"): part for name, part in made.items()}
    parallel = ["-n", "auto", "--dist", "worksteal"]
    found["image"] = Part([*parallel, *IMAGE], setup="--image", python=".image/bin/python")
    command = [*parallel, "-m", "hypothesis", "--hypothesis-profile=search"]
    elsewhere = [f"--ignore={folder}" for folders in SEARCH.values() for folder in folders]
    searches = {**SEARCH, "engine": ["tests", *elsewhere]}
    return found | {f"search-{name}": Part([*command, *folders]) for name, folders in searches.items()}


def sources_hash() -> str:
    """Hash of the names and contents of all files in SOURCES."""
    digest = hashlib.sha256()
    for source in SOURCES:
        top = REPOSITORY / source
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and path.suffix != ".pyc":
                content = path.read_bytes()
                digest.update(f"{path.relative_to(REPOSITORY)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def read_state() -> dict[str, Any]:
    try:
        return dict(json.loads(STATE.read_text()))
    except (OSError, ValueError):
        return {}


def record(name: str, **result: Any) -> None:
    """Replace the state of one part, read anew: two calls may run parts at the same time."""
    STATE.parent.mkdir(exist_ok=True)
    new = STATE.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps({**read_state(), name: result}, indent=1))
    new.replace(STATE)


def run(name: str, part: Part) -> bool:
    """Run one part and record how it ended. If sources change meanwhile, it passes for none."""
    print(f"soak: {name}", *(f"{key}={value}" for key, value in part.variables.items()), flush=True)
    if part.setup:
        subprocess.run(["bash", "scripts/setup.sh", part.setup], cwd=REPOSITORY, check=True)
    began, before = time.monotonic(), sources_hash()
    command = [part.python, "-m", "pytest", *part.arguments]
    passed = subprocess.run(command, cwd=REPOSITORY, env={**os.environ, **part.variables}).returncode == 0
    minutes = round((time.monotonic() - began) / 60, 1)
    sources = before if sources_hash() == before else "changed"
    record(name, passed=passed, sources=sources, minutes=minutes, at=time.time())
    note = f"; longer than {LIMIT_MINUTES} minutes: split it in scripts/soak.py" if minutes > LIMIT_MINUTES else ""
    print(f"soak: {name} {'passed' if passed else 'FAILED'} in {minutes} minutes{note}", flush=True)
    return passed


def show(known: dict[str, Part], state: dict[str, Any], sources: str) -> None:
    """Print a line per part."""
    for name in known:
        line = f"{name:<24}never ran"
        if result := state.get(name):
            outcome = "passed" if result["passed"] else "failed"
            outcome += "" if result["sources"] == sources else " for other sources"
            hours = (time.time() - result["at"]) / 3600
            line = f"{name:<24}{outcome:<26}{hours:6.1f} h ago{result['minutes']:7.1f} min"
        print(line)


def main(wanted: list[str]) -> int:
    """Exit code: 0 if every part that ran passed."""
    known, state, sources = parts(), read_state(), sources_hash()
    if wanted == ["list"]:
        show(known, state, sources)
        return 0
    chosen = [name for name in known if any(name == part or name.startswith(f"{part}-") for part in wanted)]
    if wanted and not chosen:
        print(f"soak: no part {' '.join(wanted)}; the parts are {', '.join(known)}", file=sys.stderr)
        return 2
    if not wanted:
        tried = {name: result["passed"] for name, result in state.items() if result["sources"] == sources}
        due = [name for name in known if not tried.get(name)]
        chosen = sorted(due, key=lambda name: name in tried)  # those that failed are repeated last
        print(f"soak: {len(known) - len(due)} of {len(known)} parts passed with these sources", flush=True)
    failed = [name for name in chosen if not run(name, known[name])]
    print(f"soak: {len(chosen) - len(failed)} passed; {len(failed)} failed {' '.join(failed)}".rstrip())
    return bool(failed)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("soak: interrupted; the next call continues with this part", file=sys.stderr)
        sys.exit(130)
