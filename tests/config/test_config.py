"""The configuration: every problem is named with its place and its way out."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.config import ConfigError, dump_config, load_config, read_config_text, with_changes
from grpo_train.config.schema import Config
from tests.support.engine import REPOSITORY, config_text

PRESETS = sorted(p for p in (REPOSITORY / "config").glob("*.yaml") if ".example" not in p.name)
PROBLEMS = {
    "run:\n  total_step: 3\n": "c.yaml, line 2: unknown key 'run.total_step'; did you mean run.total_steps?",
    "run:\n  learning_rate: 3\n": "unknown key 'run.learning_rate'; did you mean optimizer.learning_rate?",
    "modell: {}\n": "c.yaml, line 1: unknown key 'modell'; did you mean model?",
    "total_steps: 3\n": "c.yaml, line 1: unknown key 'total_steps'; did you mean run.total_steps?",
    "task:\n  qqqq: 1\n": "c.yaml, line 2: unknown key 'task.qqqq'; known here: name, path, limit",
    "run:\n  total_steps: many\n": "c.yaml, line 2: run.total_steps: input should be a valid integer",
    "run:\n  total_steps: 0\n": "c.yaml, line 2: run.total_steps: input should be greater than 0 (got 0)",
    "run:\n  total_steps: 1.5\n": "c.yaml, line 2: run.total_steps: input should be a valid integer",
    "run:\n  total_steps: yes\n": "c.yaml, line 2: run.total_steps: input should not be true or false (got True)",
    "task:\n  limit: no\n": "c.yaml, line 2: task.limit: input should not be true or false (got False)",
    "run:\n  seed: 99999999999\n": "c.yaml, line 2: run.seed: input should be less than or equal to 2147483647",
    "rollout:\n  num_generations: 1\n": "line 2: rollout.num_generations: input should be greater than or equal to 2",
    "model:\n  adapter: qlora\n": "c.yaml, line 2: model.adapter: input should be 'none' or 'lora' (got 'qlora')",
    "optimizer:\n  learning_rate: .inf\n": "c.yaml, line 2: optimizer.learning_rate: input should be a finite number",
    "optimizer:\n  learning_rate: .nan\n": "c.yaml, line 2: optimizer.learning_rate: input should be",
    "run: 3\n": "c.yaml, line 1: run: input should be keys with values, NAME: VALUE (got 3)",
    "algorithm: {reward_weights: [1]}\n": "line 1: algorithm.reward_weights: input should be keys with values",
    "- a\n- b\n": "c.yaml: expected sections (run:, model:, rollout:, …), found a list",
    "run:\n  seed: [1\n": "c.yaml, line 3: this is no YAML",
    "run:\n\ttotal_steps: 3\n": "c.yaml, line 2: this is no YAML",
    "run:\n  seed: 1\n  seed: 2\n": "c.yaml, line 3: 'run.seed' is there already, in line 2: keep one",
    "run: {seed: 1}\nmodel: {}\nrun: {seed: 2}\n": "c.yaml, line 3: 'run' is there already, in line 1: keep one",
    "rollout:\n  buffer_size: 33\n": (
        "c.yaml, line 2: rollout.buffer_size 33 does not divide by run.nproc 1 x train.microbatch_size 2 = 2: every "
        "process must make the same number of forward/backward passes (nearest that does: 32 or 34)"
    ),
}


@pytest.mark.parametrize("text", PROBLEMS)
def test_a_problem_is_named_with_file_line_key_and_way_out(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(text, source="c.yaml")
    assert PROBLEMS[text] in str(caught.value)


def test_every_problem_has_a_line_of_its_own() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("run:\n  total_steps: x\n  sed: 1\n", source="c.yaml")
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["c.yaml, line 2", "c.yaml, line 3"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("total_steps=3", "--set total_steps=3: write section.key=value"),
        ("run.total_steps", "--set run.total_steps: write section.key=value"),
        ("run.total_steps=[", "--set run.total_steps=[: '[' is no YAML value"),
        ("run.total_steps=x", "--set run.total_steps: run.total_steps: input should be a valid integer"),
        ("run.total_stepz=3", "--set run.total_stepz: unknown key 'run.total_stepz'; did you mean run.total_steps?"),
        ("=", "--set =: write section.key=value"),
    ],
)
def test_a_bad_override_is_named_as_one(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("", [override], source="c.yaml")
    assert message in str(caught.value)


def test_overrides_win_and_make_sections() -> None:
    config = load_config("run: {seed: 1}\n", ["run.seed=2", "task.name=addition", "optimizer.learning_rate=1e-4"])
    assert (config.run.seed, config.task.name, config.optimizer.learning_rate) == (2, "addition", 1e-4)
    assert load_config("run:\n", ["run.seed=2"]).run.seed == 2


def test_a_number_that_yaml_reads_as_text_is_a_number() -> None:
    assert yaml.safe_load("1e-4") == "1e-4"
    assert load_config("optimizer:\n  learning_rate: 1e-4\n").optimizer.learning_rate == 1e-4


@pytest.mark.parametrize("text", ["", "# nothing\n", "run:\n", "run: {}\n"])
def test_what_says_nothing_means_the_defaults(text: str) -> None:
    assert load_config(text) == Config()


def test_the_pinned_keys_are_there() -> None:
    pinned = """run.total_steps run.save_every run.eval_every run.seed run.max_restarts model.backbone model.adapter
        rollout.buffer_size rollout.num_generations rollout.max_prompt_length rollout.max_completion_length
        rollout.temperature algorithm.loss_type optimizer.learning_rate train.microbatch_size train.tf_micro_batch
        task.name task.path task.limit"""
    document = Config().model_dump()
    for key in pinned.split():
        section, _, name = key.partition(".")
        assert name in document[section], key


def test_every_key_is_documented() -> None:
    for section in Config.model_fields.values():
        assert section.annotation is not None
        for name, field in section.annotation.model_fields.items():
            assert field.description, name


def test_a_dumped_config_is_the_same_config() -> None:
    config = load_config(config_text(run__seed=7))
    assert load_config(dump_config(config)) == config


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 8))
def test_a_buffer_divides_or_is_refused(buffer: int, nproc: int, micro: int) -> None:
    text = f"run: {{nproc: {nproc}}}\nrollout: {{buffer_size: {buffer}}}\ntrain: {{microbatch_size: {micro}}}\n"
    if buffer % (nproc * micro) == 0:
        assert load_config(text).grad_accum_steps * nproc * micro == buffer
    else:
        with pytest.raises(ConfigError, match=f"buffer_size {buffer} does not divide"):
            load_config(text)


@given(st.text(max_size=60))
def test_any_text_loads_or_is_refused_in_words(text: str) -> None:
    with contextlib.suppress(ConfigError):
        load_config(text)


def test_changes_are_checked_again() -> None:
    with pytest.raises(ConfigError, match=r"eval.subset_frac: input should be greater than 0 \(got 0.0\)"):
        with_changes(Config(), eval={"subset_frac": 0.0})
    assert with_changes(Config(), run={"nproc": 2}).run.nproc == 2


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "c.yaml"
    binary.write_bytes(b"run: \xff\xfe")
    for path, reason in (
        (tmp_path / "no.yaml", "No such file"),
        (tmp_path, "Is a directory"),
        (binary, "no UTF-8 text"),
    ):
        with pytest.raises(ConfigError, match=f"cannot read the config {path}: .*{reason}"):
            read_config_text(path)


def test_the_presets_are_there() -> None:
    assert {"demo", "testconfig", "overnight_config"} <= {path.stem for path in PRESETS}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_every_preset_loads(preset: Path) -> None:
    load_config(preset.read_text(), source=preset.name)


def test_the_presets_that_are_promised() -> None:
    for name, steps, every in (("testconfig", 2, 1), ("overnight_config", 100, 10)):
        config = load_config((REPOSITORY / "config" / f"{name}.yaml").read_text())
        assert (config.run.total_steps, config.run.save_every, config.model.backbone) == (steps, every, "qwen2_5_15")
        assert (config.rollout.buffer_size, config.train.microbatch_size) == (32, 2)
        assert (config.rollout.num_generations, config.train.tf_micro_batch) == (8, 32)


def test_a_problem_between_keys_names_the_one_that_was_given() -> None:
    text = "algorithm:\n  epsilon: 0.3\n  delta: 1.1\n"
    with pytest.raises(ConfigError, match=r"c.yaml, line 3: algorithm.delta 1.1 must lie above 1 \+ epsilon_high"):
        load_config(text, source="c.yaml")
    with pytest.raises(ConfigError, match=r"--set algorithm.delta: algorithm.delta 1.2 must lie above"):
        load_config("algorithm: {epsilon: 0.3}\n", ["algorithm.delta=1.2"], source="c.yaml")


@pytest.mark.parametrize(
    ("loss_type", "given", "range_"),
    [
        ("dr_grpo", {}, (0.2, 0.2)),
        ("dapo", {}, (0.2, 0.28)),
        ("dapo", {"epsilon": 0.1}, (0.1, 0.1)),
        ("gspo", {}, (3e-4, 4e-4)),
        ("cispo", {}, (0.2, 5.0)),
        ("cispo", {"epsilon": 0.1}, (0.1, 5.0)),
        ("grpo", {"epsilon_high": 0.3}, (0.2, 0.3)),
    ],
)
def test_clip_ranges_are_each_methods_own(loss_type: str, given: dict[str, float], range_: tuple[float, float]) -> None:
    keys = "".join(f"  {key}: {value}\n" for key, value in given.items())
    algorithm = load_config(f"algorithm:\n  loss_type: {loss_type}\n{keys}").algorithm
    assert (algorithm.epsilon, algorithm.epsilon_high) == range_


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.loss_type=cispo", "algorithm.epsilon_high=0.2"], "it is the bound of the ratio itself, 1 or more"),
        (["algorithm.loss_type=cispo", "algorithm.delta=9"], "algorithm.delta takes no part in cispo"),
        (["rollout.top_p=0.9"], "rollout.top_p 0.9: training would sample from a cut distribution"),
        (["rollout.top_k=5"], "rollout.top_k 5: training would sample from a cut distribution"),
        (["algorithm.overlong_buffer=512"], "must be shorter than rollout.max_completion_length 512"),
        (["algorithm.updates_per_buffer=3"], "x algorithm.updates_per_buffer 3 = 6"),
        (["model.lora_dropout=0.1", "algorithm.num_iterations=2"], "ratios to the policy before would be noise"),
        (["algorithm.rollout_correction_cap=0.5"], "--set algorithm.rollout_correction_cap: "),
        (["algorithm.loss_type=drgrpo"], "--set algorithm.loss_type: "),
    ],
)
def test_senseless_estimators_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("", overrides)
    assert message in str(caught.value)
