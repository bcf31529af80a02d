"""Rollouts through transformers' ``generate``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import StopStringCriteria

from grpo_train.rollout import Completion


class _Recorder:
    """Sees each step's logits and then the token drawn from them: keeps log-probabilities, lengths, who is done.

    Only one step's (B, V) log-probabilities are alive at a time.
    """

    def __init__(
        self,
        prompt_width: int,
        eos_ids: torch.Tensor,
        stop: StopStringCriteria | None,
        temperature: float,
        cuts: Sequence[LogitsProcessor],
    ) -> None:
        """``cuts``: what of the distribution may not be drawn, after the temperature."""
        self._prompt_width, self._eos_ids, self._stop, self._temperature = prompt_width, eos_ids, stop, temperature
        self._cuts = cuts
        self._step_logps: torch.Tensor | None = None
        self.logps: list[torch.Tensor] = []
        self.finished: torch.Tensor | None = None
        self.lengths: torch.Tensor | None = None

    def process(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The logits to draw from; generate itself is told temperature 1 and no cuts."""
        if self._temperature <= 0:
            return scores
        scores = scores.float() / self._temperature
        for cut in self._cuts:
            scores = cut(input_ids, scores)
        self._step_logps = torch.log_softmax(scores, dim=-1)
        return scores

    def stop_now(self, input_ids: torch.Tensor, scores: Any) -> torch.Tensor:
        token = input_ids[:, -1]
        if self.finished is None or self.lengths is None:
            self.finished = torch.zeros(len(token), dtype=torch.bool, device=token.device)
            self.lengths = torch.zeros(len(token), dtype=torch.long, device=token.device)
        if self._step_logps is not None:
            self.logps.append(self._step_logps.gather(1, token.unsqueeze(1)).squeeze(1))
        self.lengths[~self.finished] = input_ids.shape[1] - self._prompt_width
        done = torch.isin(token, self._eos_ids)
        if self._stop is not None:
            done |= self._stop(input_ids, scores)
        self.finished |= done
        return self.finished


class _RecordLogits(LogitsProcessor):
    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self._recorder.process(input_ids, scores)


class _RecordToken(StoppingCriteria):
    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return self._recorder.stop_now(input_ids, scores)


class TransformersBackend:
    """:class:`~grpo_train.rollout.RolloutBackend` over a transformers model, which it shares with the trainer."""

    def __init__(self, model: Any, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        """``stop``: strings at which a completion ends; they stay in it."""
        self._model, self._tokenizer = model, tokenizer
        # Made once: it looks at every token of the vocabulary.
        self._stop = StopStringCriteria(tokenizer, list(stop)) if stop else None

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        num_generations: int,
        max_completion_length: int,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
        batch_size: int = 0,
        on_batch: Callable[[Sequence[Completion]], None] | None = None,
    ) -> list[Completion]:
        """See :meth:`grpo_train.rollout.RolloutBackend.generate`."""
        repeated = [tuple(prompt) for prompt in prompts for _ in range(num_generations)]
        size = batch_size or len(repeated)
        cuts: list[LogitsProcessor] = [TopKLogitsWarper(top_k)] if top_k else []
        cuts += [TopPLogitsWarper(top_p)] if top_p < 1 else []
        done: list[Completion] = []
        with _generating(self._model):
            for start in range(0, len(repeated), size):
                batch = self._batch(repeated[start : start + size], max_completion_length, temperature, cuts)
                done += batch
                if on_batch is not None:
                    on_batch(batch)
        return done

    def _batch(
        self, prompts: list[tuple[int, ...]], budget: int, temperature: float, cuts: Sequence[LogitsProcessor]
    ) -> list[Completion]:
        device = self._model.device
        width = max(map(len, prompts))
        pad_id = self._tokenizer.pad_token_id
        input_ids = torch.full((len(prompts), width), pad_id, dtype=torch.long)
        attention_mask = torch.zeros_like(input_ids)
        for row, prompt in enumerate(prompts):
            input_ids[row, width - len(prompt) :] = torch.tensor(prompt)
            attention_mask[row, width - len(prompt) :] = 1
        eos_ids = torch.tensor([self._tokenizer.eos_token_id], device=device)
        recorder = _Recorder(width, eos_ids, self._stop, temperature, cuts)
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            # Every sampling knob is spelled out: a checkpoint's own generation_config must not cut the support.
            sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        sequences = self._model.generate(
            input_ids=input_ids.to(device),
            attention_mask=attention_mask.to(device),
            generation_config=GenerationConfig(
                max_new_tokens=budget, pad_token_id=pad_id, eos_token_id=eos_ids.tolist(), use_cache=True, **sampling
            ),
            logits_processor=LogitsProcessorList([_RecordLogits(recorder)]),
            stopping_criteria=StoppingCriteriaList([_RecordToken(recorder)]),
        )
        assert recorder.lengths is not None
        assert recorder.finished is not None
        tokens = sequences[:, width:].tolist()
        lengths, finished = recorder.lengths.tolist(), recorder.finished.tolist()
        logps = torch.stack(recorder.logps, dim=1).tolist() if recorder.logps else [[]] * len(prompts)
        return [
            Completion(
                prompt_ids=prompts[row],
                ids=tuple(tokens[row][: lengths[row]]),
                logps=tuple(logps[row][: lengths[row]]),
                finished=finished[row],
            )
            for row in range(len(prompts))
        ]


@contextmanager
def _generating(model: Any) -> Iterator[None]:
    """Evaluation mode, and a neutral generation_config so that no default of the checkpoint takes part."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    training, own = model.training, inner.generation_config
    inner.generation_config = GenerationConfig()
    model.eval()
    try:
        yield
    finally:
        inner.generation_config = own
        model.train(training)
