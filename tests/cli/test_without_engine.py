"""The laptop's installation, which has ``grpo-train`` without the engine's libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.engine import REPOSITORY, environment

PROGRAM = """
import contextlib, io, json, sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from packaging.requirements import Requirement

def key(name):
    return name.lower().replace("_", "-")

wanted, installed = ["grpo-tui"], set()
while wanted:
    name = key(wanted.pop())
    try:
        needs = [] if name in installed else distribution(name).requires or []
    except PackageNotFoundError:
        needs = []
    installed.add(name)
    wanted += [need.name for need in map(Requirement, needs) if not need.marker or need.marker.evaluate({"extra": ""})]
allowed = {top for top, names in packages_distributions().items() if installed & set(map(key, names))}
allowed |= {"grpo_train", *sys.stdlib_module_names}

class Laptop(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        is_installed = name.partition(".")[0] in allowed or name.startswith("_sysconfigdata")
        return PathFinder.find_spec(name, path, target) if is_installed else None

sys.meta_path[:] = [Laptop if finder is PathFinder else finder for finder in sys.meta_path]
from grpo_train import cli
for words in json.loads(sys.argv[1]):
    sys.argv = ["grpo-train", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = cli._run()
    print("FOUND", json.dumps([code, said.getvalue()]))
"""
RUN = ["--training-run", "one"]
NEEDING = [
    ["report", "one"], ["compare", *RUN, "--steps", "0,1"], ["eval", *RUN], ["eval", "--model", "tiny"],
    ["regrade", *RUN], ["export", *RUN], ["bench"], ["fit", "--cfg", "config/demo.yaml"],
    ["train", "--cfg", "config/demo.yaml"],
    ["resume", *RUN], ["sweep", "config/demo.yaml"], ["generate", *RUN, "--prompt", "1+1="], ["selftest"],
    ["check-dataset", "gsm8k"], ["check-dataset", "hf:acme/sums"], ["check-dataset", "a.parquet"],
    ["check-dataset", "a.jsonl", "--model", "tiny"], ["fetch-model", "acme/model", "--to", "model"],
]  # fmt: skip
WORKING = [
    ["--help"],
    ["runs"],
    ["history"],
    ["tasks"],
    ["schema"],
    ["check-dataset", "a.jsonl"],
    ["plan", "--cfg", "a.yaml"],
]


def test_commands_work_or_name_what_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    for name in ("a.yaml", "config/demo.yaml"):
        (tmp_path / name).write_text((REPOSITORY / "config" / "demo.yaml").read_text())
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"prompt": f"{n}?", "answer": n}) + "\n" for n in range(30)))
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([*NEEDING, *WORKING])],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line.removeprefix("FOUND ")) for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    advice = "is not installed in this environment; install the engine: "
    for words, (code, said) in zip(NEEDING, found, strict=False):
        assert (code, advice in said, said.count("\n")) == (2, True, 1), (words, said)
    for words, (code, said) in zip(WORKING, found[len(NEEDING) :], strict=True):
        assert (code, said) == (0, ""), (words, said)
