"""From a step's first forward pass to its last backward pass the host never waits for the device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_train.config import load_config
from grpo_train.config.schema import Config
from grpo_train.policy.loading import Policy, leave_casts_to_autocast
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.policy.transfer import ArrayTransfer, join_arrays, part_of, starts_of
from grpo_train.rollout import Completion
from grpo_train.train.buffer import RolloutBuffer
from grpo_train.train.gradients import GradientSum
from grpo_train.train.loop import accumulate_gradients
from grpo_train.train.token_metrics import TokenSums
from grpo_train.train.update import make_piece, microbatches, piece_loss
from tests.rollout.native.models import TOKENIZER, make_model
from tests.support.engine import config_text

GROUPS, GENERATIONS = 4, 4
READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal.default", "is_nonzero")
"""Operations whose result the host must wait for."""
CPU = torch.device("cpu")
SHORT = {"rollout__max_prompt_length": 20, "rollout__max_completion_length": 20}


class Operations(TorchDispatchMode):
    """Counts reads by the host, and copies between devices."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.copies: list[bool] = []
        """Whether each copy to the device returns at once."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = str(function).removeprefix("aten.")
        is_mask = name.startswith("index.Tensor") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if name.startswith(READS) or is_mask:
            self.reads[name] += 1
        if "_to_copy" in name or name.startswith("copy_"):
            source = args[1] if name.startswith("copy_") else args[0]
            if (source.device.type, result.device.type) == ("cuda", "cpu"):
                self.reads[name] += 1
            elif source.device.type != result.device.type:
                self.copies.append(bool((kwargs or {}).get("non_blocking")))
        return result


def make_config(**changes: Any) -> Config:
    sizes = {"rollout__buffer_size": GROUPS, "rollout__num_generations": GENERATIONS, "train__microbatch_size": 2}
    return load_config(config_text(**{**sizes, **changes}))


def make_buffer(**extra: Any) -> RolloutBuffer:
    generator = torch.Generator().manual_seed(0)
    completions = []
    for row in range(GROUPS * GENERATIONS):
        prompt = tuple(range(3, 10 + row // GENERATIONS))
        length = 5 + row % 7
        ids = tuple(torch.randint(3, 60, (length,), generator=generator).tolist())
        completions.append(Completion(prompt, ids, (-4.0,) * length, finished=True))
    advantages = torch.linspace(-1, 1, len(completions))
    advantages[3] = 0
    extra = {name: [torch.full((len(c.ids),), -4.0) for c in completions] for name, wanted in extra.items() if wanted}
    tokens = float(sum(len(completion.ids) for completion in completions))
    counted = torch.ones(len(completions), dtype=torch.bool)
    return RolloutBuffer(completions, advantages, counted, [len(completions)], [tokens], **extra)


def make_forward(adapter: str) -> LogprobForward:
    model = make_model("qwen3", lora=adapter == "lora", dtype=torch.float32)
    if adapter == "none":
        model.requires_grad_(True)
    return LogprobForward(Policy(model.train(), TOKENIZER, CPU, "tiny"), temperature=1.0)


@pytest.mark.parametrize("adapter", ["none", "lora"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm__loss_type": "gspo", "algorithm__updates_per_buffer": 1},
        {"algorithm__beta": 0.1, "algorithm__entropy_coef": 0.01},
        {"algorithm__rollout_correction": "token_mask", "train__token_budget": 40, **SHORT},
        {"algorithm__rollout_correction": "sequence_truncate", "train__packing": False},
        {"train__chunked_logprobs": False},
    ],
)
def test_a_gradient_reads_nothing_from_the_device(adapter: str, changes: dict[str, Any]) -> None:
    config, forward = make_config(**changes), make_forward(adapter)
    buffer = make_buffer(ref_logps=config.algorithm.beta > 0, old_logps=True)
    gradients = GradientSum(forward.policy.trainable())
    gradients.start()
    with Operations() as operations:
        accumulate_gradients(forward, buffer, 0, gradients, config)
    gradients.close()
    assert operations.reads == {}


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_a_pass_takes_few_copies_that_nobody_waits_for(adapter: str) -> None:
    """Fake CUDA tensors: nothing is computed, but each operation checks devices and types."""
    config, forward = make_config(algorithm__beta=0.1), make_forward(adapter)
    policy, model = forward.policy, forward.policy.model
    leave_casts_to_autocast(model)
    buffer = make_buffer(ref_logps=True, old_logps=True)
    passes = [rows for pieces in microbatches(buffer, 0, config) for rows in pieces]
    torch.backends.cuda.enable_cudnn_sdp(False)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for module in model.modules():
            for name, weight in list(module._parameters.items()):
                if weight is not None:
                    fake = torch.empty(weight.shape, device="cuda")
                    module._parameters[name] = torch.nn.Parameter(fake, requires_grad=weight.requires_grad)
            for name, kept in module._buffers.items():
                if kept is not None:
                    module._buffers[name] = torch.empty(kept.shape, dtype=kept.dtype, device="cuda")
        policy.device, policy.autocast_dtype = torch.device("cuda"), torch.bfloat16
        sums = TokenSums()
        for rows in passes:
            with Operations() as operations:
                tokens = forward([buffer.completions[i] for i in rows])
                piece = make_piece(buffer, rows, tokens, config)
                loss = piece_loss(tokens, piece, buffer, 0, config)
                sums.add(loss, tokens, piece)
            assert operations.reads == {}
            assert operations.copies == [True] * 3, "the row, the plan of its attention, what the loss needs"
            assert (tokens.logps.device.type, tokens.logps.dtype) == ("cuda", torch.float32)
            assert (loss.loss.device.type, loss.loss.dtype) == ("cuda", torch.float32)
            assert loss.loss.requires_grad


def test_a_transfer_keeps_values_types_and_shapes() -> None:
    given = [
        torch.arange(7), torch.tensor([[True], [False], [True]]), torch.rand(2, 3, dtype=torch.float64),
        torch.empty(0, dtype=torch.int32), torch.tensor([1.5]),
    ]  # fmt: skip
    for device in (CPU, torch.device("meta")):
        transfer = ArrayTransfer(device)
        moved = [transfer.add(values) for values in given]
        transfer.send()
        for values, found in zip(given, moved, strict=True):
            assert (found.tensor.dtype, found.tensor.shape) == (values.dtype, values.shape)
            assert found.tensor.device.type == device.type
    memory = join_arrays(given)
    assert memory.nbytes % 16 == 0
    for values, start in zip(given, starts_of(given), strict=True):
        assert torch.equal(part_of(memory, start, values), values)
