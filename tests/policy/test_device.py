"""GPUs that torch cannot use stop a start, with both versions and the fix. Simulated: no GPU is needed."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config import load_config
from grpo_train.policy import device
from grpo_train.policy.device import MINIMUM_DRIVERS, TorchFacts, check_device, find_problem, probe_torch, runs_on
from grpo_train.policy.locate import PolicyError
from grpo_train.run_dir import gpus
from grpo_train.run_dir.gpus import Gpu
from grpo_train.train.preflight import check_start
from tests.support.engine import config_text

WORKING = TorchFacts("2.15.0+cu132", "13.2", True, ("sm_80", "sm_90", "sm_100"), ((9, 0), (9, 0)))
BROKEN = TorchFacts("2.15.0+cu132", "13.2", False, error="Found no NVIDIA driver on your system.\nDetails follow.")
CPU_BUILD = TorchFacts("2.15.0+cpu", None, False, error="Torch not compiled with CUDA enabled")
INSTALL = f"uv pip install --python {sys.executable} --no-config --torch-backend=auto --reinstall-package torch torch"


def h100(driver: str = "580.95.05", index: int = 0) -> Gpu:
    return Gpu(index, "NVIDIA H100", driver, 81559.0, 0.0, 0.0, 70.0, 30.0)


def fake_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put an ``nvidia-smi`` on PATH, and hide NVML."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(gpus, "_nvml", lambda: None)


def smi_with_driver(driver: str) -> str:
    """A script for one H100."""
    row = f"0, GPU-a, NVIDIA H100, {driver}, 81559, 0, 0, 70.0, 30"
    return f'case "$1" in --query-gpu=*) echo "{row}";; esac'


def fake_probe(monkeypatch: pytest.MonkeyPatch, facts: TorchFacts) -> None:
    monkeypatch.setattr(device, "probe_torch", lambda: facts)


@pytest.fixture(autouse=True)
def no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "has_device_files", lambda: False)
    monkeypatch.setattr(device, "has_device_files", lambda: False)


@pytest.mark.parametrize(
    ("cuda", "driver", "too_old"),
    [
        ("11.8", "450.51.06", True),
        ("11.8", "450.80.02", False),
        ("12.1", "470.57.02", True),
        ("12.8", "525.60.13", False),
        ("13.0", "570.124.06", True),
        ("13.2", "580.65.06", False),
        ("13.2", "1000.1", False),
        ("14.0", "400.1", False),  # not in the table: another reason is given
    ],
)
def test_driver_table(cuda: str, driver: str, too_old: bool) -> None:
    torch = TorchFacts("2.9.0", cuda, False)
    assert ("is too old" in find_problem([h100(driver)], torch, 1)) == too_old


def test_old_driver_message_has_both_versions_and_the_fix() -> None:
    problem = find_problem([h100("570.124.06")], BROKEN, 1)
    assert problem.startswith("driver 570.124.06 is too old for torch 2.15.0+cu132, built for CUDA 13.2")
    assert f"needs driver {MINIMUM_DRIVERS[13]} or newer" in problem
    assert INSTALL in problem


def test_a_working_gpu_has_no_problem() -> None:
    assert find_problem([h100()] * 2, WORKING, 2) == ""


def test_forward_compatibility_is_accepted() -> None:
    """A compatibility package lets an old driver run a newer CUDA: torch works, so the table is not asked."""
    assert find_problem([h100("535.104.05")], WORKING, 1) == ""


def test_unknown_architecture_is_a_problem() -> None:
    old_gpu = TorchFacts("2.15.0+cu132", "13.2", True, ("sm_75", "sm_80"), ((6, 1),))
    problem = find_problem([h100()], old_gpu, 1)
    assert "not built for compute capability 6.1" in problem
    assert "only for sm_75 sm_80" in problem
    assert INSTALL in problem


@pytest.mark.parametrize(
    ("architecture", "capability", "fits"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 3), True),
        ("compute_80", (12, 0), True),
        ("compute_90", (9, 0), True),
        ("compute_90", (8, 0), False),
        ("gfx90a", (9, 0), False),
    ],
)
def test_architecture_rules(architecture: str, capability: tuple[int, int], fits: bool) -> None:
    assert runs_on(("gfx90a", architecture), capability) == fits, "after one that is not NVIDIA's"


def test_more_processes_than_gpus() -> None:
    problem = find_problem([h100()] * 2, WORKING, 3)
    assert problem.startswith("run.nproc is 3, but torch sees 2 GPU(s)")
    assert "set run.nproc to 2" in problem


def test_a_cpu_build_beside_a_gpu() -> None:
    problem = find_problem([h100()], CPU_BUILD, 1)
    assert problem.startswith("torch 2.15.0+cpu is a CPU build, but this machine has NVIDIA H100, driver 580.95.05")


def test_hidden_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES '' hides every GPU" in find_problem([h100()], BROKEN, 1)


def test_any_other_failure_shows_the_reason_of_torch() -> None:
    problem = find_problem([h100(), h100(index=1)], BROKEN, 1)
    assert "cannot use 2 x NVIDIA H100, driver 580.95.05: Found no NVIDIA driver on your system.;" in problem


# ------------------------------------------------------------------------------------------------------- check_device


def test_without_gpu_torch_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "_nvml", lambda: None)
    monkeypatch.setattr(device, "probe_torch", None)
    check_device("auto", 4)


def test_cpu_ignores_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "query_gpus", None)
    check_device("cpu", 4)


def test_cuda_without_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "_nvml", lambda: None)
    fake_probe(monkeypatch, BROKEN)
    with pytest.raises(PolicyError, match=r"this machine has no GPU; set model.device: auto or cpu") as caught:
        check_device("cuda", 1)
    assert caught.value.code == "no_gpu"


@pytest.mark.parametrize("setting", ["auto", "cuda"])
def test_smi_sees_a_gpu_that_torch_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    fake_smi(tmp_path, monkeypatch, smi_with_driver("535.104.05"))
    fake_probe(monkeypatch, BROKEN)
    with pytest.raises(PolicyError, match=r"driver 535.104.05 is too old") as caught:
        check_device(setting, 1)
    assert caught.value.code == "no_gpu"
    assert str(caught.value).endswith("or set model.device: cpu to train on the CPU")


def test_a_device_file_without_smi_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "_nvml", lambda: None)
    monkeypatch.setattr(gpus, "has_device_files", lambda: True)
    monkeypatch.setattr(device, "has_device_files", lambda: True)
    fake_probe(monkeypatch, BROKEN)
    with pytest.raises(PolicyError, match="cannot use an NVIDIA GPU: Found no NVIDIA driver"):
        check_device("auto", 1)


def test_a_driver_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, monkeypatch, "echo 'could not communicate with the driver'; exit 9")
    with pytest.raises(PolicyError, match=r"could not communicate with the driver. Repair the driver") as caught:
        check_device("auto", 1)
    assert caught.value.code == "no_gpu"


def test_probe_reports_the_installed_torch() -> None:
    import torch

    facts = probe_torch()
    assert (facts.version, facts.cuda) == (torch.__version__, torch.version.cuda)
    assert facts.available == torch.cuda.is_available() == (facts.error == "")


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        ("raise ImportError('libcudart.so is missing')", "torch does not load: ImportError: libcudart.so is missing"),
        ("pass", "torch did not report its GPUs: list index out of range"),
        ("print('a warning')", "torch did not report its GPUs: Expecting value"),
    ],
)
def test_a_torch_that_does_not_load(monkeypatch: pytest.MonkeyPatch, probe: str, message: str) -> None:
    monkeypatch.setattr(device, "_PROBE", probe)
    probe_torch.cache_clear()
    with pytest.raises(PolicyError, match=message):
        probe_torch()


def test_a_start_checks_the_device_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, monkeypatch, smi_with_driver("535.104.05"))
    fake_probe(monkeypatch, BROKEN)
    with pytest.raises(PolicyError, match=r"driver 535.104.05 is too old"):
        check_start(load_config(config_text()), tmp_path, None)


# -------------------------------------------------------------------------------------------------------- pick_device


def test_a_training_process_refuses_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume on another box reaches no start check."""
    import torch

    from grpo_train.policy.loading import pick_device

    fake_smi(tmp_path, monkeypatch, smi_with_driver("535.104.05"))
    fake_probe(monkeypatch, BROKEN)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(PolicyError, match=r"driver 535.104.05 is too old"):
        pick_device("auto")


def test_a_rank_without_a_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from grpo_train.policy.loading import pick_device

    fake_smi(tmp_path, monkeypatch, smi_with_driver("580.95.05"))
    fake_probe(monkeypatch, WORKING)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(PolicyError, match=r"run.nproc is 3, but torch sees 2"):
        pick_device("auto", 2)


def test_cuda_turns_cudnn_attention_off(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from grpo_train.policy.loading import device_name, pick_device

    calls: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda picked: f"NVIDIA H100 {picked.index}")
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", calls.append)
    assert device_name(pick_device("cpu")) == "CPU"
    assert calls == []
    assert device_name(pick_device("auto", 1)) == "NVIDIA H100 1"
    assert calls == [False]
