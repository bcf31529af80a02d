"""Starting weights, invalid starts and resumes, stops and failure reports."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo_train.config import load_config, with_changes
from grpo_train.run_dir import RunDir, RunDirError
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.version import FORMAT
from grpo_train.supervisor.resume import prepare_resume
from grpo_train.train.preflight import PlannedJob, check_start, kept_shape
from grpo_train.train.worker import main
from tests.support.engine import (
    DAMAGES,
    assert_same_run,
    command_here,
    config_text,
    damage,
    events,
    grpo_train,
    resume_here,
    rows,
    run_of,
    steps_logged,
    train_here,
    write_config,
)


def test_start_from_a_step_a_model_or_an_adapter(straight: RunDir) -> None:
    root = straight.root
    adapter = load_config(straight.config_file.read_text()).model.adapter
    step = straight.training_state / "step_6"
    cfg = write_config(
        root, "continue.yaml", model__adapter=adapter, run__total_steps=1, optimizer__learning_rate=1e-12
    )
    for name, ckpt in (("from_step", step), ("from_model", step / "model")):
        run = train_here(root, cfg, f"{name}_{adapter}", "--ckpt", str(ckpt))
        (saved,), (given,) = (
            [load_file(file) for file in (path / "model").glob("*.safetensors")]
            for path in (run.training_state / "step_1", step)
        )
        assert saved.keys() == given.keys()
        for key in saved:
            torch.testing.assert_close(saved[key], given[key], atol=1e-9, rtol=0)


def test_a_resume_with_changes_keeps_the_shape_of_its_adapter(root: Path) -> None:
    """``all-linear`` stays, though the adapter names its modules: nothing of the training has changed."""
    run = train_here(root, write_config(root, run__total_steps=1, model__adapter="lora"), "lora")
    words = ("--training-run", "lora", "--additional-steps", "1", "--set", "eval.num_problems=9", "--no-torchrun")
    done = grpo_train("resume", *words, root=root)
    assert done.returncode == 0, done.stdout + done.stderr
    logged = rows(run, "events.jsonl")
    (resumed,) = (list(event["changes"]) for event in logged if event["event"] == "resumed")
    assert resumed == ["run.total_steps", "eval.num_problems"]
    assert [event["differences"] for event in logged if event["event"] == "training"] == [[], []]
    before = load_config(run.config_file.read_text())
    with pytest.raises(UserError, match=r"model\.lora_rank cannot become 9 when a run resumes: .* saved with 4"):
        kept_shape(before, with_changes(before, model={"lora_rank": 9}))


def test_adapter_over_a_full_model_resumes(straight: RunDir) -> None:
    """Its base is the given model, not the backbone; resumes and restarts must find it."""
    if load_config(straight.config_file.read_text()).model.adapter == "lora":
        return
    cfg = write_config(straight.root, "over.yaml", model__adapter="lora", run__total_steps=2)
    ckpt = straight.training_state / "step_2"
    run = train_here(straight.root, cfg, "over", "--ckpt", str(ckpt), "--until", "1")
    info = json.loads((run.training_state / "step_1" / "training_info.json").read_text())
    assert info["base_model"]["name"] == "training_runs/straight/training_state/step_2/model"
    resume_here(run, total=2)
    whole = train_here(straight.root, cfg, "over_straight", "--ckpt", str(ckpt))
    assert_same_run(run, whole, 2)


def start_error(capfd: pytest.CaptureFixture[str], root: Path, *arguments: str) -> str:
    """Error message of a failed start, which must not leave a run."""
    before = sorted(os.listdir(root / "training_runs"))
    assert main([*arguments, "--root", str(root), "--run-name", "failing"]) == 1
    assert sorted(os.listdir(root / "training_runs")) == before
    error = capfd.readouterr().err
    assert "Traceback" not in error
    return error


def test_adapter_on_another_base_is_an_error(
    straight: RunDir, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if load_config(straight.config_file.read_text()).model.adapter == "none":
        return
    adapter = straight.training_state / "step_6"
    other = tmp_path / "other"
    shutil.copytree(straight.root / "models" / "tiny", other)
    weights = other / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    cfg = write_config(tmp_path, model__backbone=str(other), model__adapter="lora")
    error = start_error(capfd, straight.root, "--cfg", str(cfg), "--ckpt", str(adapter))
    assert "was trained on models/tiny, whose weights differ from" in error
    assert "set model.backbone (or --base)" in error
    cfg = write_config(tmp_path, model__adapter="none")
    error = start_error(capfd, straight.root, "--cfg", str(cfg), "--ckpt", str(adapter))
    assert "holds a LoRA adapter but model.adapter is 'none'" in error


def test_damaged_starting_weights_are_an_error(
    straight: RunDir, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ckpt = tmp_path / "step_6"
    shutil.copytree(straight.training_state / "step_6", ckpt)
    (file,) = (ckpt / "model").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    error = start_error(capfd, straight.root, "--cfg", str(straight.root / "small.yaml"), "--ckpt", str(ckpt))
    assert f"cannot be used: model/{file.name} has the wrong checksum" in error
    error = start_error(capfd, straight.root, "--cfg", str(straight.root / "small.yaml"), "--ckpt", str(tmp_path))
    assert "holds neither a peft adapter" in error


def test_resume_with_another_adapter_kind_is_an_error(
    straight: RunDir, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(straight.root, root, symlinks=True)
    run = run_of(root, "straight")
    config = run.config_file.read_text()
    swapped = {"adapter: none": "adapter: lora", "adapter: lora": "adapter: none"}
    old = next(text for text in swapped if text in config)
    run.config_file.write_text(config.replace(old, swapped[old]))
    prepare_resume(run, "3", 6)
    assert main(["--run-dir", str(run.path)]) == 1
    assert f"set model.{old}" in capfd.readouterr().err


def test_unknown_reward_weight_is_an_error(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cfg = write_config(root, algorithm__reward_weights={"acuracy": 2.0})
    assert main(["--cfg", str(cfg), "--root", str(root), "--run-name", "typo"]) == 1
    assert "'acuracy' is not a reward function of this run; did you mean accuracy?" in capfd.readouterr().err


def test_non_finite_weights_are_not_saved(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cfg = write_config(root, run__total_steps=4, optimizer__learning_rate=1e38, optimizer__warmup_steps=0)
    assert main(["--cfg", str(cfg), "--root", str(root), "--run-name", "blown_up"]) == 1
    error = capfd.readouterr().err
    assert "weights contain NaN or Inf after step" in error
    assert "(optimizer.learning_rate 1e+38)" in error
    for checkpoint in run_of(root, "blown_up").checkpoints():
        weights = load_file(next((checkpoint.path / "model").glob("*.safetensors")))
        assert all(torch.isfinite(value).all() for value in weights.values())


# -------------------------------------------------------------------------------------------------- resume errors


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_checkpoint_changes_nothing(straight: RunDir, tmp_path: Path, how: str) -> None:
    root = tmp_path / "root"
    shutil.copytree(straight.root, root, symlinks=True)
    run = run_of(root, "straight")
    message = damage(run.training_state / "step_5", how)
    before = sorted(os.listdir(run.training_state)), run.events_file.read_text()
    with pytest.raises(RunDirError) as caught:
        prepare_resume(run, "5", 6)
    assert message in str(caught.value)
    assert "other complete steps: 1, 2, 3, 4, 6; newest complete: step_6; resume with --from-step 6" in str(
        caught.value
    )
    assert (sorted(os.listdir(run.training_state)), run.events_file.read_text()) == before
    resume_here(run, "4")
    assert_same_run(run, straight, 6)


def test_finished_run_needs_additional_steps(straight: RunDir) -> None:
    with pytest.raises(RunDirError, match=r"has already reached step 6 of 6; train further with --additional-steps N"):
        prepare_resume(straight, "final", 6)


# ------------------------------------------------------------------------------------------------ stops and errors


def test_requested_stop_saves_and_ends(root: Path) -> None:
    from grpo_train.run_dir import create_run

    cfg = write_config(root, run__total_steps=50, run__save_every=50)
    run = create_run(root, {}, "stopped")
    run.config_file.write_text(cfg.read_text())
    run.request_stop(by="test")
    assert main(["--run-dir", str(run.path)]) == 0
    assert (steps_logged(run), [c.step for c in run.checkpoints()]) == ([1], [1])
    assert not run.stop_requested()
    assert events(run)[-2:] == ["saved", "stopped"]


def test_failure_report_and_status(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("grpo_train.train.update.policy_loss", lambda *args, **keys: 1 / 0)
    arguments = ["--cfg", str(write_config(root)), "--root", str(root), "--run-name", "broken"]
    assert main(arguments) == 1
    run = run_of(root, "broken")
    report = json.loads((run.path / "control" / "error_rank0.json").read_text())
    assert (report["code"], report["message"]) == ("internal", "ZeroDivisionError: division by zero")
    assert "ZeroDivisionError" in report["traceback"]
    status = run.read_status() or {}
    assert (status["state"], status["error"]["summary"]) == ("crashed", report["message"])
    assert (status["error"]["code"], status["format"], status["device"]) == ("internal", FORMAT, "CPU")
    assert "Traceback" in capfd.readouterr().err


def test_unmatched_lora_targets_are_an_error(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cfg = write_config(root, model__adapter="lora", model__lora_targets=["nothing_like_this"])
    assert main(["--cfg", str(cfg), "--root", str(root)]) == 1
    error = capfd.readouterr().err
    assert "error: model.lora_targets ['nothing_like_this']" in error
    assert "Traceback" not in error


def test_a_launch_for_nodes_without_a_network_checks_the_caches(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    check_start(load_config(config_text()), root, None, job=PlannedJob(1))
    two = PlannedJob(2, gpus=1)
    for changes, job, code in (
        ({"model__backbone": "nobody/no-such-model"}, PlannedJob(1), "no_model"),
        ({"task__name": "data", "task__path": "nowhere.jsonl"}, PlannedJob(1), "bad_task"),
        ({}, two, "bad_config"),
        ({"run__nproc": 4, "train__microbatch_size": 1}, two, "no_gpu"),
    ):
        with pytest.raises(UserError) as caught:
            check_start(load_config(config_text(**changes)), root, None, job=job)
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({}, "", "notes"),
        ({"notify__url": "$NO_SUCH_VARIABLE"}, "", "notify.url: $NO_SUCH_VARIABLE is not set on this machine"),
        ({"tracking__wandb": "online"}, "", "tracking.wandb: no API key, so nothing is sent"),
        ({"task__name": "nope"}, "bad_task", "task.name: unknown task 'nope'"),
        ({"model__backbone": "nope"}, "bad_model", "model.backbone 'nope'"),
        ({"task__name": "data", "task__path": "nowhere.jsonl"}, "bad_task", "'nowhere.jsonl' does not exist"),
        ({"task__rewards": ["ROOT/broken.py:reward"]}, "bad_task", "no_such_library"),
        ({"run__nproc": 3, "run__nodes": 2, "rollout__buffer_size": 6}, "bad_config", "run.nproc is 3"),
        ({"backup__every_save": True}, "no_destination", "no destination for backups"),
        ({"run__total_step": 1}, "bad_config", "run.total_step"),
    ],
)
def test_a_launch_is_checked_in_the_words_of_train(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, Any], code: str, message: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    (root / "broken.py").write_text("import no_such_library\n")
    cfg = root / "my.yaml"
    cfg.write_text(config_text(**changes).replace("ROOT", str(root)))
    launch = {"config_text": cfg.read_text(), "config_name": str(cfg)}
    done = command_here("check-launch", "--json", root=root, given=json.dumps(launch))
    answer = json.loads(done.stdout)
    assert message in done.stdout
    if code:
        assert answer["error"]["code"] == code
        trained = command_here("train", "--cfg", cfg, "--run-name", "mine", root=root)
        assert (done.returncode, trained.returncode) == (2, 2)
        assert trained.stderr == f"error: {answer['error']['message']}\n"
        assert not (root / "training_runs").exists()


def test_a_launch_from_weights_is_checked_with_them(root: Path) -> None:
    """``ckpt`` is below the root."""
    cfg = config_text()
    for ckpt, code in (("models/tiny", 0), ("models/none", 2)):
        launch = {"config_text": cfg, "ckpt": ckpt}
        done = command_here("check-launch", "--json", root=root, given=json.dumps(launch))
        assert done.returncode == code, done.stdout
        assert code == 0 or str(root / ckpt) in done.stdout
