"""GPUs of evaluating processes: selection, and refusal of missing and busy ones."""

from __future__ import annotations

import pytest

from grpo_train.config.schema import Config
from grpo_train.evaluation.request import EvalError
from grpo_train.evaluation.workers import pool
from grpo_train.run_dir.gpus import Gpu


def gpu(index: int, *pids: int) -> Gpu:
    memory = dict.fromkeys(pids, 1.0)
    return Gpu(index, "NVIDIA H200", "570.0", 1.0, 1.0, 1.0, 1.0, 1.0, memory, f"GPU-{index}abc")


@pytest.mark.parametrize(
    ("setting", "devices"), [(None, ["0", "1"]), ("3,GPU-7", ["3", "GPU-7"]), ("5, 6, 7", ["5", "6"]), ("", ["", ""])]
)
def test_devices_are_the_first_visible_ones(setting: str | None, devices: list[str]) -> None:
    assert pool.devices({} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}, 2) == devices


def test_too_few_visible_devices_are_rejected() -> None:
    with pytest.raises(EvalError, match=r"eval.nproc 2: CUDA_VISIBLE_DEVICES lists 1 device"):
        pool.devices({"CUDA_VISIBLE_DEVICES": "0"}, 2)


@pytest.mark.parametrize(
    ("environment", "nproc", "code"),
    [
        ({}, 1, ""),
        ({}, 2, "busy"),
        ({}, 3, "no_gpu"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, 1, "busy"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, 1, "busy"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0"}, 1, ""),
        ({"CUDA_VISIBLE_DEVICES": ""}, 3, ""),
        ({"GRPO_RUN_ID": "/root/training_runs/one"}, 2, ""),
    ],
)
def test_missing_and_training_gpus_are_rejected(
    environment: dict[str, str], nproc: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPU 0 is evaluating, GPU 1 is training."""
    runs = {7: "/root/eval_runs/one_addition", 8: "/root/training_runs/one", 9: ""}
    monkeypatch.setattr(pool, "query_gpus", lambda: [gpu(0, 7, 9), gpu(1, 8)])
    monkeypatch.setattr(pool, "run_id_in", runs.__getitem__)
    monkeypatch.setattr(pool, "check_device", lambda setting, nproc: None)
    config = Config.model_validate({"eval": {"nproc": nproc}})
    if not code:
        pool.check_gpus(config, environment)
        return
    with pytest.raises(EvalError) as error:
        pool.check_gpus(config, environment)
    assert error.value.code == code
