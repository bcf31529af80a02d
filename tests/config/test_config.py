"""Configs: loading, errors with file and line, presets."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.config import ConfigError, changed_keys, dump_config, load_config, read_config_text, with_changes
from grpo_train.config.reference import json_schema, markdown
from grpo_train.config.schema import Config
from grpo_train.run_dir.configs import SECTIONS, list_configs
from tests.support.engine import REPOSITORY, config_text

CONFIGS = REPOSITORY / "config"
PRESETS = [CONFIGS / config["name"] for config in list_configs(CONFIGS)]
PROBLEMS = {
    "run:\n  total_step: 3\n": "c.yaml, line 2: unknown key 'run.total_step'; did you mean run.total_steps?",
    "run:\n  learning_rate: 3\n": "unknown key 'run.learning_rate'; did you mean optimizer.learning_rate?",
    "modell: {}\n": "c.yaml, line 1: unknown key 'modell'; did you mean model?",
    "workflow: {stages: [{repeat: {every: 1, stages: [trian]}}]}\n": "mean workflow.stages.0.repeat.stages.0.train?",
    "total_steps: 3\n": "c.yaml, line 1: unknown key 'total_steps'; did you mean run.total_steps?",
    "task:\n  qqqq: 1\n": "c.yaml, line 2: unknown key 'task.qqqq'; known keys: name, limit, pass_rate",
    "run:\n  total_steps: many\n": "c.yaml, line 2: run.total_steps: input should be a valid integer",
    "run:\n  total_steps: 0\n": "c.yaml, line 2: run.total_steps: input should be greater than 0 (got 0)",
    "run:\n  total_steps: 1.5\n": "c.yaml, line 2: run.total_steps: input should be a valid integer",
    'task:\n  system_prompt: "1+2\\ud83d"\n': "c.yaml, line 2: task.system_prompt: the text has \\ud83d, half of a "
    "character: write it whole or remove it (got '1+2\\ud83d')",
    "run:\n  total_steps: yes\n": "c.yaml, line 2: run.total_steps: input should not be true or false (got True)",
    "task:\n  limit: no\n": "c.yaml, line 2: task.limit: input should not be true or false (got False)",
    "run:\n  seed: 99999999999\n": "c.yaml, line 2: run.seed: input should be less than or equal to 2147483647",
    "rollout:\n  num_generations: 1\n": "line 2: rollout.num_generations: input should be greater than or equal to 2",
    "model:\n  adapter: qlora\n": "c.yaml, line 2: model.adapter: input should be 'none' or 'lora' (got 'qlora')",
    "optimizer:\n  learning_rate: .inf\n": "c.yaml, line 2: optimizer.learning_rate: input should be a finite number",
    "optimizer:\n  learning_rate: .nan\n": "c.yaml, line 2: optimizer.learning_rate: input should be",
    "run: 3\n": "c.yaml, line 1: run: expected a mapping, NAME: VALUE (got 3)",
    "algorithm: {reward_weights: [1]}\n": "line 1: algorithm.reward_weights: expected a mapping, NAME: VALUE",
    "- a\n- b\n": "c.yaml: expected sections (run:, model:, rollout:, …), got a list",
    "run:\n  seed: [1\n": "c.yaml, line 3: invalid YAML",
    "run:\n\ttotal_steps: 3\n": "c.yaml, line 2: invalid YAML",
    "run:\n  seed: 1\n  seed: 2\n": "c.yaml, line 3: duplicate key 'run.seed' (first defined on line 2)",
    "run: {seed: 1}\nmodel: {}\nrun: {seed: 2}\n": "c.yaml, line 3: duplicate key 'run' (first defined on line 1)",
    "rollout:\n  buffer_size: 33\n": (
        "c.yaml, line 2: rollout.buffer_size 33 is not divisible by run.nproc 1 x train.microbatch_size 2 = 2; every "
        "process must make the same number of forward and backward passes (nearest sizes: 32 or 34)"
    ),
}


@pytest.mark.parametrize("text", PROBLEMS)
def test_errors_name_file_line_key_and_fix(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(text, source="c.yaml")
    assert PROBLEMS[text] in str(caught.value)


def test_each_problem_has_its_own_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("run:\n  total_steps: x\n  sed: 1\n", source="c.yaml")
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["c.yaml, line 2", "c.yaml, line 3"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("total_steps=3", "--set total_steps=3: expected section.key=value"),
        ("run.total_steps", "--set run.total_steps: expected section.key=value"),
        ("run.total_steps=[", "--set run.total_steps=[: invalid YAML value '['"),
        ("run.total_steps=x", "--set run.total_steps: run.total_steps: input should be a valid integer"),
        ("run.total_stepz=3", "--set run.total_stepz: unknown key 'run.total_stepz'; did you mean run.total_steps?"),
        ("=", "--set =: expected section.key=value"),
    ],
)
def test_bad_overrides_are_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("", [override], source="c.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "overrides", "where"),
    [
        ("run:\n  seed: hf_" + "q" * 34, [], "c.yaml, line 2: 'run.seed' holds a Hugging Face token"),
        ("run:\n  wandb_api_key: qqqq", [], "c.yaml, line 2: 'run.wandb_api_key' holds a W&B API key"),
        ("run: [\n# hf_" + "q" * 34, [], "c.yaml, line 2: this is a Hugging Face token"),
        ("", ["run.seed=hf_" + "q" * 34], "--set: 'run.seed' holds a Hugging Face token"),
        ("", ["hf_" + "q" * 34], "--set: this is a Hugging Face token"),
        ("", ["HF_TOKEN=qqqq"], "--set: 'HF_TOKEN' holds a Hugging Face token"),
        ("", ["task.password=[qqqq"], "--set: 'task.password' holds a secret"),
    ],
)
def test_secrets_are_refused_unquoted(text: str, overrides: list[str], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(text, overrides, source="c.yaml")
    assert caught.value.code == "secret"
    assert str(caught.value).startswith(where)
    assert "qqqq" not in str(caught.value)


def test_overrides_win_and_create_sections() -> None:
    config = load_config("run: {seed: 1}\n", ["run.seed=2", "task.name=addition", "optimizer.learning_rate=1e-4"])
    assert (config.run.seed, config.task.name, config.optimizer.learning_rate) == (2, "addition", 1e-4)
    assert load_config("run:\n", ["run.seed=2"]).run.seed == 2


def test_numbers_that_yaml_reads_as_text() -> None:
    assert yaml.safe_load("1e-4") == "1e-4"
    assert load_config("optimizer:\n  learning_rate: 1e-4\n").optimizer.learning_rate == 1e-4


@pytest.mark.parametrize("text", ["", "# nothing\n", "run:\n", "run: {}\n"])
def test_empty_configs_mean_the_defaults(text: str) -> None:
    assert load_config(text) == Config()


def test_pinned_keys_exist() -> None:
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


def test_dump_and_load_round_trip() -> None:
    config = load_config(config_text(run__seed=7))
    assert load_config(dump_config(config)) == config


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 8))
def test_buffer_size_must_be_divisible(buffer: int, nproc: int, micro: int) -> None:
    text = f"run: {{nproc: {nproc}}}\nrollout: {{buffer_size: {buffer}}}\ntrain: {{microbatch_size: {micro}}}\n"
    if buffer % (nproc * micro) == 0:
        assert load_config(text).grad_accum_steps * nproc * micro == buffer
    else:
        with pytest.raises(ConfigError, match=f"buffer_size {buffer} is not divisible"):
            load_config(text)


@given(st.text(max_size=60))
def test_any_text_loads_or_raises_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        load_config(text)


def test_changes_are_validated() -> None:
    with pytest.raises(ConfigError, match=r"eval.subset_frac: input should be greater than 0 \(got 0.0\)"):
        with_changes(Config(), eval={"subset_frac": 0.0})
    assert with_changes(Config(), run={"nproc": 2}).run.nproc == 2


def test_unreadable_configs_are_named(tmp_path: Path) -> None:
    binary = tmp_path / "c.yaml"
    binary.write_bytes(b"run: \xff\xfe")
    for path, reason in (
        (tmp_path / "no.yaml", "No such file"),
        (tmp_path, "Is a directory"),
        (binary, "not UTF-8 text"),
    ):
        with pytest.raises(ConfigError, match=f"cannot read the config {path}: .*{reason}"):
            read_config_text(path)


def test_presets_exist() -> None:
    expected = {"demo", "testconfig", "overnight_config", "mbpp", "code_execution", "code_game", "self_play"}
    assert expected <= {path.stem for path in PRESETS}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.relative_to(CONFIGS).as_posix())
def test_preset_loads(preset: Path) -> None:
    text = preset.read_text()
    schema = os.path.relpath(CONFIGS / "schema.json", preset.parent)
    assert text.startswith(f"# yaml-language-server: $schema={schema}\n")
    load_config(text, source=preset.name)


def test_documented_presets_keep_their_sizes() -> None:
    for name, steps, every in (("testconfig", 2, 1), ("overnight_config", 100, 10)):
        config = load_config((REPOSITORY / "config" / f"{name}.yaml").read_text())
        assert (config.run.total_steps, config.run.save_every, config.model.backbone) == (steps, every, "qwen2_5_15")
        assert (config.rollout.buffer_size, config.train.microbatch_size) == (32, 2)
        assert (config.rollout.num_generations, config.train.tf_micro_batch) == (8, 32)


def test_repeating_kernels_have_no_top_p() -> None:
    with pytest.raises(ConfigError, match=r"rollout.top_p 0.9 with run.deterministic"):
        load_config(
            "run: {deterministic: true}\nrollout: {top_p: 0.9}\nalgorithm: {rollout_correction: token_truncate}\n",
            source="c.yaml",
        )


def test_conflicts_are_located_at_the_given_key() -> None:
    text = "algorithm:\n  epsilon: 0.3\n  delta: 1.1\n"
    with pytest.raises(ConfigError, match=r"c.yaml, line 3: algorithm.delta 1.1 must be above 1 \+ epsilon_high"):
        load_config(text, source="c.yaml")
    with pytest.raises(ConfigError, match=r"--set algorithm.delta: algorithm.delta 1.2 must be above"):
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
def test_clip_ranges_follow_the_method(loss_type: str, given: dict[str, float], range_: tuple[float, float]) -> None:
    keys = "".join(f"  {key}: {value}\n" for key, value in given.items())
    algorithm = load_config(f"algorithm:\n  loss_type: {loss_type}\n{keys}").algorithm
    assert (algorithm.epsilon, algorithm.epsilon_high) == range_


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.loss_type=cispo", "algorithm.epsilon_high=0.2"], "it is the maximum ratio and must be at least 1"),
        (["algorithm.loss_type=cispo", "algorithm.delta=9"], "algorithm.delta has no effect on cispo"),
        (["rollout.top_p=0.9"], "rollout.top_p 0.9: truncated sampling with an untruncated gradient is biased"),
        (["rollout.top_k=5"], "rollout.top_k 5: truncated sampling with an untruncated gradient is biased"),
        (["algorithm.overlong_buffer=512"], "must be shorter than rollout.max_completion_length 512"),
        (["algorithm.updates_per_buffer=3"], "x algorithm.updates_per_buffer 3 = 6"),
        (["model.lora_dropout=0.1", "algorithm.num_iterations=2"], "dropout noise would trigger clipping"),
        (["algorithm.rollout_correction_cap=0.5"], "--set algorithm.rollout_correction_cap: "),
        (["algorithm.loss_type=drgrpo"], "--set algorithm.loss_type: "),
    ],
)
def test_biased_or_invalid_estimators_are_errors(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("", overrides)
    assert message in str(caught.value)


def test_sections_of_the_run_directory_match() -> None:
    assert set(Config.model_fields) == SECTIONS


def test_committed_schema_is_current() -> None:
    committed = json.loads((CONFIGS / "schema.json").read_text())
    assert committed == json_schema(), "run: grpo-train schema > config/schema.json"


def test_configuration_page_is_current() -> None:
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    assert page == markdown(), "run: grpo-train schema --markdown > docs/configuration.md"


def test_changed_keys_lists_old_and_new_values() -> None:
    changed = with_changes(Config(), run={"nproc": 2})
    assert changed_keys(Config(), changed) == {"run.nproc": (1, 2)}
