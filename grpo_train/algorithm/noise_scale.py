"""Gradient noise scale: the batch size at which a step's gradient is as much signal as noise.

McCandlish et al. 2018, "An Empirical Model of Large-Batch Training" (arXiv 1812.06162), §2.2 and appendix A.1. The unit
is the prompt group. Completions of a group share a baseline, so only groups are independent samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

MIN_STEPS = 5
"""Minimum number of steps for an interval."""
MIN_DEGREES_OF_FREEDOM = 3.0
"""Minimum for an interval. With fewer, the variance over steps is poorly known and the t quantile's series is off."""
MAX_REACH = math.log(1e6)
"""Largest log half-width of an interval; a wider one is not reported."""
FAR = 4.0
"""Factor from which a batch counts as far from the noise scale. There one of the two costs is 5 times its minimum
(§2.3: steps / minimum steps = 1 + B_simple / B, samples / minimum samples = 1 + B / B_simple)."""
ROUNDING = 1e-5
"""Share of the mean gradient's squared norm below which a difference of float32 norms is rounding error."""


@dataclass(frozen=True)
class NoiseScaleSample:
    """Estimates from one optimizer step. Noisy: only averages over steps are meaningful."""

    signal: float
    """Unbiased estimate of |G|^2, the squared norm of the true gradient; may be negative."""
    noise: float
    """Estimate of tr(Sigma), the trace of the covariance of one prompt group's gradient."""
    groups: int
    """Prompt groups of the step, zero-gradient groups included."""
    micro_batches: int
    """Micro-batches of the step, over all ranks."""


def noise_scale(
    squared_norms: Sequence[float], squared_norm_of_mean: float, batch_sizes: int | Sequence[int], zero_groups: int = 0
) -> tuple[float, float]:
    """Unbiased estimates of signal |G|^2 and noise tr(Sigma) from the micro-batches of one step.

    Micro-batch i holds b_i prompt groups, and G_i is the mean of their gradients. Gbar is the mean over all
    B = sum b_i groups, the b_i-weighted mean of the G_i. Groups are independent with mean G and covariance Sigma, so
    E <G_i, G_j> = |G|^2 for i != j and E |Gbar|^2 = |G|^2 + tr(Sigma) / B. Hence

        signal = sum over i != j of b_i b_j <G_i, G_j> / sum over i != j of b_i b_j
               = (B^2 |Gbar|^2 - sum b_i^2 |G_i|^2) / (B^2 - sum b_i^2)
        noise  = B (|Gbar|^2 - signal)

    For M equal b this is noise = b / (M - 1) sum |G_i - Gbar|^2, the estimator of appendix A.1 with B_small = b and
    B_big = b M. For unequal b, noise = (sum b_i |G_i|^2 - B |Gbar|^2) / (M - 1) has expectation tr(Sigma) too, but lets
    the norm of a small micro-batch into the signal. Simulated with sizes 1, 2, 5, 8, its signal scatters up to 5 times
    as much when most groups have no gradient and some a large one, and 8 % less when all are normal.

    A zero-gradient group (all its advantages are 0) is a sample too. It is either counted in the b_i of the micro-batch
    that its data position assigns it to or, where such groups are left out and the others packed together, the b_i
    count only the L others and ``zero_groups`` the rest. Then B = L + zero_groups, and the mean over pairs of live
    groups represents L (L - 1) of all B (B - 1) pairs; pairs with a zero group add nothing:

        signal = L (L - 1) / (B (B - 1)) (B^2 |Gbar|^2 - sum b_i^2 |G_i|^2) / (L^2 - sum b_i^2)

    A group's micro-batch must not depend on its gradient, or on anything correlated with it. Sorting (by length, or
    zero-gradient groups together but counted in the b_i) makes the noise too large; spreading groups evenly makes it
    too small. Whether a step is measured must not depend on it either: spread two or more live groups over two or more
    micro-batches, however few are live.

    Args:
        squared_norms: M values |G_i|^2 over all ranks, in fp32 or better, before clipping, scaled so that G_i is the
            mean over its b_i groups. Exact for a loss that divides by a constant or by completions (Dr. GRPO, GRPO,
            GSPO); approximate for a mean over the batch's tokens (BNPO, DAPO), which is a ratio.
        squared_norm_of_mean: |Gbar|^2 of the mean over all B groups, ``zero_groups`` included.
        batch_sizes: the b_i in prompt groups, or one number for all.
        zero_groups: zero-gradient groups that are in no micro-batch.

    Returns:
        (signal, noise) in squared gradient units. Either may be negative; with equal sizes, noise only by rounding.

    Raises:
        ValueError: sizes are not positive, do not match the norms, or cannot separate signal from noise (fewer than two
            groups, or two or more live groups in fewer than two micro-batches).
    """
    sizes = _sizes(batch_sizes, len(squared_norms), zero_groups)
    live = sum(sizes)
    groups = live + zero_groups
    if not _enough(len(sizes), live, groups):
        raise ValueError(f"{len(sizes)} micro-batches of {groups} prompt groups cannot separate signal from noise")
    signal = 0.0  # with fewer than two live groups no pair contributes
    if live > 1:
        own = sum(size**2 * norm for size, norm in zip(sizes, squared_norms, strict=True))
        pairs = live**2 - sum(size**2 for size in sizes)
        live_pairs = live * (live - 1) / (groups * (groups - 1))
        signal = live_pairs * (groups**2 * squared_norm_of_mean - own) / pairs
    return signal, groups * (squared_norm_of_mean - signal)


class GradientNoiseScale:
    """Running estimate of B_simple = tr(Sigma) / |G|^2, in prompt groups.

    Signal and noise are averaged over steps separately and then divided, since the ratio of a single step is biased and
    may be negative. Both are exponential moving averages with bias correction (a step of age k has weight decay^k over
    the sum of the weights), so that the first steps count almost equally.

    Args:
        decay: weight of a step relative to the next one, in [0, 1). 0.95 averages over about 40 steps
            ((1 + decay) / (1 - decay)). Below about 0.8 too few steps count for an interval.

    Raises:
        ValueError: ``decay`` is out of range.
    """

    def __init__(self, decay: float = 0.95) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}; it must be in [0, 1)")
        self.decay = decay
        self.steps = 0
        """Steps measured."""
        self.dropped = 0
        """Steps left out because a norm was infinite or NaN."""
        # Sums over all steps of weight, weight x signal and weight x noise; the newest step has weight 1.
        self._weight = 0.0
        self._signal_sum = 0.0
        self._noise_sum = 0.0
        # (weight, signal, noise) of the last steps, oldest first; older steps have 5 % of the weight together.
        self._window: list[tuple[float, float, float]] = []
        self._window_length = max(MIN_STEPS, round(3 / (1 - decay)))

    def update(
        self,
        squared_norms: Sequence[float],
        squared_norm_of_mean: float,
        batch_sizes: int | Sequence[int],
        zero_groups: int = 0,
    ) -> NoiseScaleSample | None:
        """Add one optimizer step; arguments as in :func:`noise_scale`, the same on every rank.

        Returns:
            The step's estimates. None when it was not added: too few micro-batches (nothing changes), or a value that
            is not finite (counted in ``dropped``).

        Raises:
            ValueError: sizes are not positive, or do not match the norms.
        """
        sizes = _sizes(batch_sizes, len(squared_norms), zero_groups)
        groups = sum(sizes) + zero_groups
        if not _enough(len(sizes), sum(sizes), groups):
            return None
        if not all(map(math.isfinite, (*squared_norms, squared_norm_of_mean))):
            self.dropped += 1
            return None
        signal, noise = noise_scale(
            [float(norm) for norm in squared_norms], float(squared_norm_of_mean), sizes, zero_groups
        )
        if not (math.isfinite(signal) and math.isfinite(noise)):
            self.dropped += 1
            return None
        if abs(signal) <= ROUNDING * squared_norm_of_mean:
            signal = 0.0  # float32 rounding, as when a single micro-batch has a gradient
        self.steps += 1
        self._weight = self.decay * self._weight + 1.0
        self._signal_sum = self.decay * self._signal_sum + signal
        self._noise_sum = self.decay * self._noise_sum + noise
        aged = [(self.decay * weight, old_signal, old_noise) for weight, old_signal, old_noise in self._window]
        self._window = [*aged, (1.0, signal, noise)][-self._window_length :]
        return NoiseScaleSample(signal, noise, groups, len(sizes))

    @property
    def signal(self) -> float:
        """Average estimate of |G|^2; not positive when buried in the noise, NaN before the first step."""
        return self._signal_sum / self._weight if self.steps else math.nan

    @property
    def noise(self) -> float:
        """Average estimate of tr(Sigma) of one prompt group's gradient; NaN before the first step."""
        return self._noise_sum / self._weight if self.steps else math.nan

    @property
    def resolved(self) -> bool:
        """Whether the averages can be divided: the signal is positive and rounding left the noise non-negative."""
        return self.signal > 0 and self.noise >= 0

    @property
    def b_simple(self) -> float:
        """tr(Sigma) / |G|^2 in prompt groups; NaN when not resolved (a floor under the signal would invent a value)."""
        return self.noise / self.signal if self.resolved else math.nan

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of ``b_simple`` in prompt groups, by a delete-one jackknife over steps.

        Over steps, because deleting a micro-batch would need the inner products <G_i, Gbar>, and hence all micro-batch
        gradients at once. On log(noise / signal), so that the bounds are positive. With w_k a step's share of all
        weights (they sum to 1) and theta_k the estimate without step k, (1 - w_k)(theta_k - theta) is the step's
        influence (for a weighted mean exactly w_k (mean - x_k)), and

            variance = c sum_k ((1 - w_k)(theta_k - theta))^2,    c = W2 / (W2 - 2 W3 + W2^2),    Wp = sum_k w_k^p,

        where c makes it unbiased for a weighted mean of independent steps (n / (n - 1) for equal weights). The quantile
        is Student's t with W2^2 / W4 - 1 degrees of freedom (Satterthwaite's; n - 1 for equal weights).

        Limits: the steps in the window (the last 3 / (1 - decay)) are treated as independent draws of one distribution.
        A drift of the gradient within the window widens the interval. Noise shared by consecutive steps (updates on one
        buffer) would need a wider one. Simulated coverage at level 0.95 after 40 independent steps: 0.95 to 0.97 for
        normal gradients, 0.92 to 0.93 when 60 % of the groups have no gradient and the lengths of the others are
        log-normal. Where the signal is hardly above its own error (batch below a tenth of the noise scale), half to
        three quarters of the runs have an interval, which covers the true value in 0.79 to 0.91 of the cases and is
        otherwise below it.

        Returns:
            (low, high). NaN, NaN where not resolved: fewer than 5 steps or 3 degrees of freedom, or a signal or noise
            that is not positive with all steps or without one of them.

        Raises:
            ValueError: ``level`` is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise ValueError(f"level is {level}; it must be between 0 and 1")
        unresolved = (math.nan, math.nan)
        if self.steps < MIN_STEPS or not (self.resolved and self.noise > 0):
            return unresolved
        center = math.log(self._noise_sum) - math.log(self._signal_sum)
        influences = []
        for weight, signal, noise in self._window:
            signal_without = self._signal_sum - weight * signal
            noise_without = self._noise_sum - weight * noise
            if signal_without <= 0 or noise_without <= 0:
                return unresolved
            without = math.log(noise_without) - math.log(signal_without)
            influences.append((1 - weight / self._weight) * (without - center))
        w2, w3, w4 = (math.fsum((weight / self._weight) ** p for weight, _, _ in self._window) for p in (2, 3, 4))
        freedom = w2**2 / w4 - 1
        if freedom < MIN_DEGREES_OF_FREEDOM:
            return unresolved
        variance = w2 / (w2 - 2 * w3 + w2**2) * math.fsum(influence**2 for influence in influences)
        reach = student_t(level, freedom) * math.sqrt(variance)
        if reach > MAX_REACH:
            return unresolved
        return self.b_simple * math.exp(-reach), self.b_simple * math.exp(reach)

    def metrics(self, num_generations: int) -> dict[str, float]:
        """Columns of the training log; NaN where not resolved.

        Units: squared gradient (signal, noise), prompt groups, and completions (groups x ``num_generations``).
        """
        low, high = self.interval()
        return {
            "gns/signal": self.signal,
            "gns/noise": self.noise,
            "gns/b_simple": self.b_simple,
            "gns/b_simple_low": low,
            "gns/b_simple_high": high,
            "gns/b_simple_completions": self.b_simple * num_generations,
        }

    def advice(self, buffer_size: int, num_generations: int) -> str:
        """One sentence that compares the current batch size with the recommended one.

        Args:
            buffer_size: prompt groups per optimizer step.
            num_generations: completions per prompt group.
        """
        current = f"{buffer_size} prompt groups ({buffer_size * num_generations} completions) a step"
        if not self.resolved:
            return f"The gradient noise scale is not resolved yet: {self._why_unresolved(current)}."
        low, high = self.interval()
        certainty = "no interval yet" if math.isnan(low) else f"95% interval {_number(low)} to {_number(high)}"
        scale = (
            f"The gradient noise scale recommends about {_number(self.b_simple)} prompt groups "
            f"({_number(self.b_simple * num_generations)} completions) a step ({certainty})"
        )
        if buffer_size * FAR <= self.b_simple:
            return f"{scale}; the current {current} are far below it: a larger batch would need far fewer steps."
        if buffer_size >= self.b_simple * FAR:
            return f"{scale}; the current {current} are far above it: a smaller batch would need far fewer completions."
        return f"{scale}; the current {current} are near it."

    def state_dict(self) -> dict[str, Any]:
        """Everything the next update depends on, as plain numbers and lists (``torch.load(weights_only=True)``)."""
        return {
            "steps": self.steps,
            "dropped": self.dropped,
            "weight": self._weight,
            "signal_sum": self._signal_sum,
            "noise_sum": self._noise_sum,
            "window": [list(entry) for entry in self._window],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``, bit-exact. It holds no decay: a run resumed with another ages its averages by it."""
        self.steps = int(state["steps"])
        self.dropped = int(state["dropped"])
        self._weight = float(state["weight"])
        self._signal_sum = float(state["signal_sum"])
        self._noise_sum = float(state["noise_sum"])
        window = [(float(weight), float(signal), float(noise)) for weight, signal, noise in state["window"]]
        self._window = window[-self._window_length :]

    def _why_unresolved(self, current: str) -> str:
        if not self.steps:
            dropped = f", and {self.dropped} had a gradient that is not finite" if self.dropped else ""
            return f"no step with two or more micro-batches has been measured{dropped}"
        steps = f"{self.steps} step{'s' if self.steps > 1 else ''}"
        if self.signal > 0:
            return f"over {steps} the noise is estimated at {self.noise:.2g}, which is below 0"
        if self.signal == self.noise == 0:
            return f"all gradients of {steps} are zero"
        return (
            f"the signal is buried in the noise: over {steps} the squared norm of the true gradient is estimated at "
            f"{self.signal:.2g} (not above 0), so {current} are probably too few"
        )


def student_t(level: float, freedom: float) -> float:
    """Student's t with P(|T| <= t) = ``level``: Abramowitz & Stegun 26.7.5, within 1 % for ``freedom`` >= 3 at 0.95."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def _sizes(batch_sizes: int | Sequence[int], micro_batches: int, zero_groups: int) -> list[int]:
    sizes = [batch_sizes] * micro_batches if isinstance(batch_sizes, int) else list(batch_sizes)
    if len(sizes) != micro_batches:
        raise ValueError(f"{micro_batches} micro-batch norms, but {len(sizes)} batch sizes")
    if any(size < 1 for size in sizes) or zero_groups < 0:
        raise ValueError(f"batch sizes {sizes}, zero_groups {zero_groups}: sizes must be at least 1, zero_groups 0")
    return sizes


def _enough(micro_batches: int, live: int, groups: int) -> bool:
    """Whether signal and noise can be separated: two micro-batches, or at most one live group."""
    return groups >= 2 and (micro_batches >= 2 or live <= 1)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
