"""Saving beside training: what is written is the state of its step, unchanged by later steps."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_train.policy.loading import Policy
from grpo_train.run_dir import RunDir, create_run, manifest
from grpo_train.run_dir.manifest import HashedFile
from grpo_train.train import checkpoint
from grpo_train.train.checkpoint import CheckpointError, CheckpointSaver, HostMemory, load_extra, load_training_state
from grpo_train.train.distributed import World
from tests.support.engine import REPOSITORY, assert_same_run, environment, train_here, write_config
from tests.support.patience import PATIENCE
from tests.support.saving import EXTRA, Trainer, make_trainer, whole

ADAPTERS = ["none", "lora"]


@pytest.fixture(params=ADAPTERS)
def trainer(request: pytest.FixtureRequest, tiny_model: Path) -> Trainer:
    return make_trainer(tiny_model, request.param)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tmp_path / "root", {}, "one")


class Gate:
    """Holds every write to a checkpoint until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        write = HashedFile.write

        def held(file: HashedFile, data: bytes | bytearray | memoryview) -> int:
            self.reached.set()
            assert self.open.wait(60 * PATIENCE)
            return write(file, data)

        monkeypatch.setattr(HashedFile, "write", held)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def step(trainer: Trainer) -> None:
    for parameter in trainer.policy.trainable():
        parameter.grad = torch.full_like(parameter, 0.5)
    trainer.optimizer.step()
    trainer.scheduler.step()


def values(trainer: Trainer) -> list[torch.Tensor]:
    moments = [trainer.optimizer.state[each]["exp_avg"] for each in trainer.policy.trainable()]
    return [value.detach().clone() for value in [*trainer.policy.trainable(), *moments]]


def load(trainer: Trainer, run: RunDir, number: int, tiny_model: Path) -> Trainer:
    saved = run.checkpoint(number, deep=True)
    again = make_trainer(tiny_model, trainer.adapter, saved.path / "model")
    load_training_state(saved, again.optimizer, again.scheduler, World())
    return again


def test_steps_during_a_save_do_not_change_it(trainer: Trainer, run: RunDir, gate: Gate, tiny_model: Path) -> None:
    saver = CheckpointSaver(run, trainer.policy)
    logged: list[int] = []
    expected: dict[int, list[torch.Tensor]] = {}
    extra = {"buffer": {"ids": torch.zeros(3)}}
    for number in (1, 2):  # the second reuses the memory of the first
        expected[number] = values(trainer)
        extra["buffer"]["ids"].fill_(number)
        gate.open.clear()
        gate.reached.clear()
        saver.save(trainer.snapshot(number, extra=extra), lambda _: logged.append(whole(run)[-1]))
        assert gate.reached.wait(60 * PATIENCE)
        step(trainer)
        extra["buffer"]["ids"].fill_(-1)
        assert whole(run) == list(range(1, number)), "not visible before it is complete"
        gate.open.set()
        saver.wait()
    assert logged == [1, 2], "each was visible when it was logged"
    for number, wanted in expected.items():
        for mine, theirs in zip(values(load(trainer, run, number, tiny_model)), wanted, strict=True):
            assert torch.equal(mine, theirs)
        assert torch.equal(load_extra(run.checkpoint(number), "buffer")["ids"], torch.full((3,), float(number)))  # type: ignore[index]


def test_files_are_those_of_transformers_and_peft(trainer: Trainer, tmp_path: Path, run: RunDir) -> None:
    from safetensors.torch import load_file

    trainer.policy.save(tmp_path / "theirs")
    trainer.save(run, 1)
    mine, theirs = run.training_state / "step_1" / "model", tmp_path / "theirs"
    names = {path.name for path in theirs.iterdir()} - {"README.md"}  # peft's empty model card
    assert {path.name for path in mine.iterdir()} == names
    for name in names:
        if name.endswith(".safetensors"):
            ours, other = load_file(mine / name), load_file(theirs / name)
            assert ours.keys() == other.keys()
            assert all(torch.equal(ours[key], other[key]) and ours[key].dtype == other[key].dtype for key in ours)
        else:
            assert (mine / name).read_bytes() == (theirs / name).read_bytes(), name
    assert len(names) >= 4


@pytest.mark.parametrize("name", ["Qwen3", "Llama", "Gemma3Text", "Qwen3Moe"])
def test_other_architectures(name: str, tmp_path: Path) -> None:
    """Weights are named as transformers names them; experts, which it stores apart and computes together, are left to
    it."""
    import transformers
    from safetensors.torch import load_file

    config = getattr(transformers, f"{name}Config")(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, tie_word_embeddings=True, pad_token_id=0,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    weights = Policy(model, None, torch.device("cpu"), "").weights()
    if name == "Qwen3Moe":
        assert weights is None
        return
    saved = load_file(tmp_path / "model.safetensors")
    assert weights is not None
    assert weights.keys() == saved.keys()
    assert all(torch.equal(weights[key], saved[key]) for key in saved)


def test_no_file_is_read_to_be_hashed(trainer: Trainer, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> str:
        raise AssertionError(f"{path} is read")

    with monkeypatch.context() as context:
        context.setattr(manifest, "sha256", refused)
        trainer.save(run, 1, extra=EXTRA)
    assert whole(run) == [1]


def test_other_layouts_are_written_by_transformers(
    trainer: Trainer, run: RunDir, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    expected = values(trainer)
    monkeypatch.setattr(type(trainer.policy), "weights", lambda policy: None)
    CheckpointSaver(run, trainer.policy).save(trainer.snapshot(1), lambda _: None)
    assert whole(run) == [1], "complete when the call returns: the weights are not copied"
    assert all(map(torch.equal, values(load(trainer, run, 1, tiny_model)), expected))


def test_without_room_for_a_copy_training_waits(
    trainer: Trainer, run: RunDir, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    monkeypatch.setattr(checkpoint, "free_bytes", lambda device: 2**10)
    expected = values(trainer)
    saver = CheckpointSaver(run, trainer.policy)
    saver.save(trainer.snapshot(1), lambda _: None)
    assert whole(run) == [1]
    assert all(map(torch.equal, values(load(trainer, run, 1, tiny_model)), expected))


@pytest.mark.parametrize("call", ["check", "wait", "save"])
def test_a_failure_is_raised_where_training_looks(
    trainer: Trainer, run: RunDir, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: HashedFile, data: Any) -> int:
        raise OSError(28, "No space left on device")

    trainer.save(run, 1)
    saver = CheckpointSaver(run, trainer.policy)
    done: list[float] = []
    with monkeypatch.context() as context:
        context.setattr(HashedFile, "write", full)
        saver.save(trainer.snapshot(2), done.append)
        assert saver._thread is not None
        saver._thread.join()
    calls: dict[str, Callable[[], None]] = {
        "check": saver.check,
        "wait": saver.wait,
        "save": lambda: saver.save(trainer.snapshot(3), done.append),
    }
    with pytest.raises(CheckpointError, match=r"cannot save .*step_2: disk full .*\. Earlier checkpoints"):
        calls[call]()
    assert whole(run) == [1]
    assert not done
    saver.save(trainer.snapshot(3), done.append)  # raised once
    saver.wait()
    assert whole(run) == [1, 3]


def test_a_process_that_fails_completes_its_save(tmp_path: Path, tiny_model: Path) -> None:
    """An error of the next step does not take the checkpoint along."""
    script = f"""
import sys, threading
from pathlib import Path
from grpo_train.run_dir import create_run
from grpo_train.run_dir.manifest import HashedFile
from grpo_train.train.checkpoint import CheckpointSaver
from tests.support.saving import make_trainer
write = HashedFile.write
has_failed = threading.Event()
HashedFile.write = lambda file, data: (has_failed.wait(), write(file, data))[1]
sys.excepthook = lambda *error: (sys.__excepthook__(*error), has_failed.set())
trainer = make_trainer(Path({str(tiny_model)!r}), "none")
run = create_run(Path({str(tmp_path / "root")!r}), {{}}, "one")
CheckpointSaver(run, trainer.policy).save(trainer.snapshot(1), lambda _: None)
assert not run.checkpoints()
raise ValueError("the next step failed")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, env=environment(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "the next step failed" in done.stderr
    assert whole(RunDir(tmp_path / "root" / "training_runs" / "one")) == [1]


def test_training_goes_on_while_a_checkpoint_is_written(
    make_root: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps are logged while the first one's checkpoint waits for its disk; the run is the undisturbed one."""
    root = make_root()
    cfg = write_config(root, run__total_steps=4, run__save_every=3)
    straight = train_here(root, cfg, "straight")
    gate = Gate(monkeypatch)
    waited: list[int] = []
    wait = CheckpointSaver.wait

    def opens_the_gate(saver: CheckpointSaver) -> None:
        if gate.reached.is_set():
            waited.append(len((saver._run.logs / "train_log.jsonl").read_text().splitlines()))
            gate.open.set()
        wait(saver)

    monkeypatch.setattr(CheckpointSaver, "wait", opens_the_gate)
    run = train_here(root, cfg, "slow")
    assert waited[0] == 4, "step 4 was logged before training waited for step 3's checkpoint"
    assert whole(run) == [3, 4]
    assert_same_run(run, straight, 4)


# ------------------------------------------------------------------------------------------------------ the copies


def test_copies_keep_the_structure_and_share_what_is_shared() -> None:
    weight = torch.arange(6.0).view(2, 3)
    value = {"a": weight, "tied": weight, "view": weight.t(), "rows": [(weight[0], 3), None], "none": torch.empty(0)}
    memory = HostMemory()
    copied = memory.copy(value)
    assert copied["a"] is copied["tied"]
    assert copied["a"].data_ptr() != weight.data_ptr()
    assert torch.equal(copied["view"], weight.t())
    assert type(copied["rows"][0]) is tuple
    assert torch.equal(copied["rows"][0][0], weight[0])
    before = copied["a"].data_ptr()
    weight += 1
    assert copied["a"][0, 0] == 0
    again = memory.copy({**value, "rows": [(torch.zeros(9), 3)]})
    assert again["a"].data_ptr() == before, "the memory is kept"
    assert torch.equal(again["a"], weight)
    assert again["rows"][0][0].shape == (9,)


def test_room_counts_whole_blocks_of_page_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 bytes take 4,096."""

    class OfGpu(torch.Tensor):
        is_cuda = True

    value = [torch.zeros(1000).as_subclass(OfGpu)]
    for free, has_room in ((4095, False), (4096, True)):
        monkeypatch.setattr(checkpoint, "free_bytes", lambda device, free=free: 2 * free)
        assert HostMemory().has_room(value) is has_room


def test_room_counts_the_memory_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, value = HostMemory(), {"a": [torch.zeros(1000)]}
    monkeypatch.setattr(checkpoint, "free_bytes", lambda device: 2 * 3999)
    assert not memory.has_room(value)
    monkeypatch.setattr(checkpoint, "free_bytes", lambda device: 2 * 4000)
    assert memory.has_room(value)
    memory.copy(value)
    monkeypatch.setattr(checkpoint, "free_bytes", lambda device: 0)
    assert memory.has_room(value)
    assert not memory.has_room([value, torch.zeros(1)])
