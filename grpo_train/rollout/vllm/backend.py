"""``rollout.backend: vllm``: completions from a vLLM server, which gets the policy's weights as files."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from grpo_train.config.schema import Config, Rollout
from grpo_train.policy.completion import Completion
from grpo_train.policy.loading import Policy, compute_type
from grpo_train.policy.locate import PolicyError, hub_id
from grpo_train.policy.weights_file import write_safetensors
from grpo_train.rollout.draw import Ends
from grpo_train.rollout.vllm.client import ServerGoneError, ServerRefusedError, call_server
from grpo_train.rollout.vllm.server import LocalServer, RunningServer, Server, python_of

REQUESTS = 1024
"""Completions that are asked for at once, at most; the server queues what has no room."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters that vLLM makes room for."""
TOLERANCE = {2: 0.1, 4: 1e-2}
"""Largest mean difference of log-probabilities from the policy's, by bytes of the compute type."""

_servers: dict[str, Server] = {}
"""This process's servers by what they serve: several backends share one."""


class VllmBackend:
    """:class:`~grpo_train.rollout.RolloutBackend` for models that vLLM runs.

    A completion is determined by seed, prompt and weights up to rounding, which depends on what else the server
    computes at the time. ``on_token`` is called when a completion is done.
    """

    def __init__(self, policy: Policy, stop: Sequence[str], config: Config) -> None:
        """Start or find the server, and compare its log-probabilities with the policy's.

        Raises PolicyError without a server, or for one with another model.
        """
        self.fallbacks: dict[str, str] = {}
        self._policy, self._stop = policy, list(stop)
        self._dtype = compute_type(config.model, policy.device)
        self._ends = Ends(policy.model, policy.tokenizer, ())  # the server finds the stop strings
        self._server = _server_of(policy, config.rollout, self._dtype)
        self._name, self._versions = uuid.uuid4().hex[:8], itertools.count()
        self._model = ""
        self._is_stale = True
        """Whether the server lacks the weights of the last :meth:`sync`."""
        self._sync()
        self._compare()

    def sync(self) -> None:
        """See :meth:`grpo_train.rollout.RolloutBackend.sync`. Raises PolicyError."""
        self._is_stale = True
        self._retrying(self._sync)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        max_completion_length: int,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
        batch_size: int = 0,
        on_done: Callable[[int, Completion], None] | None = None,
        on_token: Callable[[int, int, int], None] | None = None,
    ) -> list[Completion]:
        """See :meth:`grpo_train.rollout.RolloutBackend.generate`.

        A server of ours that ends is started again once. Raises PolicyError if it ends twice, for a URL that no longer
        answers, and for what the server refuses.
        """
        common = {
            "temperature": temperature, "top_p": top_p, "top_k": top_k,
            "stop": self._stop, "include_stop_str_in_output": True, "stop_token_ids": self._ends.tokens,
            "logprobs": 0 if temperature > 0 else None, "return_token_ids": True, "skip_special_tokens": False,
        }  # fmt: skip
        completions: dict[int, Completion] = {}

        def ask(index: int) -> Completion:
            prompt, whole = tuple(prompts[index]), Completion(tuple(prompts[index]), (), (), finished=False)
            while True:  # a stop string in the thoughts does not count: the completion continues after it
                drawn = len(whole.ids)
                own = {"prompt": [*prompt, *whole.ids], "seed": seeds[index] + drawn, "model": self._model}
                body = {**own, **common, "max_tokens": max_completion_length - drawn}
                part = _completion(list(prompt), self._call("/v1/completions", body)["choices"][0])
                whole = replace(part, ids=whole.ids + part.ids, logps=whole.logps + part.logps)
                if not part.finished or not part.ids or self._ends.counts(prompt, whole.ids):
                    return whole
                if len(whole.ids) >= max_completion_length:
                    return replace(whole, finished=False)

        def ask_all() -> None:
            self._sync()
            left = [index for index in range(len(prompts)) if index not in completions]
            for index, completion in _each(ask, left, min(batch_size or REQUESTS, REQUESTS)):
                completions[index] = completion
                for position, token in enumerate(completion.ids if on_token else ()):
                    on_token(index, position, token)  # type: ignore[misc]
                if on_done is not None:
                    on_done(index, completion)

        self._retrying(ask_all)
        return [completions[index] for index in range(len(prompts))]

    def _retrying(self, action: Callable[[], None]) -> None:
        try:
            return action()
        except ServerGoneError as error:  # killed for its memory, or by CUDA
            print(f"the vLLM server ended ({error})", flush=True)
        if not self._server.restart():
            raise PolicyError(f"the vLLM server at {self._server.where} no longer answers; start it and resume the run")
        try:
            return action()
        except ServerGoneError as error:  # the new one, too
            raise PolicyError(f"vLLM ended twice ({error}); {self._server.where}") from error

    def _call(self, path: str, body: dict[str, Any], *, timeout_s: float | None = None) -> Any:
        try:
            return call_server(self._server.address, path, body, timeout_s=timeout_s)
        except ServerRefusedError as error:  # a prompt that is longer than its context
            message = str(error)
            fix = "; raise rollout.vllm_max_model_length" if "context length" in message else ""
            raise PolicyError(f"vLLM: {message}{fix} ({self._server.where})") from error

    def _sync(self) -> None:
        """Hand the policy's weights over if the server lacks them."""
        if not hasattr(self._policy.model, "peft_config"):
            if self._is_stale or self not in self._server.holds:
                self._hand_over_weights()
        elif _is_switched_off(self._policy.model):
            self._model = self._server.model
        elif self._is_stale or self._model not in self._server.holds:
            self._hand_over_adapter()
        self._is_stale = False

    def _hand_over_weights(self) -> None:
        weights = self._policy.weights()
        if self._policy.device.type == "cpu" and self._policy.model.config.tie_word_embeddings:
            raise PolicyError(
                "vLLM on a CPU keeps the old output layer of a model whose embeddings are tied (seen with 0.32); set "
                "model.adapter: lora, or rollout.backend: native"
            )
        if weights is None:
            raise PolicyError("vLLM cannot take over this model's weights, which are stored in another layout")
        self._server.holds.clear()
        folder = self._server.folder / "weights"
        self._write(folder, {name: weight.to(self._dtype) for name, weight in weights.items()})
        self._call("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        self._call("/reset_prefix_cache", {})
        shutil.rmtree(folder)
        self._model = self._server.model
        self._server.holds.add(self)

    def _hand_over_adapter(self) -> None:
        """Under a new name each time: vLLM's cache of prompts goes by the name."""
        weights = self._policy.weights()
        assert weights is not None
        last, name = self._model, f"{self._name}-{next(self._versions)}"
        folder = self._server.folder / name
        self._write(folder, weights)
        self._call("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        self._model = name
        self._server.holds.add(name)
        if last in self._server.holds:
            self._call("/v1/unload_lora_adapter", {"lora_name": last})
            self._server.holds.discard(last)
            shutil.rmtree(self._server.folder / last, ignore_errors=True)

    def _write(self, folder: Path, weights: dict[str, torch.Tensor]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self._policy.description.items():
            if name in ("config.json", "adapter_config.json"):
                (folder / name).write_bytes(data)
        try:
            with (folder / self._policy.weights_name).open("wb") as file:
                write_safetensors(file, weights)
        except OSError as error:  # a full disk
            raise PolicyError(f"cannot hand the weights to vLLM: {folder}: {error.strerror}") from error

    def _compare(self) -> None:
        """Raise PolicyError if the server's log-probabilities of some tokens are not the policy's."""
        ids = list(range(3, 35))
        body = {"model": self._model, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        rows = self._call("/v1/completions", body)["choices"][0]["prompt_logprobs"][1:]
        found = torch.tensor([row[str(token)]["logprob"] for row, token in zip(rows, ids[1:], strict=True)])
        model, was_training = self._policy.model, self._policy.model.training
        model.eval()
        with torch.no_grad(), self._policy.autocast():
            logits = model(input_ids=torch.tensor([ids], device=self._policy.device), use_cache=False).logits[0, :-1]
        model.train(was_training)
        expected = logits.float().log_softmax(-1).cpu().gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1)
        difference = float((found - expected).abs().mean())
        if not difference <= TOLERANCE[self._dtype.itemsize]:
            raise PolicyError(
                f"vLLM computes other log-probabilities than the policy (mean difference {difference:.2g}): its base "
                f"model is another one than {self._policy.base}, or it ignores the adapter ({self._server.where})"
            )
        sure = {"model": self._model, "prompt": ids, "max_tokens": 1, "temperature": 1, "top_k": 1, "logprobs": 0}
        if self._call("/v1/completions", sure)["choices"][0]["logprobs"]["token_logprobs"][0] < -1e-4:
            raise PolicyError(
                f"the vLLM server at {self._server.where} reports log-probabilities before top-k, top-p and "
                "temperature; start it with --logprobs-mode processed_logprobs"
            )


def _each(ask: Callable[[int], Completion], indices: Sequence[int], at_once: int) -> Iterator[tuple[int, Completion]]:
    """Index and completion of each, as they end; an error ends the others."""
    if not indices:
        return
    pool = ThreadPoolExecutor(min(at_once, len(indices)), thread_name_prefix="vllm")
    futures: dict[Future[Completion], int] = {pool.submit(ask, index): index for index in indices}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _completion(prompt: list[int], choice: dict[str, Any]) -> Completion:
    ids, logprobs = tuple(choice["token_ids"]), choice["logprobs"]
    logps = tuple(logprobs["token_logprobs"]) if logprobs else ()
    if logps and (len(logps) != len(ids) or not all(map(math.isfinite, logps))):
        raise PolicyError("vLLM returned log-probabilities that are not finite: the weights have diverged")
    return Completion(tuple(prompt), ids, logps, choice["finish_reason"] == "stop")


def _is_switched_off(model: Any) -> bool:
    return any(module.disable_adapters for module in model.modules() if isinstance(module, BaseTunerLayer))


def _server_of(policy: Policy, settings: Rollout, dtype: torch.dtype) -> Server:
    """This process's server for a model; it is started if there is none yet."""
    if settings.vllm_urls:
        url = settings.vllm_urls[int(os.environ.get("RANK", "0")) % len(settings.vllm_urls)]
        if url not in _servers:
            _servers[url] = RunningServer(url, Path(settings.vllm_shared_dir).expanduser())
        return _servers[url]
    is_adapter = hasattr(policy.model, "peft_config")
    base = policy.model.get_base_model() if is_adapter else policy.model
    source = base.config._name_or_path
    if not Path(source).is_dir():
        source = policy.base
    # Full weights are handed over, so that one server of their shape serves all checkpoints.
    shape = json.dumps(base.config.to_diff_dict() | {"_name_or_path": ""}, sort_keys=True, default=str)
    key = f"{source if is_adapter else ''} {shape} {dtype}"
    if key not in _servers:
        name, commit = (source, None) if Path(source).is_dir() else hub_id(source)
        options = [
            "--model", os.path.abspath(name) if Path(name).is_dir() else name,
            "--dtype", str(dtype).removeprefix("torch."),
            "--max-model-len", str(settings.vllm_max_model_length or "auto"),
            "--gpu-memory-utilization", str(settings.vllm_gpu_memory_utilization),
            "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm",
        ]  # fmt: skip
        options += ["--revision", commit] if commit else []
        options += ["--enforce-eager"] if policy.device.type == "cpu" else []
        if is_adapter:
            largest = max(adapter.r for adapter in policy.model.peft_config.values())
            rank = next((rank for rank in RANKS if rank >= largest), largest)
            options += ["--enable-lora", "--max-lora-rank", str(rank), "--max-cpu-loras", "4"]
        gpu = policy.device.index or 0 if policy.device.type == "cuda" else None
        _servers[key] = LocalServer(python_of(settings), options, gpu=gpu)
    return _servers[key]
