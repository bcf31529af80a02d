"""The gradient of an optimizer step: a sum over micro-batches and ranks in float32, and each micro-batch's norm.

Autograd would accumulate micro-batches too. Summing here costs the same (a hook takes each parameter's gradient as soon
as it is ready) and gives the noise-scale probe every micro-batch's norm without changing a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from grpo_train.train.distributed import World


class GradientSum:
    """One flat buffer for the gradients of all trained parameters."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Hook every parameter; :meth:`close` removes the hooks."""
        self.parameters = list(parameters)
        first = self.parameters[0]
        dtype = torch.promote_types(first.dtype, torch.float32)
        self._flat = torch.zeros(sum(p.numel() for p in self.parameters), dtype=dtype, device=first.device)
        self._views: list[torch.Tensor] = []
        offset = 0
        for parameter in self.parameters:
            self._views.append(self._flat[offset : offset + parameter.numel()].view_as(parameter))
            offset += parameter.numel()
        self._squares: list[torch.Tensor] = []
        self._is_last_piece = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._take(view))
            for parameter, view in zip(self.parameters, self._views, strict=True)
        ]

    def start(self) -> None:
        """Begin a step."""
        for parameter in self.parameters:
            parameter.grad = None
        self._flat.zero_()
        self._squares = []

    def start_microbatch(self) -> None:
        """Begin a micro-batch, which the following backward passes belong to."""
        self._squares.append(torch.zeros((), dtype=self._flat.dtype, device=self._flat.device))

    def backward(self, loss: torch.Tensor, *, is_last_piece: bool = True) -> None:
        """``loss.backward()``; the pieces of a micro-batch are added to the sum with its last one."""
        self._is_last_piece = is_last_piece
        loss.backward()
        if is_last_piece:
            for parameter, view in zip(self.parameters, self._views, strict=True):
                if parameter.grad is not None:  # used by an earlier piece, not by the last
                    self._add(parameter, view)

    def all_reduce(self, world: World) -> list[float]:
        """Sum over the ranks and set each parameter's gradient. A rank without completions contributes zeros.

        Returns the squared norms of this rank's micro-batch gradients, as they enter the sum.
        """
        world.sum_(self._flat)
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view if view.dtype == parameter.dtype else view.to(parameter.dtype)
        return torch.stack(self._squares).tolist() if self._squares else []

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _take(self, view: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def take(parameter: torch.Tensor) -> None:
            if self._is_last_piece:
                self._add(parameter, view)

        return take

    def _add(self, parameter: torch.Tensor, view: torch.Tensor) -> None:
        assert parameter.grad is not None
        gradient = parameter.grad.to(view.dtype)
        parameter.grad = None
        view.add_(gradient)
        self._squares[-1] += torch.linalg.vector_norm(gradient).square()
