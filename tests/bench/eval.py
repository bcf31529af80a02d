"""Decoding of evaluations against lm-evaluation-harness: ``python tests/bench/eval.py [--quick]``, takes minutes.

lm-evaluation-harness needs a separate environment, created once (the second line shares this environment's torch and
transformers, so that both sides use the same versions):

    python -m venv /tmp/lmeval
    echo "$PWD/.venv/lib/python3.11/site-packages" > /tmp/lmeval/lib/python3.11/site-packages/main.pth
    /tmp/lmeval/bin/python -m pip install lm-eval

Its Python is set by ``--lm-eval`` (default /tmp/lmeval/bin/python) or LM_EVAL_PYTHON. Without it only our side is
measured.

Both sides get the same model (a random Qwen2 of a few million parameters), the same prompt texts, batch size and stop
string, decode greedily, and must return the same texts. The model does all of its arithmetic, then outputs the word
before the last one (t007 t006 … t000, which ends it): so the prompts determine the length of every completion, all 64,
or 4 to 256 with a long tail. The two sides take turns in separate processes; time is CPU seconds of one thread; a ratio
is of adjacent runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

FIRST, WORDS, BUDGET, BATCH = 256, 512, 256, 32
STOP = "</answer>"


def make_model() -> tuple[Any, Any]:
    """A model that counts down, and a tokenizer of bytes and the words t000 (the end) to t511."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    class CountsDown(Qwen2ForCausalLM):
        def forward(self, input_ids: Any, logits_to_keep: Any = 0, **inputs: Any) -> Any:
            found = super().forward(input_ids=input_ids, logits_to_keep=logits_to_keep, **inputs)
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            next_BK = (input_ids[:, kept] - 1).clamp(min=FIRST)
            found.logits += 1e4 * torch.nn.functional.one_hot(next_BK, found.logits.shape[-1])
            return found

    torch.manual_seed(0)
    model = CountsDown(
        Qwen2Config(
            vocab_size=FIRST + WORDS, hidden_size=256, intermediate_size=768, num_hidden_layers=6,
            num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True,
            eos_token_id=FIRST, pad_token_id=FIRST, bos_token_id=None,
        )
    ).eval()  # fmt: skip
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    letters.add_tokens([f"t{word:03}" for word in range(WORDS)])
    return model, PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="t000", pad_token="t000")


def make_prompts(kind: str, count: int) -> list[str]:
    """Prompts of 20 to 60 words; the last word sets the length of the completion."""
    rng = random.Random(kind)
    lengths = [64] * count if kind == "equal" else [min(BUDGET, 4 + int(rng.expovariate(1 / 60))) for _ in range(count)]
    words = [[rng.randrange(300, WORDS) for _ in range(rng.randrange(20, 60))] for _ in range(count)]
    return ["".join(f"t{word:03}" for word in [*prompt, end]) for prompt, end in zip(words, lengths, strict=True)]


def ours() -> Callable[[list[str]], list[str]]:
    """The steps of an evaluating process from prompts to texts."""
    from grpo_train.evaluation.workers.single_turn import CHUNK_BATCHES
    from grpo_train.rollout.transformers_backend import TransformersBackend

    model, tokenizer = make_model()
    backend = TransformersBackend(model, tokenizer, (STOP,))

    def generate(prompts: list[str]) -> list[str]:
        ids = tokenizer(prompts)["input_ids"]
        order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
        texts: dict[int, str] = {}
        for first in range(0, len(order), BATCH * CHUNK_BATCHES):
            chosen = order[first : first + BATCH * CHUNK_BATCHES]
            found = backend.generate(
                [ids[index] for index in chosen],
                seeds=[0] * len(chosen),
                max_completion_length=BUDGET,
                temperature=0.0,
                batch_size=BATCH,
            )
            decoded = tokenizer.batch_decode([one.ids for one in found], skip_special_tokens=True)
            texts |= dict(zip(chosen, decoded, strict=True))
        return [texts[index] for index in range(len(prompts))]

    return generate


def lm_eval() -> Callable[[list[str]], list[str]]:
    """``HFLM.generate_until``, called by every generating task of lm-evaluation-harness."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model, tokenizer = make_model()
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=BATCH, device="cpu", max_length=2048)

    def generate(prompts: list[str]) -> list[str]:
        options = {"until": [STOP], "max_gen_toks": BUDGET, "do_sample": False}
        requests = [
            Instance(request_type="generate_until", doc={}, arguments=(prompt, dict(options)), idx=index)
            for index, prompt in enumerate(prompts)
        ]
        return list(theirs.generate_until(requests, disable_tqdm=True))

    return generate


def serve(side: str) -> None:
    """Answer requests on standard input, one JSON line each: {"prompts"} in, {"seconds", "texts"} out."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps prints of libraries off the channel
    import torch

    torch.set_num_threads(1)
    generate = ours() if side == "ours" else lm_eval()
    print("{}", file=channel, flush=True)
    for line in sys.stdin:
        prompts = json.loads(line)["prompts"]
        began = time.process_time()
        texts = generate(prompts)
        print(json.dumps({"seconds": time.process_time() - began, "texts": texts}), file=channel, flush=True)


class Side:
    """One side in a separate process."""

    def __init__(self, python: str, side: str) -> None:
        self._process = subprocess.Popen(
            [python, __file__, "--serve", side],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._read()

    def ask(self, prompts: list[str]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} ended; run it manually to see the error")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = os.environ.get("LM_EVAL_PYTHON", "/tmp/lmeval/bin/python")
    arguments.add_argument("--lm-eval", default=default, help="Python of the environment with lm-eval.")
    arguments.add_argument("--quick", action="store_true", help="Run one round of 128 completions.")
    arguments.add_argument("--serve", choices=["ours", "lm-eval"], help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.serve:
        serve(options.serve)
        return
    rounds, count = (1, 128) if options.quick else (3, 128)
    sides = {"ours": Side(sys.executable, "ours")}
    if Path(options.lm_eval).exists():
        sides["lm-eval"] = Side(options.lm_eval, "lm-eval")
    else:
        print(f"lm-evaluation-harness not found at {options.lm_eval} (see --help): measuring our side only")
    print(f"{count} completions, batches of {BATCH}, {rounds} rounds, one thread; completions per CPU second")
    try:
        for kind in ("equal", "ragged"):
            prompts = make_prompts(kind, count)
            expected = [int(prompt.rsplit("t", 1)[1]) for prompt in prompts]
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(rounds):
                for name, side in sides.items():
                    answer = side.ask(prompts)
                    words = [text.replace("t000", "").count("t") for text in answer["texts"]]
                    assert words == [length - 1 for length in expected], f"{name}: {words} instead of {expected}"
                    seconds[name].append(answer["seconds"])
            rates = {name: count / statistics.median(times) for name, times in seconds.items()}
            text = "  ".join(f"{name} {rate:6.2f}" for name, rate in rates.items())
            if "lm-eval" in seconds:
                pairs = zip(seconds["lm-eval"], seconds["ours"], strict=True)
                ratios = sorted(theirs / mine for theirs, mine in pairs)
                text += f"  ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(f"{kind:>7}: {text}", flush=True)
    finally:
        for side in sides.values():
            side.end()


if __name__ == "__main__":
    main()
