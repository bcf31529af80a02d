"""Gradient noise scale: values computed by hand, bias on known distributions, interval coverage."""

from __future__ import annotations

import io
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.algorithm.noise_scale import GradientNoiseScale, noise_scale, student_t

# golden/losses.json: gradients of four micro-batches of 4 prompt groups.
GOLDEN = torch.tensor([[1, 0], [0, 1], [2, 1], [1, 2]], dtype=torch.float64)
DIMENSIONS = 8

steps_of_four = st.lists(
    st.lists(st.lists(st.floats(-3, 3), min_size=2, max_size=2), min_size=4, max_size=4), min_size=1, max_size=12
)


def squared_norms(gradients: torch.Tensor, sizes: list[int]) -> tuple[list[float], float]:
    """|G_i|^2 of each micro-batch of the (groups, dimensions) gradients, and |Gbar|^2."""
    parts = gradients.split(sizes)
    return [part.mean(0).square().sum().item() for part in parts], gradients.mean(0).square().sum().item()


def golden_norms() -> tuple[list[float], float]:
    return squared_norms(GOLDEN, [1] * 4)


def measured(*steps: tuple[list[float], float], sizes: int = 1, decay: float = 0.95) -> GradientNoiseScale:
    scale = GradientNoiseScale(decay)
    for norms, norm_of_mean in steps:
        scale.update(norms, norm_of_mean, sizes)
    return scale


def step_of(signal: float, noise: float) -> tuple[list[float], float]:
    """Norms of two micro-batches of one group each that give these estimates."""
    return [signal + noise] * 2, signal + noise / 2


def sparse_gradients(count: int, seed: int) -> tuple[torch.Tensor, float, float]:
    """(count, DIMENSIONS) group gradients, most of them zero, of different lengths; and the true signal and noise."""
    generator = torch.Generator().manual_seed(seed)
    share, mean = 0.4, torch.linspace(-0.2, 0.5, DIMENSIONS, dtype=torch.float64)
    deviations = torch.linspace(0.1, 1.0, DIMENSIONS, dtype=torch.float64)
    normal = torch.randn(count, DIMENSIONS, generator=generator, dtype=torch.float64)
    lengths = 0.5 + torch.rand(count, 1, generator=generator, dtype=torch.float64)
    live = torch.rand(count, 1, generator=generator, dtype=torch.float64) < share
    signal = share**2 * mean.square().sum().item()  # the lengths' mean is 1, their mean square 1 + 1/12
    power = share * (1 + 1 / 12) * (mean.square().sum() + deviations.square().sum()).item()
    return (mean + deviations * normal) * lengths * live, signal, power - signal


def assert_unbiased(estimates: list[tuple[float, float]], signal: float, noise: float) -> None:
    values = torch.tensor(estimates, dtype=torch.float64)
    errors = (values.mean(0) - torch.tensor([signal, noise])) / (values.std(0) / len(values) ** 0.5)
    assert errors.abs().max() < 4, f"{values.mean(0).tolist()} for {(signal, noise)}: {errors.tolist()} standard errors"


def test_golden_values() -> None:
    assert noise_scale(*golden_norms(), 4) == pytest.approx((5 / 3, 16 / 3), abs=1e-12)
    scale = measured(golden_norms(), sizes=4)
    assert (scale.signal, scale.noise, scale.b_simple) == pytest.approx((5 / 3, 16 / 3, 3.2), abs=1e-12)


@pytest.mark.parametrize("sizes", [[4, 4, 4, 4], [1, 2, 5, 8], [15, 1], [1] * 16])
def test_unbiased_on_a_known_distribution(sizes: list[int]) -> None:
    gradients, signal, noise = sparse_gradients(4000 * 16, seed=1)
    steps = gradients.view(4000, 16, DIMENSIONS)
    assert_unbiased([noise_scale(*squared_norms(step, sizes), sizes) for step in steps], signal, noise)


def test_unbiased_without_the_zero_groups() -> None:
    gradients, signal, noise = sparse_gradients(4000 * 16, seed=2)
    estimates = []
    for step in gradients.view(4000, 16, DIMENSIONS):
        live = step[(step != 0).any(1)]
        parts = [part for part in live.tensor_split(max(2, len(live) // 3)) if len(part)]
        norms, sizes = [part.mean(0).square().sum().item() for part in parts], [len(part) for part in parts]
        estimates.append(noise_scale(norms, step.mean(0).square().sum().item(), sizes, 16 - len(live)))
    assert_unbiased(estimates, signal, noise)


@given(st.integers(0, 5), st.integers(0, 2**31))
def test_zero_groups_equal_zero_micro_batches(live: int, seed: int) -> None:
    gradients = torch.zeros(8, 3, dtype=torch.float64)
    gradients[:live] = torch.randn(live, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    norms, norm_of_mean = squared_norms(gradients, [1] * 8)
    packed = noise_scale(norms[:live], norm_of_mean, 1, zero_groups=8 - live)
    assert packed == pytest.approx(noise_scale(norms, norm_of_mean, 1), abs=1e-12)


@given(st.integers(2, 9), st.integers(1, 9), st.integers(0, 2**31))
def test_equal_sizes_match_appendix_a1(micro_batches: int, size: int, seed: int) -> None:
    gradients = torch.randn(micro_batches * size, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    norms, norm_of_mean = squared_norms(gradients, [size] * micro_batches)
    small, big, norm_of_small = size, size * micro_batches, sum(norms) / micro_batches
    signal = (big * norm_of_mean - small * norm_of_small) / (big - small)
    noise = (norm_of_small - norm_of_mean) / (1 / small - 1 / big)
    assert noise_scale(norms, norm_of_mean, size) == pytest.approx((signal, noise), rel=1e-9, abs=1e-9)


def test_signal_and_noise_are_averaged_separately() -> None:
    scale = measured(step_of(-1, 2), step_of(3, 4), decay=0.5)
    assert (scale.signal, scale.noise) == pytest.approx(((0.5 * -1 + 3) / 1.5, (0.5 * 2 + 4) / 1.5))
    assert scale.b_simple == pytest.approx(5 / 2.5)


def test_constant_estimates_have_no_startup_bias() -> None:
    for count in (1, 2, 100):
        assert measured(*[step_of(2, 6)] * count).b_simple == pytest.approx(3)


def test_one_micro_batch_changes_nothing() -> None:
    scale = measured(golden_norms())
    before = scale.state_dict()
    assert scale.update([1.0], 1.0, 8) is None
    assert scale.update([], 0.0, []) is None
    assert scale.update([1.0], 0.25, [2], zero_groups=2) is None
    assert scale.state_dict() == before


def test_step_without_gradient_is_a_sample() -> None:
    sample = GradientNoiseScale().update([], 0.0, [], zero_groups=8)
    assert sample is not None
    assert (sample.signal, sample.noise, sample.groups, sample.micro_batches) == (0, 0, 8, 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_steps_are_dropped_and_counted(bad: float) -> None:
    scale = measured(golden_norms())
    before = scale.state_dict()
    assert scale.update([1.0, bad], 1.0, 1) is None
    assert scale.update([1.0, 1.0], bad, 1) is None
    assert scale.update([1e308, 1e308], 1e308, 100) is None
    assert scale.state_dict() == {**before, "dropped": 3}


def test_buried_signal_is_not_resolved() -> None:
    scale = measured(*[step_of(-0.5, 4)] * 8)
    assert scale.signal == pytest.approx(-0.5)
    assert not scale.resolved
    metrics = scale.metrics(8)
    assert [name for name, value in metrics.items() if math.isnan(value)] == [
        "gns/b_simple", "gns/b_simple_low", "gns/b_simple_high", "gns/b_simple_completions",
    ]  # fmt: skip


def test_nan_before_the_first_step() -> None:
    scale = GradientNoiseScale()
    assert not scale.resolved
    assert all(math.isnan(value) for value in scale.metrics(8).values())


def test_metrics_in_groups_and_completions() -> None:
    metrics = measured(*[step_of(1, 4), step_of(1, 6)] * 5, decay=0.9).metrics(num_generations=8)
    assert metrics["gns/b_simple_completions"] == 8 * metrics["gns/b_simple"]
    assert 4 < metrics["gns/b_simple_low"] < metrics["gns/b_simple"] < metrics["gns/b_simple_high"] < 6


def test_interval_requirements() -> None:
    assert math.isnan(measured(*[step_of(1, 4)] * 4).interval()[0])
    assert measured(*[step_of(1, 4)] * 5).interval() == pytest.approx((4, 4))
    leaning_on_one = measured(*[step_of(-0.1, 4)] * 5, step_of(2, 4))
    assert leaning_on_one.resolved
    assert all(map(math.isnan, leaning_on_one.interval()))
    assert all(map(math.isnan, measured(*[step_of(1, 4)] * 50, decay=0.5).interval()))


def test_even_weights_give_the_textbook_jackknife() -> None:
    noises = [3.0, 5.0, 4.0, 7.0, 2.0, 6.0]
    scale = measured(*[step_of(1, noise) for noise in noises], decay=1 - 1e-9)
    logs = [math.log((sum(noises) - noise) / 5) for noise in noises]
    variance = 5 / 6 * sum((log - math.log(27 / 6)) ** 2 for log in logs)
    reach = math.exp(2.570582 * math.sqrt(variance))  # t of 5 degrees of freedom
    assert scale.interval() == pytest.approx((4.5 / reach, 4.5 * reach), rel=2e-3)


def test_interval_widens_with_its_level() -> None:
    scale = measured(*[step_of(1, 4), step_of(1, 6), step_of(1.2, 5)] * 4)
    (low_90, high_90), (low_99, high_99) = scale.interval(0.9), scale.interval(0.99)
    assert low_99 < low_90 < scale.b_simple < high_90 < high_99


def test_interval_coverage() -> None:
    runs, steps, size = 400, 40, 4
    gradients, signal, noise = sparse_gradients(runs * steps * 4 * size, seed=3)
    micro_batches = gradients.view(runs, steps, 4, size, DIMENSIONS).mean(3)
    norms, norms_of_means = micro_batches.square().sum(-1).tolist(), micro_batches.mean(2).square().sum(-1).tolist()
    hits = resolved = 0
    for run_norms, run_norms_of_means in zip(norms, norms_of_means, strict=True):
        low, high = measured(*zip(run_norms, run_norms_of_means, strict=True), sizes=size).interval()
        resolved += not math.isnan(low)
        hits += low <= noise / signal <= high
    assert resolved == runs
    assert 0.91 <= hits / runs <= 0.985  # 0.95, three standard errors to either side


@pytest.mark.parametrize(("freedom", "quantile"), [(3, 3.182446), (5, 2.570582), (10, 2.228139), (100, 1.983972)])
def test_t_quantile_matches_the_tables(freedom: int, quantile: float) -> None:
    assert student_t(0.95, freedom) == pytest.approx(quantile, rel=0.01)


@settings(deadline=None)
@given(steps_of_four, st.integers(0, 12), st.floats(0, 0.99))
def test_state_restores_bit_exact(steps: list[list[list[float]]], cut: int, decay: float) -> None:
    straight, first = GradientNoiseScale(decay), GradientNoiseScale(decay)
    norms = [squared_norms(torch.tensor(step, dtype=torch.float64), [1] * 4) for step in steps]
    for step in norms:
        straight.update(*step, 2)
    for step in norms[:cut]:
        first.update(*step, 2)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = GradientNoiseScale(decay)
    second.load_state_dict(torch.load(file, weights_only=True))
    for step in norms[cut:]:
        second.update(*step, 2)
    assert second.state_dict() == straight.state_dict()
    assert second.metrics(8) == pytest.approx(straight.metrics(8), abs=0, rel=0, nan_ok=True)
    assert json.loads(json.dumps(second.state_dict())) == straight.state_dict()


def test_state_is_a_copy_and_bounded() -> None:
    scale = measured(*[step_of(1, 4)] * 500)
    state = scale.state_dict()
    scale.update(*step_of(1, 4), 1)
    assert (state["steps"], len(state["window"])) == (500, 60)


def test_another_decay_keeps_the_averages() -> None:
    scale = GradientNoiseScale(decay=0.9)
    scale.load_state_dict(measured(*[step_of(1, 4), step_of(2, 6)] * 50).state_dict())
    assert scale.b_simple == pytest.approx(5 / 1.5, rel=0.02)
    assert len(scale.state_dict()["window"]) == 30
    assert scale.interval()[0] < scale.b_simple < scale.interval()[1]


@pytest.mark.parametrize(("noise", "relation"), [(300, "far below"), (10, "near"), (1, "far above"), (0, "far above")])
def test_advice_compares_the_current_batch(noise: float, relation: str) -> None:
    advice = measured(*[step_of(1, noise)] * 10).advice(buffer_size=16, num_generations=8)
    assert f"the current 16 prompt groups (128 completions) a step are {relation} it" in advice
    assert f"about {noise} prompt groups ({noise * 8} completions)" in advice


def test_advice_includes_the_interval() -> None:
    assert "(no interval yet)" in measured(*[step_of(1, 4)] * 4).advice(16, 8)
    assert "(95% interval 4 to 4)" in measured(*[step_of(1, 4)] * 5).advice(16, 8)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([], "no step with two or more micro-batches has been measured."),
        ([([1.0, math.nan], 1.0)], "and 1 had a gradient that is not finite"),
        ([step_of(-0.5, 4)] * 3, "the signal is buried in the noise: over 3 steps"),
        ([step_of(0, 0)], "all gradients of 1 step are zero"),
        ([step_of(1, -1e-9)], "noise is estimated at -1e-09"),
    ],
)
def test_advice_explains_an_unresolved_scale(steps: list[tuple[list[float], float]], reason: str) -> None:
    advice = measured(*steps).advice(16, 8)
    assert advice.startswith("The gradient noise scale is not resolved yet: ")
    assert reason in advice


@pytest.mark.parametrize(
    ("norms", "sizes", "zero_groups", "message"),
    [
        ([1.0], 4, 0, "1 micro-batches of 4 prompt groups cannot separate"),
        ([1.0, 1.0], [1, 1, 1], 0, "2 micro-batch norms, but 3 batch sizes"),
        ([1.0, 1.0], [1, 0], 0, "sizes must be at least 1"),
        ([1.0, 1.0], 1, -1, "sizes must be at least 1"),
    ],
)
def test_invalid_sizes_are_errors(norms: list[float], sizes: list[int], zero_groups: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noise_scale(norms, 1.0, sizes, zero_groups)


@pytest.mark.parametrize("decay", [-0.1, 1.0, math.nan])
def test_invalid_decay_is_an_error(decay: float) -> None:
    with pytest.raises(ValueError, match="decay is"):
        GradientNoiseScale(decay)


@pytest.mark.parametrize("level", [0.0, 1.0, math.nan])
def test_invalid_level_is_an_error(level: float) -> None:
    with pytest.raises(ValueError, match="level is"):
        GradientNoiseScale().interval(level)
