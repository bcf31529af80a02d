"""Reading a machine: GPUs by nvidia-smi, disks, what it reaches, the models it has."""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from grpo_train.cli import app
from grpo_train.platforms import facts
from grpo_train.platforms.facts import CachedModel, GpuFacts, reach, read_gpu_facts, read_platform
from grpo_train.run_dir import gpus
from tests.support.engine import write_config

TWO_GPUS = """#!/bin/sh
case "$1" in
--query-gpu=index,uuid*) echo '0, GPU-a, Tesla V100-SXM2-16GB, 535.1, 16384, 0, 0, 40.0, 30'
    echo '1, GPU-b, NVIDIA H100 80GB HBM3, 535.1, 81559, 0, 0, 70.0, 31' ;;
--query-gpu=index,compute_cap) COMPUTE_CAP ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ``nvidia-smi`` of two GPUs, without NVML."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(TWO_GPUS.replace("COMPUTE_CAP", "printf '0, 7.0\\n1, 9.0\\n'"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "_nvml", lambda: None)
    return program


def test_gpus_by_nvidia_smi(smi: Path) -> None:
    assert read_gpu_facts() == (
        (
            GpuFacts("Tesla V100-SXM2-16GB", 16384.0, (7, 0), "535.1"),
            GpuFacts("NVIDIA H100 80GB HBM3", 81559.0, (9, 0), "535.1"),
        ),
        "",
    )


@pytest.mark.parametrize("visible", ["1", "GPU-b"])
def test_a_hidden_gpu_does_not_count(smi: Path, monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.name for gpu in read_gpu_facts()[0]] == ["NVIDIA H100 80GB HBM3"]


def test_a_driver_too_old_to_know_its_capability(smi: Path) -> None:
    smi.write_text(TWO_GPUS.replace("COMPUTE_CAP", "echo 'Field \"compute_cap\" is not a valid field' >&2; exit 2"))
    assert [gpu.compute_capability for gpu in read_gpu_facts()[0]] == [None, None]


def test_a_driver_that_does_not_answer(smi: Path) -> None:
    smi.write_text("#!/bin/sh\necho 'Unable to determine the device handle'; exit 15\n")
    found, problem = read_gpu_facts()
    assert not found
    assert "Unable to determine" in problem
    smi.write_bytes(b"\x7fELF")
    found, problem = read_gpu_facts()
    assert not found
    assert problem.startswith("nvidia-smi failed: ")


@pytest.mark.parametrize(
    ("program", "site"), [("LLsub", "supercloud"), ("sbatch", "slurm"), ("other", "plain")], ids=lambda word: word
)
def test_a_site_is_known_by_its_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, site: str
) -> None:
    (tmp_path / program).write_text("#!/bin/sh\n")
    (tmp_path / program).chmod(0o755)
    (tmp_path / "sbatch").touch(0o755)  # MIT's Supercloud runs SLURM
    if program == "other":
        (tmp_path / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert facts.read_machine().site.replace("lambda", "plain") == site


def test_what_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        assert reach("hub").problem == ""
        assert "refused" in reach("wandb").problem
    finally:
        server.shutdown()
        server.server_close()


def test_disks_and_cached_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for service in facts.SERVICES.values():
        monkeypatch.setenv(service, "http://127.0.0.1:9")
    for name, file in (("models--acme--tiny", "model.safetensors"), ("models--acme--none", "config.json")):
        folder = tmp_path / "hub" / name / "snapshots" / "0"
        folder.mkdir(parents=True)
        (folder / file).write_bytes(b"12345")
    found = read_platform(tmp_path / "not made yet")
    assert found.models == (CachedModel("acme/tiny", 5),)
    assert found.cpus >= 1
    assert any(disk.total_bytes > 0 for disk in found.disks)


def test_the_command_prints_facts_and_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for service in facts.SERVICES.values():
        monkeypatch.setenv(service, "http://127.0.0.1:9")
    words = ["platform", "--cfg", str(write_config(tmp_path)), "--root", str(tmp_path)]
    printed = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert printed["choices"][0]["key"] == "model.dtype"
    assert printed["cpus"] >= 1
    assert "model.dtype: auto ->" in CliRunner().invoke(app, words).stdout
