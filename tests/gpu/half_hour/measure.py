"""Measurements of Qwen2.5-1.5B's shape with random weights: a line each. See docs/gpu.md.

They read and replace private parts of the engine, which tests of behavior do not: where one moves, the dry run fails.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from grpo_train.bench.floors import decode_floor
from grpo_train.bench.measure import Trainer, _buffer, rollout_figures, save_figure, train_figure
from grpo_train.bench.subject import Subject, make_subject, shape_of
from grpo_train.config.schema import Config
from grpo_train.platforms.memory import Shape
from grpo_train.policy.compiled import CompiledBlocks
from grpo_train.policy.completion import Completion
from grpo_train.rollout.native.backend import LOOK_EVERY, NativeBackend
from grpo_train.rollout.native.decoding import Decoding, OnToken
from tests.bench.against import against_generate, against_trl
from tests.gpu.half_hour.common import (
    DEVICE,
    DRY,
    LARGE,
    OUT,
    Marks,
    bench_config,
    captures_of,
    gib,
    rates,
    replaced,
    seconds_of,
    sized,
    sync,
)
from tests.gpu.half_hour.runner import Session, check

LENGTH = sized(512, 64)
"""Tokens of a completion."""
FEW, MANY = sized((64, 256), (8, 16))
"""Completions at once."""
KERNELS_LISTED = 60


@dataclass
class Measured:
    """What most measurements use, made once."""

    config: Config
    subject: Subject
    trainer: Trainer
    shape: Shape

    @property
    def backend(self) -> NativeBackend:
        assert isinstance(self.trainer.backend, NativeBackend)
        return self.trainer.backend

    def prompts(self, count: int, seed: int) -> list[list[int]]:
        """Different ones."""
        found = self.subject.tokenizer(self.subject.prompts(count, seed=seed))["input_ids"]
        return [list(ids) for ids in found]


made: list[Measured] = []
"""One, after :func:`setup`; none after :func:`drop`."""


def _config(adapter: str = "lora", **rollout: int) -> Config:
    train = {"microbatch_size": sized(8, 2), "compile": "off"}
    return bench_config(LARGE, adapter, train=train, rollout=rollout)


def _trainer(config: Config) -> tuple[Subject, Trainer]:
    subject = make_subject(config)
    return subject, Trainer(subject.policy(DEVICE), config, subject.prompts(config.rollout.buffer_size))


def setup() -> str:
    """What a run does before its first step: the model, and the trials and compilation of its rollouts."""
    config = _config()
    subject = make_subject(config)
    policy, loading = seconds_of(lambda: subject.policy(DEVICE))
    prompts = subject.prompts(config.rollout.buffer_size)
    trainer, preparing = seconds_of(lambda: Trainer(policy, config, prompts))
    trainer.sync()
    made[:] = [Measured(config, subject, trainer, shape_of(LARGE))]
    made[0].backend._look_every = LOOK_EVERY["cuda"]
    fallbacks = [*trainer.forward.notes, *trainer.backend.fallbacks.values()]
    return (
        f"model {loading:.1f} s, trials and compilation {preparing:.1f} s; {trainer.forward.description}; fallbacks "
        f"{fallbacks}; copy {rates().copy / 1e9:.0f} GB/s, products {rates().products / 1e12:.0f} TFLOP/s"
    )


# ----------------------------------------------------------------------------------------------------------- decode


def curve(rows: int) -> str:
    """A decoding step along a completion, captures, and what the device waits for the host."""
    here = made[0]
    prompts = here.prompts(rows, seed=1)
    with captures_of(here.backend) as spent:
        _, first = seconds_of(lambda: here.trainer.generate(prompts, LENGTH))
        captures = [round(1e3 * each) for each in spent]
        with _looks() as looks:
            found, seconds = seconds_of(lambda: here.trainer.generate(prompts, LENGTH))
        again = len(spent) - len(captures)
    steps, waits = looks()
    tokens, middle = sum(len(each.ids) for each in found), len(steps) // 2
    places = {"start": 2, "middle": middle, "end": len(steps) - 2}
    parts = [
        f"{steps[place]:.2f} ms at the {name} ({_floor(rows, place) / steps[place]:.0%})"
        for name, place in places.items()
    ]
    return (
        f"{tokens / seconds:,.0f} tokens/s in {seconds:.2f} s; step {', '.join(parts)}; looks {median(waits):.2f} ms "
        f"each; first call {first:.2f} s with captures of {captures} ms, this one {again} captures"
    )


def _floor(rows: int, place: int) -> float:
    """Milliseconds of a step, at the least, between looks ``place`` and ``place + 1``."""
    here = made[0]
    context = here.config.rollout.max_prompt_length + here.backend._look_every * (place + 1)
    return decode_floor(here.shape, rates(), rows, context, 2)[0] * 1e3


@contextmanager
def _looks() -> Iterator[Callable[[], tuple[list[float], list[float]]]]:
    """Gives, after the block, the milliseconds of the steps between looks, each, and those of the looks."""
    ends: list[Any] = []
    begins: list[Any] = []
    look, every = Decoding._look, made[0].backend._look_every

    def timed(self: Decoding, fresh: set[int], on_token: OnToken | None) -> Iterator[tuple[int, Completion]]:
        ends.append(Marks.now())
        yield from look(self, fresh, on_token)
        begins.append(Marks.now())

    def found() -> tuple[list[float], list[float]]:
        sync()
        steps = [Marks.between(*pair) / every for pair in zip(begins, ends[1:], strict=False)]
        return steps, [Marks.between(*pair) for pair in zip(ends, begins, strict=False)]

    with replaced(Decoding, "_look", timed):
        yield found


def bench_decode(rows: int) -> str:
    """Prefill and decoding as ``grpo-train bench`` measures them, without the first step and captures."""
    here = made[0]
    prompts, length = here.prompts(rows, seed=2), sized(128, 16)
    figures = rollout_figures(here.trainer, prompts, here.shape, rates(), length)
    return "; ".join(f"{each.name}: {each.amount / each.seconds:,.0f} tokens/s, {each.share:.1%}" for each in figures)


def long_tail() -> str:
    """Lengths with a long tail, as in training: graphs of eight numbers of rows, captured in the first call only."""
    here = made[0]
    rows = sized(256, 16)
    prompts = [prompt for prompt in here.prompts(rows // 8, seed=3) for _ in range(8)]
    lengths = {index: min(LENGTH, max(4, int(10 * sized(1.02, 1.2) ** index))) for index in range(rows)}
    with captures_of(here.backend) as spent, replaced(Decoding, "_look", _ending_at(lengths)):
        _, first = seconds_of(lambda: here.trainer.generate(prompts, LENGTH))
        captures = len(spent)
        found, seconds = seconds_of(lambda: here.trainer.generate(prompts, LENGTH))
        again = len(spent) - captures
    tokens = sum(len(each.ids) for each in found)
    line = (
        f"{tokens} tokens, mean {tokens / len(found):.0f}, in {seconds:.2f} s: {tokens / seconds:,.0f} tokens/s; first "
        f"call {first:.2f} s with {captures} captures of {1e3 * sum(spent) / max(1, len(spent)):.0f} ms, then {again}"
    )
    assert not again, f"captured again: {line}"
    return line


def _ending_at(lengths: dict[int, int]) -> Callable[..., Iterator[tuple[int, Completion]]]:
    """A look that ends completions at these lengths, by index: random weights draw no end."""
    look = Decoding._look

    def cut(self: Decoding, fresh: set[int], on_token: OnToken | None) -> Iterator[tuple[int, Completion]]:
        yield from list(look(self, fresh, on_token))
        for slot, row in list(self._rows.items()):
            if len(row.ids) >= lengths[row.index]:
                if self._entries is not None:
                    self._entries.leave(row.entry)
                del self._rows[slot]
                self._slack = -1
                yield row.index, Completion(row.prompt, tuple(row.ids), tuple(row.logps), True)

    return cut


def generate(rows: int) -> str:
    """Rollouts beside transformers' ``generate``."""
    here = made[0]
    prompts = [prompt for prompt in here.prompts(max(1, rows // 8), seed=1) for _ in range(8)]
    return str(against_generate(here.trainer, prompts, sized(64, 16), sized(2, 1)))


# ---------------------------------------------------------------------------------------------------------- training


def training(compiled: bool) -> str:
    """A training step, with plain or compiled blocks: seconds of its parts, MFU, peak of memory."""
    trainer = made[0].trainer
    trainer.forward.blocks = CompiledBlocks(trainer.forward.decoder) if compiled and not DRY else None
    _, first = seconds_of(trainer.step)
    steps = [trainer.step() for _ in range(sized(2, 1))]
    figure, last = train_figure(trainer, steps, rates()), steps[-1]
    return (
        f"first step {first:.1f} s; rollout {last.rollout:.2f} s, gradient {last.gradient:.2f} s, update "
        f"{last.optimizer:.3f} s, {last.computed} tokens: MFU {figure.share:.1%}; peak {gib(last.peak_bytes)}; "
        f"{last.completion_tokens / last.seconds:,.0f} completion tokens/s"
    )


def pass_sizes() -> str:
    """Seconds of the gradient by prompts of a pass: whether larger passes pay."""
    trainer, lines = made[0].trainer, []
    for prompts in sized((2, 8, 16), (1, 2)):
        trainer.rows.rows = prompts * trainer.config.rollout.num_generations
        step = trainer.step()
        lines.append(f"{prompts} prompts: {step.gradient:.2f} s, peak {gib(step.peak_bytes)}")
    trainer.rows.rows = trainer.rows.configured
    return f"{'; '.join(lines)} (train.microbatch_size {trainer.config.microbatch_size})"


def trl() -> str:
    """A step beside ``trl.GRPOTrainer``'s."""
    subject, trainer = _trainer(_config(max_completion_length=sized(128, 32)))
    prompts = subject.prompts(subject.config.rollout.buffer_size)
    return str(against_trl(subject, trainer, prompts, sized(2, 1)))


def save_all_weights() -> str:
    """A step with all weights trained, and what training waits for a save."""
    _, trainer = _trainer(_config("none", max_completion_length=sized(128, 32)))
    trainer.step()
    step = trainer.step()
    with tempfile.TemporaryDirectory() as folder:
        figure, waited = save_figure(trainer, rates(), Path(folder))
    return (
        f"rollout {step.rollout:.2f} s, gradient {step.gradient:.2f} s, update {step.optimizer:.3f} s, peak "
        f"{gib(step.peak_bytes)}; save {figure.seconds:.1f} s for {figure.amount / 1e9:.1f} GB, training waits for "
        f"{waited:.2f} s of it"
    )


# ----------------------------------------------------------------------------------------------------------- kernels


def profile_decode(rows: int) -> str:
    """Kernels of 40 tokens, and their number for each layer and token, prefill included."""
    here, length = made[0], sized(40, 16)
    work = partial(here.trainer.generate, here.prompts(rows, seed=1), length)
    work()
    return _profiled(work, f"layer and token at {rows} rows", (length - 1) * here.shape.layers)


def profile_train() -> str:
    """Kernels of the gradient of two prompts, and their number for each layer."""
    here = made[0]
    generations = here.config.rollout.num_generations
    prompts = [prompt for prompt in here.trainer.prompts[:2] for _ in range(generations)]
    work = partial(here.trainer._accumulate, _buffer(here.trainer.rollout(prompts, LENGTH), generations), 0)
    work()
    return _profiled(work, f"layer, compiled {here.trainer.forward.blocks is not None}", here.shape.layers)


def _profiled(work: Callable[[], object], name: str, per: int) -> str:
    """The most expensive kernels; more of them in ``$OUT/kernels.txt``."""
    with profile(activities=[sized(ProfilerActivity.CUDA, ProfilerActivity.CPU)]) as found:
        work()
        sync()
    attribute = sized("device_time_total", "cpu_time_total")
    rows = [(each.key, each.count, getattr(each, attribute) / 1e3) for each in found.key_averages()]
    rows = sorted((row for row in rows if row[2] > 0), key=lambda row: -row[2])
    kernels, total = sum(row[1] for row in rows), sum(row[2] for row in rows)
    with (OUT / "kernels.txt").open("a", encoding="utf-8") as file:
        file.write(f"== {name}: {kernels} kernels, {total:.2f} ms\n")
        file.writelines(f"{ms:9.3f} ms {count:6d} x  {key[:150]}\n" for key, count, ms in rows[:KERNELS_LISTED])
    top = ", ".join(f"{key[:38]} {ms:.1f} ms/{count}" for key, count, ms in rows[:4])
    return f"{kernels} kernels, {total:.1f} ms on the device; {kernels / per:.1f} per {name}; most: {top}"


def drop() -> str:
    """Give the memory of the trainer back."""
    if made:
        made.pop().trainer.close()
    gc.collect()
    if DRY:
        return ""
    torch.cuda.empty_cache()
    return f"{gib(torch.cuda.memory_allocated())} still allocated"


CHECKS = [
    check(setup, 150),
    check(partial(curve, FEW), 40, "curve_64", needs="setup"),
    check(partial(curve, MANY), 40, "curve_256", needs="setup"),
    check(partial(training, False), 60, "training_plain", needs="setup"),
    check(partial(training, True), 140, "training_compiled", needs="setup"),
    check(profile_train, 25, "profile_train_compiled", needs="setup"),
    check(partial(profile_decode, FEW), 20, "profile_decode_64", needs="setup"),
    check(partial(profile_decode, MANY), 20, "profile_decode_256", needs="setup"),
    check(partial(bench_decode, FEW), 30, "bench_decode_64", needs="setup"),
    check(partial(bench_decode, MANY), 30, "bench_decode_256", needs="setup"),
    check(long_tail, 30, needs="setup"),
    check(pass_sizes, 60, needs="setup"),
    check(partial(generate, FEW), 60, "generate_64", needs="setup"),
    check(partial(generate, MANY), 60, "generate_256", needs="setup"),
    check(drop, 10),
    check(trl, 120),
    check(save_all_weights, 130),
]
"""In the order in which they matter, as time may run out; the last two have trainers of their own."""

if __name__ == "__main__":
    raise SystemExit(Session(CHECKS, "measure.jsonl").run())
