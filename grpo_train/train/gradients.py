"""The gradient of an optimizer step: a sum over micro-batches and ranks in float32, with each micro-batch's norm.

Autograd would add micro-batches up by itself; summing them here costs the same (a hook takes each parameter's gradient
as soon as it is there) and shows the noise-scale probe every micro-batch, so that the probe changes no number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from grpo_train.train.distributed import Group


class GradientSum:
    """One flat buffer for the gradients of all trained parameters."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Hooks every parameter; :meth:`close` takes the hooks out again."""
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
        self._last_piece = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._take(view))
            for parameter, view in zip(self.parameters, self._views, strict=True)
        ]

    def start(self) -> None:
        """Begin a step: no gradient, no micro-batch."""
        for parameter in self.parameters:
            parameter.grad = None
        self._flat.zero_()
        self._squares = []

    def start_microbatch(self) -> None:
        """The backwards that follow belong to one micro-batch."""
        self._squares.append(torch.zeros((), dtype=self._flat.dtype, device=self._flat.device))

    def backward(self, loss: torch.Tensor, *, last_piece: bool = True) -> None:
        """``loss.backward()``; a micro-batch of several pieces is summed up when its last piece is done."""
        self._last_piece = last_piece
        loss.backward()
        if last_piece:
            for parameter, view in zip(self.parameters, self._views, strict=True):
                if parameter.grad is not None:  # touched by an earlier piece, not by the last
                    self._add(parameter, view)

    def finish(self, group: Group) -> list[float]:
        """Sum over the ranks and hand each parameter its gradient (a rank without work takes part with zeros).

        Returns the squared norms of this rank's micro-batch gradients, as they enter the sum.
        """
        group.sum_(self._flat)
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view if view.dtype == parameter.dtype else view.to(parameter.dtype)
        return torch.stack(self._squares).tolist() if self._squares else []

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _take(self, view: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def take(parameter: torch.Tensor) -> None:
            if self._last_piece:
                self._add(parameter, view)

        return take

    def _add(self, parameter: torch.Tensor, view: torch.Tensor) -> None:
        assert parameter.grad is not None
        gradient = parameter.grad.to(view.dtype)
        parameter.grad = None
        view.add_(gradient)
        self._squares[-1] += torch.linalg.vector_norm(gradient).square()
