"""A whole GRPO step (rollouts, rewards, update) relative to ``trl.GRPOTrainer``'s, which generates with ``generate``.

    python tests/bench/grpo_step.py [--quick]      # minutes

Both get a model with the same random weights, the same prompts of 64 tokens, rewards, micro-batches and optimizer, in
float32 on the CPU, without gradient checkpointing. They alternate in one process, one step each; a ratio is of
neighboring steps, in seconds per completion token. Completions have 64 tokens each, or a long tail: with a vocabulary
of 64 tokens, one of which ends the completion, random weights draw lengths of 1 to 400 with a mean of about 60. The
longest of the 256 completions of 32 prompts has about six times the mean, as in training; of 8 prompts, four times.
``tests/bench/against.py`` compares the same on any device.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import warnings
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from grpo_train.bench.measure import Trainer
from grpo_train.bench.subject import Subject, make_subject
from grpo_train.config.schema import Config
from grpo_train.tiny.tokenizer import EOS
from tests.bench.against import against_trl

WORDS = 64
"""Vocabulary with a long tail of lengths: a token in 64 ends the completion."""


def subject_of(adapter: str, has_tail: bool, prompts: int = 8) -> Subject:
    """The tiny model, and a step of ``prompts``."""
    config = Config.model_validate(
        {
            "model": {"backbone": "tiny", "adapter": adapter, "device": "cpu", "dtype": "float32"},
            "rollout": {
                "buffer_size": prompts, "num_generations": 8, "max_prompt_length": 64,
                "max_completion_length": 400 if has_tail else 64,
            },
            "train": {"microbatch_size": 2},
        }
    )  # fmt: skip
    subject = make_subject(config)
    if not has_tail:
        return subject
    subject.tokenizer.eos_token = EOS
    settings = copy.deepcopy(subject.settings)
    # Near 0, so that every token is about as likely.
    settings.update({"vocab_size": WORDS, "eos_token_id": subject.tokenizer.eos_token_id, "initializer_range": 0.01})
    return replace(subject, settings=settings)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="Run fewer repetitions")
    rounds = 3 if parser.parse_args().quick else 7
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning)
    print(", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl")), "CPU, float32, 1 thread")
    print(
        "8 completions of each prompt, 2 prompts a micro-batch: tokens a second, medians; how many times faster (range)"
    )
    cases = ((8, "64 tokens each", False, ">= 1.3x"), (8, "long tail", True, ""), (32, "long tail", True, ">= 5x"))
    for count, name, has_tail, aim in cases:
        for adapter in ("none", "lora"):
            subject = subject_of(adapter, has_tail, count)
            prompts = subject.prompts(subject.config.rollout.buffer_size)
            trainer = Trainer(subject.policy(torch.device("cpu")), subject.config, prompts)
            found = against_trl(subject, trainer, prompts, rounds)
            trainer.close()
            trained = "LoRA" if adapter == "lora" else "all weights"
            print(
                f"{count:>2} prompts, {name:<16} {trained:<12} ours {found['ours_tokens_per_s']:7.0f}  "
                f"TRL {found['theirs_tokens_per_s']:7.0f}  {found['ratio']:5.2f}x "
                f"({found['lowest']:.2f} to {found['highest']:.2f})" + (f"  aim {aim}" if aim else ""),
                flush=True,
            )


if __name__ == "__main__":
    main()
