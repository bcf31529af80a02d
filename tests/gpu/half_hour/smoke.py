"""Checks of what the engine does on a GPU: a line each, with the figures that decide. See docs/gpu.md.

They read and replace private parts of the engine, which tests of behavior do not: where one moves, the dry run fails.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import pkgutil
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.utils import counters

import grpo_train
from grpo_train.bench.measure import Trainer
from grpo_train.bench.subject import make_subject
from grpo_train.config.schema import Config
from grpo_train.platforms.facts import read_machine
from grpo_train.platforms.memory import QWEN2_5, activation_bytes_per_token, training_bytes
from grpo_train.policy.compiled import CompiledBlocks
from grpo_train.policy.device import check_device
from grpo_train.policy.head import chunk_elements, logps_and_entropy, mixed_products
from grpo_train.policy.loading import Policy, load_policy, recompute_activations
from grpo_train.policy.logprobs import LogprobForward, pad_values
from grpo_train.policy.memory import PeakMemory, free_bytes, kept_bytes, release_kept, total_bytes
from grpo_train.policy.varlen import varlen_call
from grpo_train.rollout import Completion
from grpo_train.rollout.native import backend as native
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.native.decoding import Decoding
from grpo_train.rollout.native.flash import PARAMETERS, flash_attention, lacks, spans_of
from grpo_train.rollout.native.slots import attention_and_sums, mask_of
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.run_dir.gpus import query_gpus
from grpo_train.train.checkpoint import HostMemory
from grpo_train.train.compiling import Compiling, _micro_batches, _relative_difference
from grpo_train.train.distributed import World
from tests.gpu.half_hour.common import (
    DEVICE,
    DRY,
    DTYPE,
    LARGE,
    ROOT,
    SMALL,
    bench_config,
    captures_of,
    distance,
    gib,
    little_memory,
    milliseconds,
    rates,
    replaced,
    seconds_of,
    sized,
    sync,
    tiny_root,
)
from tests.gpu.half_hour.runner import Session, check
from tests.support.engine import config_text, resume_here, rows, steps_logged, train_here, write_config

OPTIONS: dict[str, Any] = {"seeds": range(64), "max_completion_length": 48, "temperature": 1.0}
HEADS, GROUPS, WIDTH = 12, 2, 128
"""Query heads, heads of keys and values, and their dimension in Qwen2.5-1.5B."""
PRODUCTS = {
    "qkv": (2048, 1536), "o": (1536, 1536), "gate_up": (17_920, 1536), "down": (1536, 8960), "head": (151_936, 1536),
}  # fmt: skip
"""Outputs and inputs of the linear layers of Qwen2.5-1.5B."""
LAYERS = 28


# ---------------------------------------------------------------------------------------------------------- machine


def environment() -> str:
    """Versions of the libraries, compilers, and the GPU."""
    import numpy
    import peft
    import transformers
    import triton

    versions = " ".join(f"{each.__name__} {each.__version__}" for each in (torch, transformers, peft, triton, numpy))
    tools = {name: bool(shutil.which(name)) for name in ("gcc", "g++", "nvcc", "nvidia-smi")}
    facts = f"{versions} python {sys.version.split()[0]} {tools} cores {len(os.sched_getaffinity(0))}"
    if DRY:
        return facts
    gpu, free = torch.cuda.get_device_properties(0), torch.cuda.mem_get_info()[0]
    processors = f"sm{gpu.major}{gpu.minor} with {gpu.multi_processor_count} multiprocessors"
    return f"{facts}; {gpu.name} {gib(gpu.total_memory)} {processors}, free {gib(free)}"


def machine_readers() -> str:
    """What ``grpo-train platform`` and the supervisor see of the GPU."""
    check_device("auto", 1)
    gpus, machine = query_gpus(), read_machine()
    assert DRY or (gpus and machine.gpus), "no GPU seen: grpo-train bench would measure the tiny model on the CPU"
    return f"{gpus}; {machine.gpus}"


def machine_rates() -> str:
    """What everything is compared with: bytes copied, matrix products, bytes written to the disk."""
    found = rates()
    products = f"products {found.products / 1e12:.1f} TFLOP/s"
    return f"copy {found.copy / 1e9:.0f} GB/s, {products}, disk {found.disk / 1e9:.2f} GB/s"


def all_imports() -> str:
    """Each module of the engine can be imported."""
    names = [each.name for each in pkgutil.walk_packages(grpo_train.__path__, "grpo_train.")]
    wrong, names = [], [name for name in names if not name.endswith(("__main__", "fake_time"))]
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, wrong
    return f"{len(names)} modules"


# ---------------------------------------------------------------------------------------------------------- kernels


def head_products() -> str:
    """The head in chunks: products in 16 bits that are summed in float32, their speed and their error."""
    mixed = {str(dtype): mixed_products(DEVICE, dtype) for dtype in (torch.bfloat16, torch.float16)}
    tokens, width, vocabulary = sized((4096, 1536, 151_936), (64, 32, 512))
    hidden = torch.randn(tokens, width, device=DEVICE, dtype=DTYPE, requires_grad=True)
    weight = (torch.randn(vocabulary, width, device=DEVICE) * 0.02).to(DTYPE)
    targets = torch.randint(vocabulary, (tokens,), device=DEVICE)

    def forward() -> Tensor:
        return logps_and_entropy(hidden, weight, None, targets, temperature=1.0, dtype=DTYPE)[0]

    def both() -> None:
        hidden.grad = None
        forward().sum().backward()

    alone, together = milliseconds(forward, 5, 2), milliseconds(both, 5, 2)
    expected = torch.log_softmax(hidden[:64].detach().float() @ weight.float().T, -1).gather(1, targets[:64, None])
    error = distance(forward()[:64].detach(), expected[:, 0])
    assert error < 2e-2, f"error {error:.1e}"
    rate = 2 * tokens * width * vocabulary / alone / 1e9
    return (
        f"{mixed}, chunks of {chunk_elements(DEVICE) // vocabulary} tokens; {tokens} tokens: forward {alone:.1f} ms "
        f"({rate:.0f} TFLOP/s), with backward {together:.1f} ms, error {error:.1e}"
    )


def varlen() -> str:
    """Packed attention by varlen_attn: tried for the heads of three models, with and without a window, and timed."""
    lines, wrong = [], []
    for heads in ((HEADS, GROUPS, WIDTH), (14, 2, 64), (16, 8, 128)):
        for window in (None, 128):
            call = varlen_call(heads, heads[2] ** -0.5, window, torch.bfloat16, DEVICE, 1024)
            is_found = not isinstance(call, str)
            lines.append(f"{heads} window {window}: {f'repeats {call.keywords}' if is_found else call}")
            wrong += [] if is_found else lines[-1:]
    assert not wrong, f"training computes in buckets: {wrong}"
    return "; ".join([*lines, _varlen_times()])


def _varlen_times() -> str:
    call = varlen_call((HEADS, GROUPS, WIDTH), WIDTH**-0.5, None, torch.bfloat16, DEVICE, 1024)
    ends = torch.arange(0, 8193, 512, device=DEVICE, dtype=torch.int32)
    query, key, value = (
        torch.randn(8192, heads, WIDTH, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        for heads in (HEADS, GROUPS, GROUPS)
    )

    def forward() -> Tensor:
        found: Tensor = call(query, key, value, ends, 512, None)
        return found

    gradient = torch.randn_like(forward())
    both = milliseconds(lambda: torch.autograd.grad(forward(), (query, key, value), gradient))
    return f"16 x 512 tokens: forward {milliseconds(forward):.2f} ms, with backward {both:.2f} ms"


def flash_decode() -> str:
    """FlashAttention over slots: its error, its bytes a second, and its time without copies of the queries."""
    assert not lacks(), lacks()
    found = [_flash_line(count, 704, context) for count, context in ((8, 640), (64, 384), (256, 384))]
    return f"num_splits settable: {'num_splits' in PARAMETERS}; " + "; ".join(found)


def _flash_line(count: int, length: int, context: int) -> str:
    query = torch.randn(count, HEADS, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    keys, values = (torch.randn(count + 1, length, GROUPS, WIDTH, device=DEVICE, dtype=torch.bfloat16) for _ in "kv")
    slots, used = torch.randperm(count, device=DEVICE), torch.randint(1, context + 1, (count,), device=DEVICE)
    found, sums = flash_attention(query, keys, values, spans_of(slots, used, length), None)
    error, share = 0.0, HEADS // GROUPS
    for row in range(0, count, max(1, count // 8)):
        seen = (each[slots[row], : int(used[row])].float().repeat_interleave(share, 1) for each in (keys, values))
        key, value = seen
        scores = torch.einsum("hd,khd->hk", query[row].float(), key) / WIDTH**0.5
        expected = torch.einsum("hk,khd->hd", scores.softmax(-1), value)
        error = max(error, distance(found[row], expected), float((sums[row] - scores.logsumexp(-1)).abs().max()))
    assert error < 2e-2, f"{count} rows: error {error:.1e}"
    full = torch.full_like(used, context)
    whole, grouped = spans_of(slots, full, length), spans_of(slots, full, length, share)
    as_is = milliseconds(lambda: flash_attention(query, keys, values, whole, None))
    swapped = torch.randn(count * share, GROUPS, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    without_copies = milliseconds(lambda: flash_attention(swapped, keys, values, grouped, None))
    rate = count * context * 2 * GROUPS * WIDTH * 2 / 1e6 / as_is
    return (
        f"{count} rows x {context}: error {error:.1e}, {as_is * 1e3:.0f} us ({rate:.0f} GB/s), as {share} queries of "
        f"{GROUPS} heads {without_copies * 1e3:.0f} us"
    )


def efficient_sums() -> str:
    """Attention in float32 with the sums that join two parts, against float64."""
    lines = []
    for dtype in sized((torch.float32, torch.bfloat16), (torch.float32,)):
        query = torch.randn(9, 2, 6, 64, device=DEVICE, dtype=dtype)
        keys, values = (torch.randn(9, 2, 96, 64, device=DEVICE, dtype=dtype) for _ in "kv")
        mask = mask_of(torch.arange(1, 10, device=DEVICE) * 10, 96, dtype)
        found, sums = attention_and_sums(query, keys, values, mask, None)
        scores = (query.double() @ keys.double().transpose(-1, -2)) / 8 + mask.double()
        error, largest = (
            distance(found, scores.softmax(-1) @ values.double()),
            (sums - scores.logsumexp(-1)).abs().max(),
        )
        assert max(error, float(largest)) < 3e-2, f"{dtype}: error {error:.1e}, of the sums {largest:.1e}"
        lines.append(f"{dtype}: error {error:.1e}, of the sums {largest:.1e}")
    return "; ".join(lines)


def small_gemms() -> str:
    """Linear layers of a decoding step in a CUDA graph: the share of their time that reading weights takes."""
    lines = []
    for count in sized((64, 256), (4,)):
        total = least = 0.0
        for name, (outputs, inputs) in PRODUCTS.items():
            taken, floor = _product_ms(count, outputs // sized(1, 64), inputs // sized(1, 64))
            lines.append(f"{count} x {name} {taken * 1e3:.1f} us ({floor / taken:.0%})")
            if name != "head":
                total, least = total + taken, least + floor
        lines.append(f"{count}: products of {LAYERS} layers {LAYERS * total:.2f} ms, least {LAYERS * least:.2f} ms")
    return "; ".join(lines)


def _product_ms(count: int, outputs: int, inputs: int) -> tuple[float, float]:
    """Of a product, and of the larger one of reading its weights and of its operations."""
    copies = max(2, int(sized(2e8, 2e5) // (outputs * inputs * 2)) + 1)  # more than caches hold
    weights = [torch.randn(outputs, inputs, device=DEVICE, dtype=DTYPE) for _ in range(copies)]
    hidden = torch.randn(count, inputs, device=DEVICE, dtype=DTYPE)

    def work() -> None:
        for weight in weights:
            torch.mm(hidden, weight.t())

    taken = milliseconds(_replay_of(work), 10) / copies
    operations, read = 2 * count * outputs * inputs, outputs * inputs * 2
    return taken, max(read / rates().copy, operations / rates().products) * 1e3


def _replay_of(work: Callable[[], None]) -> Callable[[], None]:
    """``work`` as a CUDA graph."""
    if DRY:
        return work
    graph = torch.cuda.CUDAGraph()
    work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


# --------------------------------------------------------------------------------------------------------- rollouts


def _policy(adapter: str = "lora", dtype: torch.dtype = DTYPE) -> Policy:
    """The tests' tiny model."""
    config = bench_config("tiny", adapter, model={"dtype": str(dtype).removeprefix("torch.")})
    return load_policy(config.model, tiny_root(), DEVICE)


def _native(policy: Policy, **options: Any) -> NativeBackend:
    """As training makes it on a GPU."""
    return NativeBackend(
        policy.model, policy.tokenizer, dtype=policy.autocast_dtype, look_every=native.LOOK_EVERY["cuda"], **options
    )


def _prompts(policy: Policy) -> list[list[int]]:
    """64 prompts."""
    found: list[list[int]] = policy.tokenizer([f"{a}+{b}=" for a in range(10, 18) for b in range(20, 28)])["input_ids"]
    return found


def _different(found: Sequence[Completion], others: Sequence[Completion]) -> int:
    return sum(one.ids != other.ids for one, other in zip(found, others, strict=True))


def native_float32() -> str:
    """Completions of native rollouts and of transformers are equal in float32."""
    policy = _policy(dtype=torch.float32)
    backends = NativeBackend(policy.model, policy.tokenizer), TransformersBackend(policy.model, policy.tokenizer)
    different = _different(*(each.generate(_prompts(policy), batch_size=24, **OPTIONS) for each in backends))
    assert different <= 2, f"{different} of 64 differ; fallbacks {backends[0].fallbacks}"
    return f"{different} of 64 differ from transformers; fallbacks {backends[0].fallbacks}"


def native_bfloat16() -> str:
    """Nothing falls back in bfloat16, with and without adapter and compiled layers; copied and shared prompts agree."""
    lines, wrong = [], []
    for adapter in ("lora", "none"):
        policy = _policy(adapter)
        for compiled in sized((False, True), (False,)):
            backend, seconds = seconds_of(lambda: _native(policy, compile_layers=compiled))  # noqa: B023 - called here
            lines.append(f"{adapter} compiled {compiled}: made in {seconds:.0f} s, {_state_of(backend, policy)}")
            wrong += lines[-1:] if backend.fallbacks else []
    assert not wrong, wrong
    return "; ".join(lines)


def _state_of(backend: NativeBackend, policy: Policy) -> str:
    prompts = [prompt for prompt in _prompts(policy)[:16] for _ in range(4)]
    found = []
    for share_from in (10**9, 0, 10**9):
        with replaced(native, "SHARE_FROM", {**native.SHARE_FROM, DEVICE.type: share_from}):
            found.append(backend.generate(prompts, batch_size=24, **OPTIONS))
    copied, shared, again = found
    release_kept()
    return (
        f"flash {backend._is_flash}, graphs {backend._recorder is not None}, layers {backend._copy._attention}, "
        f"compiled draw {backend._sums is not None}; {_different(copied, shared)} of 64 differ with shared prompts, "
        f"{_different(copied, again)} when repeated; fallbacks {backend.fallbacks}"
    )


def recompiles() -> str:
    """Calls of other sizes compile nothing again: after 8 times, torch would run uncompiled code and say nothing."""
    policy = _policy()
    torch._dynamo.reset()
    counters.clear()
    backend, prompts, seen = _native(policy, compile_layers=not DRY), _prompts(policy), []
    for count, length in sized(((64, 48), (40, 100), (17, 300), (64, 500), (5, 20), (64, 48)), ((8, 8), (5, 8))):
        options: dict[str, Any] = {"seeds": range(count), "max_completion_length": length, "temperature": 1.0}
        _, seconds = seconds_of(lambda: backend.generate(prompts[:count], **options))  # noqa: B023 - called here
        seen.append(f"{count} x {length} {seconds:.1f} s, graphs {counters['stats'].get('unique_graphs')}")
    return "; ".join(seen) + f"; frames {dict(counters['frames'])}; unsupported {list(counters['unimplemented'])[:2]}"


def graph_costs() -> str:
    """Six calls of generate: only the first one captures; memory stays between them, and is released for training."""
    policy = _policy()
    backend, prompts = _native(policy), _prompts(policy)
    cached = torch.empty(sized(8 * 2**30, 1), dtype=torch.uint8, device=DEVICE)
    del cached  # as training leaves it: the allocator keeps it
    captures, seconds, reserved, found = [], [], [torch.cuda.memory_reserved()], []
    with captures_of(backend) as spent:
        for _ in range(6):
            before = len(spent)
            completions, taken = seconds_of(lambda: backend.generate(prompts, batch_size=64, **OPTIONS))
            found.append(completions)
            seconds.append(taken)
            captures.append(len(spent) - before)
            gc.collect()
            reserved.append(torch.cuda.memory_reserved())
        kept, free = kept_bytes(DEVICE), free_bytes(DEVICE)
        release_kept()
        left, after = kept_bytes(DEVICE), torch.cuda.memory_reserved()
    line = (
        f"captures {captures}, each {1e3 * sum(spent) / max(1, len(spent)):.0f} ms; calls "
        f"{[round(each, 2) for each in seconds]} s; reserved {[each >> 20 for each in reserved]} MiB; kept "
        f"{kept / 2**20:.1f} MiB, which count as free ({gib(free)}); {after >> 20} MiB reserved after their release"
    )
    assert captures[0], f"nothing was captured, fallbacks {backend.fallbacks}: {line}"
    assert not any(captures[1:]), f"captured again: {line}"
    assert all(_different(each, found[0]) <= 2 for each in found[1:]), f"other tokens: {line}"
    assert max(reserved[2:]) - reserved[2] <= 2**21, f"each call takes more memory: {line}"
    assert kept > left == 0, f"not kept, or not released: {line}"
    return line


def host_waits() -> str:
    """Decoding steps never wait for the device; only looks do."""
    policy = _policy()
    backend, prompts, step, strict_steps = _native(policy), _prompts(policy), Decoding._step, 0
    backend.generate(prompts, **OPTIONS)

    def strict(self: Decoding) -> None:
        nonlocal strict_steps
        strict_steps += 1
        with _no_waiting():
            step(self)

    release_kept()  # recorded steps call no function
    with replaced(Decoding, "_step", strict):
        backend.generate(prompts, **OPTIONS)
    release_kept()
    assert strict_steps, "no step was executed"
    return f"none in {strict_steps} steps"


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Waiting for the device raises RuntimeError in the block."""
    if DRY:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def rollout_oom() -> str:
    """Too many slots: generation continues with fewer, and the CUDA context survives."""
    policy = _policy()
    backend, prompts, said = _native(policy), _prompts(policy) * sized(32, 1), io.StringIO()
    options: dict[str, Any] = {"max_completion_length": sized(2000, 16), "temperature": 1.0}
    # As if the estimate were wrong.
    with replaced(NativeBackend, "_fitting", lambda self, room: 10**6), little_memory(2**30):
        with contextlib.redirect_stdout(said):
            found = backend.generate(prompts, seeds=range(len(prompts)), **options)
        kept = kept_bytes(DEVICE)
        release_kept()
    after = backend.generate(_prompts(policy), **OPTIONS)
    lines = said.getvalue().strip().splitlines()
    assert DRY or lines, "memory did not run out: nothing was tried"
    return (
        f"{len(found)} completions after {lines[:3]}; kept {kept / 2**20:.1f} MiB; graphs still on: "
        f"{backend._recorder is not None}; {len(after)} more completions; fallbacks {backend.fallbacks}"
    )


# --------------------------------------------------------------------------------------------------------- training


def _forward(config: Config, policy: Policy | None = None) -> tuple[Compiling, list[list[Completion]]]:
    """The forward pass of a run, with the micro-batches of its trial."""
    forward = LogprobForward(policy or make_subject(config).policy(DEVICE), temperature=1.0)
    return Compiling(forward, config, World()), list(_micro_batches(config, forward.vocabulary))


def scoring() -> str:
    """Log-probabilities of the trainer and of the sampler agree."""
    lines = []
    for adapter in ("none", "lora"):
        policy = _policy(adapter)
        found = _native(policy).generate(_prompts(policy), **OPTIONS)
        release_kept()
        forward = LogprobForward(policy, temperature=1.0, longest=512)
        with torch.no_grad():
            tokens = forward(found)
        sampled = pad_values([each.logps for each in found], tokens.logps.shape[1]).to(DEVICE)
        ratio = (tokens.logps - sampled)[tokens.mask.bool()].double()
        kl = float((ratio.exp() - 1 - ratio).mean())
        lines.append(f"{adapter}: {forward.description}; notes {forward.notes}; mismatch KL {kl:.1e}")
        assert kl < 0.02, lines
        assert DRY or not forward.notes, lines
    return "; ".join(lines)


def gradients() -> str:
    """Gradients packed, padded and with whole logits."""
    config = bench_config(SMALL, rollout=sized({"max_prompt_length": 64, "max_completion_length": 192}, {}))
    policy, found = make_subject(config).policy(DEVICE), {}
    ways: Mapping[str, dict[str, Any]] = {
        "packed": {},
        "padded": {"packing": False},
        "whole logits": {"chunked": False},
    }
    for name, options in ways.items():
        forward = LogprobForward(policy, temperature=1.0, **options)
        batch = next(islice(_micro_batches(config, forward.vocabulary), 2, None))[:8]
        found[name] = [each.float() for each in Compiling(forward, config, World())._gradient(batch)]
    apart = {name: _relative_difference(found[name], found["packed"]) for name in ways if name != "packed"}
    assert all(each < 0.1 for each in apart.values()), apart
    return ", ".join(f"{name} differs from packed by {each:.2e}" for name, each in apart.items())


def compile_trial() -> str:
    """The decision of ``train.compile`` for 1.5B with LoRA: speed, and distances to float32."""
    compiling, batches = _forward(bench_config(LARGE))
    plain = compiling._gradient(batches[0])
    repeated = _relative_difference(compiling._gradient(batches[0]), plain)
    del plain
    trial, seconds = seconds_of(compiling._try)
    tokens = sum(len(completion.ids) for batch in batches for completion in batch)
    line = (
        f"{trial.speedup:.2f} times as fast for 3 micro-batches ({tokens} completion tokens); {trial.distances}; plain "
        f"ones repeated differ by {repeated:.2%}; the trial took {seconds:.0f} s"
    )
    assert trial.is_equal, f"blocks would not be compiled: {line}"
    return f"{line}; peak {gib(torch.cuda.max_memory_allocated())}"


def recompute_compiled() -> str:
    """Blocks that are compiled and recompute their activations."""
    config = bench_config("tiny")
    compiling, batches = _forward(config)
    forward, batch = compiling._forward, batches[0]
    plain = compiling._gradient(batch)
    recompute_activations(forward.policy.model)
    recomputed = _relative_difference(compiling._gradient(batch), plain)
    forward.blocks = CompiledBlocks(forward.decoder)
    both = _relative_difference(compiling._gradient(batch), plain)
    assert max(recomputed, both) < 0.1, (recomputed, both)
    return f"recomputed ones differ by {recomputed:.1e}, compiled and recomputed ones by {both:.1e}"


def train_resume() -> str:
    """A run of four steps that is stopped and resumed, with and without adapter."""
    lines = []
    for adapter in ("lora", "none"):
        changes = {"model__adapter": adapter, "model__dtype": "auto", "run__total_steps": 4}
        cfg = write_config(tiny_root(), f"{adapter}.yaml", **changes, rollout__compile="off", train__compile="off")
        run = train_here(ROOT, cfg, f"{adapter}-{os.getpid()}", "--until", "2")
        resume_here(run, total=4)
        assert steps_logged(run) == [1, 2, 3, 4]
        found = [
            f"grad {float(row['grad_norm']):.3f} ess {float(row['ess/token']):.4f} peak {row['memory/peak_gib']} GiB "
            f"{sum(float(value) for key, value in row.items() if key.startswith('time/')):.2f} s"
            for row in rows(run)
        ]
        lines.append(f"{adapter}: {'; '.join(found)}")
        assert all(float(row["ess/token"]) > 0.9 for row in rows(run)), lines
    return " | ".join(lines)


def float16_step() -> str:
    """Two steps in float16, with a loss scale."""
    changes = {"model__adapter": "lora", "model__dtype": sized("float16", "float32"), "run__total_steps": 2}
    cfg = write_config(tiny_root(), "f16.yaml", **changes, rollout__compile="off", train__compile="off")
    run = train_here(ROOT, cfg, f"f16-{os.getpid()}")
    found = [(float(row["grad_norm"]), float(row.get("ess/token", "nan"))) for row in rows(run)]
    return "; ".join(f"grad {norm:.3f} ess {ess:.4f}" for norm, ess in found)


def train_oom() -> str:
    """A micro-batch that does not fit is halved, and the step continues."""
    config = bench_config(
        SMALL,
        train={"microbatch_size": sized(32, 2), "compile": "off"},
        rollout={"compile": "off", "max_completion_length": sized(256, 16)},
    )
    subject, said = make_subject(config), io.StringIO()
    trainer = Trainer(subject.policy(DEVICE), config, subject.prompts(config.rollout.buffer_size))
    trainer.sync()
    with little_memory(14 * 2**30), contextlib.redirect_stdout(said):
        step = trainer.step()
    trainer.close()
    lines = said.getvalue().strip().splitlines()
    return (
        f"gradient {step.gradient:.1f} s; {lines}; passes of {trainer.rows.rows} rows, {trainer.rows.configured} wanted"
    )


def budget() -> str:
    """Memory that a token of a pass takes, beside the estimate."""
    config, shape = bench_config(LARGE), QWEN2_5["qwen2_5_15"]
    compiling, batches = _forward(config)
    batch, peak = batches[0], PeakMemory(DEVICE)
    compiling._gradient(batch[:2])
    sync()
    gc.collect()
    peak.reset()
    compiling._gradient(batch)
    sync()
    groups = max(1, len(batch) // config.rollout.num_generations)
    tokens = len(batch[0].prompt_ids) * groups + sum(len(each.ids) - 1 for each in batch)
    each = (peak.above() or 0) / tokens
    estimate = activation_bytes_per_token(shape, config, "bfloat16")
    state = training_bytes(shape, config, "bfloat16", 2, total_bytes(DEVICE))
    return (
        f"{each / 2**20:.3f} MiB a token with the head's buffers, estimate {estimate / 2**20:.3f}; free "
        f"{gib(free_bytes(DEVICE))}; state and pass, estimated {gib(state)}"
    )


def host_copy() -> str:
    """A snapshot's copy to page-locked memory: the first one allocates it."""
    size = sized(2**28, 2**20)
    value = {str(number): torch.randn(size, device=DEVICE) for number in range(4)}
    memory = HostMemory()
    seconds = [seconds_of(lambda: memory.copy(value))[1] for _ in range(3)]
    return f"{4 * size * 4 / 1e9:.1f} GB to the host: {[round(each, 2) for each in seconds]} s"


# -------------------------------------------------------------------------------------------------------- processes


def nccl_of_one() -> str:
    """Collectives on tensors of the device and on objects, in a group of one process."""
    store = ROOT / f"store-{os.getpid()}"
    dist.init_process_group(sized("cpu:gloo,cuda:nccl", "gloo"), init_method=f"file://{store}", rank=0, world_size=1)
    try:
        ones, sent = torch.ones(2**20, device=DEVICE), ["b"]
        gathered: list[Any] = [None]
        dist.all_reduce(ones)
        sync()
        dist.all_gather_object(gathered, {"a": 1})
        dist.broadcast_object_list(sent, src=0)
        return f"{float(ones[0])} {gathered} {sent}"
    finally:
        dist.destroy_process_group()


def too_many_ranks() -> str:
    """Two ranks on one GPU are refused with a sentence, and do not hang."""
    cfg = write_config(tiny_root(), "two.yaml", run__total_steps=1)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "grpo_train.train"]
    words = ["--cfg", str(cfg), "--root", str(ROOT), "--run-name", f"two-{os.getpid()}"]
    done = subprocess.run([sys.executable, *launch, *words], capture_output=True, text=True, timeout=80)
    said = (done.stdout + done.stderr).splitlines()
    assert done.returncode, "two ranks trained on one GPU"
    return f"exit {done.returncode}: {[line for line in said if 'sees' in line or 'error:' in line][:2]}"


def command_line() -> str:
    """A run as a user starts it, with supervisor and torchrun, and its evaluation."""
    name, cfg = f"cli-{os.getpid()}", tiny_root() / "cli.yaml"
    changes = {"run__total_steps": 2, "model__adapter": "lora", "rollout__compile": "off", "train__compile": "off"}
    cfg.write_text(config_text(**changes), encoding="utf-8")
    options = ("--steps", "final", "--num-problems", "4", "--max-completion-length", "24")
    trained = _command("train", "--cfg", str(cfg), "--run-name", name)
    return f"{trained}, {_command('eval', '--training-run', name, *options)}"


def _command(*words: str) -> str:
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "grpo_train.cli", *words],
        capture_output=True, text=True, env={**os.environ, "LOCALFS_ROOT": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-600:].replace("\n", " | ")
    return f"{words[0]} {time.time() - began:.0f} s"


CHECKS = [
    check(environment, 180),
    check(machine_readers, 30),
    check(machine_rates, 20, "rates"),
    check(head_products, 20),
    check(varlen, 30, needs_gpu=True),
    check(flash_decode, 20, needs_gpu=True),
    check(efficient_sums, 15),
    check(small_gemms, 25),
    check(native_float32, 30),
    check(scoring, 30),
    check(gradients, 30),
    check(train_resume, 40),
    check(host_waits, 15),
    check(graph_costs, 25),
    check(native_bfloat16, 110),
    check(compile_trial, 120),
    check(rollout_oom, 25),
    check(train_oom, 30),
    check(budget, 20),
    check(host_copy, 20),
    check(nccl_of_one, 20),
    check(float16_step, 25),
    check(recompute_compiled, 50),
    check(recompiles, 60),
    check(too_many_ranks, 80, needs_gpu=True),
    check(command_line, 120),
    check(all_imports, 40),
]
"""In the order in which they matter, as time may run out."""

if __name__ == "__main__":
    raise SystemExit(Session(CHECKS, "smoke.jsonl").run())
