"""Configs of TRL and verl as ours: every option is translated or named, units and defaults are right."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_train.config import ConfigError, load_config
from grpo_train.config.importing import LIBRARIES, import_config
from grpo_train.config.importing.table import Draft, Given
from grpo_train.config.schema import Config
from tests.support.engine import command_here, rows, train_here

TRL, VERL = LIBRARIES["trl"], LIBRARIES["verl"]
WITHOUT_TRL = {
    "num_processes", "nproc_per_node", "num_machines", "nnodes", "max_prompt_length", "torch_dtype", "warmup_ratio",
    "logging_dir", "overwrite_output_dir", "env", "config", "config_file", "use_deepspeed", "deepspeed_config_file",
    "mixed_precision", "main_process_port", "main_process_ip", "machine_rank", "master_addr", "master_port",
    "node_rank", "standalone", "multi_gpu", "gpu_ids", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "dynamo_backend",
}  # fmt: skip
"""Options of launchers and of older versions."""
BASE = {"model_name_or_path": "a/b", "dataset_name": "c/d", "reward_funcs": ["accuracy_reward"], "max_steps": 100}
"""A config of TRL of which everything is translated."""


def of_trl(nproc: int | None = None, **options: Any) -> tuple[Draft, Config]:
    """A config of TRL, and what it becomes."""
    draft = import_config(yaml.safe_dump({**BASE, **options}), "grpo.yaml", nproc)
    return draft, load_config(draft.text())


def of_verl(*settings: str) -> tuple[Draft, Config]:
    """Arguments of verl, and what they become."""
    words = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8", "actor_rollout_ref.model.path=a/b",
             "data.train_files=d/train.parquet", *settings]  # fmt: skip
    draft = import_config(" \\\n".join(["python -m verl.trainer.main_ppo", *words]), "run.sh")
    return draft, load_config(draft.text())


CLASSES = {
    "trl/trainer/grpo_config.py": "GRPOConfig",
    "trl/trainer/base_config.py": "_BaseConfig",
    "trl/trainer/model_config.py": "ModelConfig",
    "trl/scripts/grpo.py": "GRPOScriptArguments",
    "trl/scripts/utils.py": "ScriptArguments DatasetMixtureConfig",
    "transformers/training_args.py": "TrainingArguments",
}
"""The dataclasses of ``trl grpo``, those that override defaults first."""
COMPUTED = {"optim"}
"""Their defaults are not literals."""


@cache
def trl_fields() -> dict[str, Any]:
    """Options and their defaults, from the sources: to import TRL takes ten seconds."""
    found: dict[str, Any] = {}
    for file, classes in CLASSES.items():
        package = file.partition("/")[0]
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        tree = ast.parse((Path(spec.origin).parents[1] / file).read_text())
        bodies = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name in classes.split()]
        assert len(bodies) == len(classes.split()), file
        for node in (each for body in bodies for each in body):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                found.setdefault(node.target.id, default_of(node.value))
    return {name: default for name, default in found.items() if not name.startswith("_")}


def default_of(value: ast.expr) -> Any:
    """The default of ``field(default=…)``."""
    if not isinstance(value, ast.Call):
        return ast.literal_eval(value)
    given = {keyword.arg: keyword.value for keyword in value.keywords}
    if "default" not in given:
        return []
    return None if isinstance(given["default"], ast.Name) else ast.literal_eval(given["default"])


def test_every_option_of_trl_is_in_the_table() -> None:
    fields = trl_fields()
    assert sorted(fields.keys() - TRL.rows.keys()) == []
    assert sorted(TRL.rows.keys() - fields.keys() - WITHOUT_TRL) == [], "options that TRL does not have"
    assert importlib.metadata.version("trl").startswith(f"{TRL.version}.")


def test_defaults_are_those_of_trl() -> None:
    rows = {name: TRL.rows[name] for name in trl_fields().keys() - COMPUTED}
    compared = {name: (row.default, trl_fields()[name]) for name, row in rows.items() if row.to or row.matters}
    assert len(compared) > 80
    assert {name: pair for name, pair in compared.items() if pair[0] != pair[1]} == {}


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
def test_rows_name_keys_and_say_what_to_do(library: Any) -> None:
    keys = {f"{section}.{key}" for section, values in Config().model_dump().items() for key in values}
    assert [row.name for row in library.rows.values() if not set(row.to) <= keys] == []
    assert [row.name for row in library.rows.values() if not row.how and not row.copied] == []


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
def test_no_option_is_dropped(library: Any) -> None:
    """Each, given alone with its default, is a key's source or is named in a comment."""
    silent = []
    for row in library.rows.values():
        name = row.name.replace("*", "anything")
        needed = {"actor_rollout_ref.rollout.n": Given(8, 1)} if library is VERL else {}
        draft = Draft(library, {**needed, name: Given(needed.get(name, Given(row.default, 1)).value, 1)}, "file")
        draft.translate()
        if name not in draft.text():
            silent.append(name)
    assert silent == []


def test_a_whole_config_is_translated() -> None:
    draft, config = of_trl(learning_rate="3e-6", beta=0.0, use_peft=True, lora_r=8, lora_target_modules=["q_proj"],
                           bf16=True, seed=7, save_steps=50, warmup_steps=0.1, lr_scheduler_type="cosine")  # fmt: skip
    assert draft.not_translated == []
    assert config.optimizer.learning_rate == 3e-6
    assert (config.optimizer.warmup_steps, config.optimizer.schedule) == (10, "cosine")
    assert (config.model.backbone, config.model.adapter, config.model.lora_rank) == ("a/b", "lora", 8)
    assert (config.model.lora_targets, config.model.lora_dropout) == (["q_proj"], 0.05)
    assert (config.run.total_steps, config.run.seed, config.run.save_every) == (100, 7, 50)
    assert (config.task.name, config.task.path, config.task.grader) == ("data", "hf:c/d", "math")
    assert config.task.rewards == ["trl.rewards:accuracy_reward"]


def test_what_trl_does_by_default_is_written_out() -> None:
    _, config = of_trl()
    loss = config.algorithm
    assert (loss.loss_type, loss.scale_rewards, loss.epsilon, loss.epsilon_high) == ("dapo", "group", 0.2, 0.2)
    assert (config.model.adapter, config.run.seed, config.optimizer.schedule) == ("none", 42, "linear")


@pytest.mark.parametrize(
    ("options", "nproc", "expected"),
    [
        ({}, 1, (1, 1, 1, 1)),
        ({"gradient_accumulation_steps": 4}, 4, (16, 1, 1, 4)),
        ({"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4}, 2, (16, 1, 2, 2)),
        ({"steps_per_generation": 8, "gradient_accumulation_steps": 2}, 1, (8, 4, 1, 1)),
        ({"generation_batch_size": 64, "gradient_accumulation_steps": 2}, 2, (8, 2, 1, 2)),
        ({"num_generations": 4, "gradient_accumulation_steps": 2}, 3, (12, 1, 2, 3)),
        ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}, 4, (4, 1, 1, 4)),
        ({"steps_per_generation": 1, "gradient_accumulation_steps": 4}, 1, (4, 1, 1, 1)),
    ],
)
def test_batches_are_counted_in_prompts(options: Any, nproc: int, expected: tuple[int, ...]) -> None:
    """buffer_size, updates_per_buffer, microbatch_size, nproc; TRL counts completions."""
    draft, config = of_trl(nproc, **options)
    sizes = (config.rollout.buffer_size, config.algorithm.updates_per_buffer, config.train.microbatch_size)
    assert (*sizes, config.run.nproc) == expected
    assert draft.not_translated == []


def test_groups_that_would_be_split_are_named() -> None:
    draft, config = of_trl(per_device_train_batch_size=2, steps_per_generation=4)
    assert config.algorithm.updates_per_buffer == 1
    assert "4 updates per rollout would split groups" in draft.not_translated[0]


def test_length_by_epochs_is_named_with_its_formula() -> None:
    draft, _ = of_trl(max_steps=-1, gradient_accumulation_steps=4, num_iterations=2, num_train_epochs=1)
    assert draft.not_translated == ["num_train_epochs: set run.total_steps to 1 × prompts × 2 / 4"]


@pytest.mark.parametrize(
    ("options", "keys", "named"),
    [
        ({"loss_type": "grpo", "importance_sampling_level": "sequence"}, {"loss_type": "gspo", "epsilon": 0.2}, ""),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, {"loss_type": "cispo", "epsilon_high": 5.0}, ""),
        ({"loss_type": "cispo"}, {"epsilon_high": 5.0}, "epsilon_high"),
        ({"loss_type": "luspo"}, {}, "loss_type luspo"),
        ({"scale_rewards": False}, {"scale_rewards": "none"}, ""),
        ({"scale_rewards": True}, {"scale_rewards": "group"}, ""),
        ({"beta": 0.04}, {"beta": 0.04}, "use_bias_correction_kl"),
        ({"beta": 0.04, "use_bias_correction_kl": False}, {"beta": 0.04}, ""),
        ({"use_vllm": True}, {"rollout_correction": "sequence_mask", "rollout_correction_cap": 3.0}, ""),
        ({"use_vllm": True, "vllm_importance_sampling_correction": False}, {"rollout_correction": "none"}, ""),
        ({"top_p": 0.9}, {"rollout_correction": "token_truncate"}, ""),
        ({"min_p": 0.1}, {}, "min_p 0.1"),
        ({"use_peft": True, "num_iterations": 2}, {"num_iterations": 2}, "lora_dropout 0.05"),
        ({"reward_funcs": ["a.b.f", "think_format_reward"], "reward_weights": [1, 2]},
         {"reward_weights": {"f": 1.0, "think_format_reward": 2.0}}, ""),
        ({"reward_funcs": ["accuracy_reward", "get_soft_overlong_punishment"], "max_completion_length": 1280},
         {"overlong_buffer": 256}, ""),
        ({"hidden_size": 3}, {}, "hidden_size: not an option of TRL"),
    ],
)  # fmt: skip
def test_semantics_of_losses_and_sampling(options: Any, keys: dict[str, Any], named: str) -> None:
    draft, config = of_trl(**options)
    assert {key: getattr(config.algorithm, key) for key in keys} == keys
    assert [bool(note.startswith(named)) for note in draft.not_translated] == ([True] if named else [])


def test_steps_of_verl_are_batches() -> None:
    draft, config = of_verl(
        "data.train_batch_size=64", "actor_rollout_ref.actor.ppo_mini_batch_size=16", "trainer.save_freq=5",
        "trainer.total_training_steps=30", "actor_rollout_ref.actor.optim.lr_warmup_steps=2",
        "trainer.n_gpus_per_node=4",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16", "trainer.test_freq=10", "trainer.nnodes=2",
        "data.val_files=d/test.parquet",
    )  # fmt: skip
    assert draft.not_translated == []
    assert (config.run.total_steps, config.run.save_every, config.run.eval_every) == (120, 20, 40)
    assert (config.optimizer.warmup_steps, config.optimizer.weight_decay) == (8, 0.01)
    assert (config.rollout.buffer_size, config.algorithm.updates_per_buffer) == (64, 4)
    assert (config.run.nproc, config.run.nodes, config.train.microbatch_size) == (8, 2, 2)
    assert (config.task.template, config.task.correct_reward) == ("chat", 1.0)
    assert (config.task.path, config.task.splits) == ("d", {"train": "train.parquet", "test": "test.parquet"})


@pytest.mark.parametrize(
    ("setting", "keys", "named"),
    [
        ("actor.loss_agg_mode=token-mean", {"loss_type": "dapo", "epsilon_high": 0.2, "delta": 3.0}, ""),
        ("actor.loss_agg_mode=seq-mean-token-sum-norm", {"loss_type": "dr_grpo"}, ""),
        ("actor.loss_agg_mode=seq-mean-token-sum", {}, "actor_rollout_ref.actor.loss_agg_mode"),
        ("actor.use_kl_loss=True", {"beta": 0.001}, ""),
        ("actor.policy_loss.loss_mode=dppo_tv", {"loss_type": "dppo", "delta": None}, ""),
        ("actor.policy_loss.loss_mode=clip_cov", {}, "actor_rollout_ref.actor.policy_loss.loss_mode clip_cov"),
        ("actor.policy_loss.clip_cov_ratio=0.1", {}, "actor_rollout_ref.actor.policy_loss.clip_cov_ratio"),
        ("rollout.multi_turn.enable=True", {}, "actor_rollout_ref.rollout.multi_turn.enable"),
    ],
)  # fmt: skip
def test_losses_of_verl(setting: str, keys: dict[str, Any], named: str) -> None:
    draft, config = of_verl("trainer.total_training_steps=3", f"actor_rollout_ref.{setting}")
    assert {key: getattr(config.algorithm, key) for key in keys} == keys
    assert [bool(note.startswith(named)) for note in draft.not_translated] == ([True] if named else [])


SCRIPT = """#!/bin/bash
MODEL=Qwen/Qwen2.5-0.5B   # what is trained
pip install --upgrade trl
accelerate launch --num_processes 4 -m trl.scripts.grpo \\
    --model_name_or_path $MODEL --dataset_name "c/d" --use_peft \\
    --reward_funcs accuracy_reward my.rewards.short \\
    --learning-rate=1e-5 --max_steps 20 --gradient_accumulation_steps 4 "$@"
echo --done
"""


def test_a_script_is_read() -> None:
    draft = import_config(SCRIPT, "run.sh")
    config = load_config(draft.text())
    assert draft.not_translated == []
    assert (config.model.backbone, config.run.nproc, config.optimizer.learning_rate) == ("Qwen/Qwen2.5-0.5B", 4, 1e-5)
    assert config.task.rewards == ["trl.rewards:accuracy_reward", "my.rewards:short"]
    assert config.model.adapter == "lora"


def test_a_value_that_is_no_yaml_is_a_text() -> None:
    _, config = of_verl("actor_rollout_ref.model.path=[models/mine")
    assert config.model.backbone == "[models/mine"


def test_a_variable_that_is_not_set_is_named() -> None:
    draft = import_config(SCRIPT.replace("MODEL=", "OTHER="), "run.sh")
    assert draft.not_translated == ["model_name_or_path: $MODEL is a variable that the script does not set; "
                                    "write its value"]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate: abc\n", "f, line 1: optimizer.learning_rate: input should be a valid number"),
        ("a: 1\nnum_generations: some\n", "f, line 2: num_generations: expected a whole number above 0, got some"),
        ("loss_type: [a]\n", "f, line 1: loss_type: expected a name, got ['a']"),
        ("num_generations: 3\n", "f: per_device_train_batch_size: 8 completions of a rollout"),
        ("reward_funcs: [a.b]\nreward_weights: [1, 2]\n", "f, line 2: reward_weights: 2 weights for 1 reward_funcs"),
        ("trl grpo --model_name_or_path 'a\n", "f, line 1: an open quotation mark"),
        ("run: {total_steps: 3}\nalgorithm: {beta: 0.1}\n", "f: already a config of grpo-train"),
        ("nothing here\n", "f: no options found; expected a YAML config of TRL or verl"),
        ("trl grpo --seed " + 200_000 * "1", "f, line 1: 200,016 characters, which is not a script's line"),
        ("a: [1\n", "f, line 2: invalid YAML"),
        ("a: 1\nb: 2026-13-45\n", "f, line 2: invalid YAML: not a valid timestamp"),
        ("trainer: {nnodes: 1}\n", "actor_rollout_ref.rollout.n: 1 completion per prompt has no group"),
        ("hub_token: hf_abcdefghijklmnopqrstuvwxyz012345\n", "f, line 1: "),
    ],
)
def test_bad_input_names_the_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        import_config(text, "f")
    assert message in str(error.value)
    assert "abcdefghijk" not in str(error.value)


def test_the_command(tmp_path: Path) -> None:
    file, out = tmp_path / "grpo.yaml", tmp_path / "ours.yaml"
    file.write_text(yaml.safe_dump(BASE))
    assert load_config(command_here("import-config", file, root=None).stdout).model.backbone == "a/b"
    done = command_here("import-config", file, "--to", out, "--nproc", 2, root=None)
    assert (done.returncode, done.stdout) == (0, f"wrote {out} (16 keys from TRL 1.16)\n")
    assert load_config(out.read_text()).run.nproc == 2


def test_what_is_not_translated_ends_with_3(tmp_path: Path) -> None:
    file, out = tmp_path / "grpo.yaml", tmp_path / "ours.yaml"
    file.write_text(yaml.safe_dump({**BASE, "min_p": 0.1}))
    done = command_here("import-config", file, "--to", out, root=None)
    assert (done.returncode, done.stderr.splitlines()) == (
        3, ["not translated: min_p 0.1: no cut of the distribution by min_p; remove it, or use top_p"],
    )  # fmt: skip
    assert load_config(out.read_text()).run.total_steps == 100
    again = command_here("import-config", file, "--to", out, root=None)
    assert (again.returncode, "already exists" in again.stderr) == (1, True)


def test_a_translated_config_trains(micro_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With data and a reward function as TRL takes them, the module beside the config."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"prompt": f"{n}+{n}="}) + "\n" for n in range(10, 50)))
    code = "def short(completions, **kwargs):\n    return [-len(each) for each in completions]\n"
    (tmp_path / "my_rewards.py").write_text(code)
    options = {
        "model_name_or_path": "tiny", "dataset_name": "./data.jsonl", "reward_funcs": "my_rewards.short",
        "max_steps": 2, "num_generations": 4, "max_completion_length": 8, "learning_rate": 1e-4, "save_steps": 2,
        "gradient_accumulation_steps": 2,
    }  # fmt: skip
    (tmp_path / "ours.yaml").write_text(import_config(yaml.safe_dump(options), "grpo.yaml").text())
    run = train_here(micro_root, tmp_path / "ours.yaml", "translated")
    assert [row["rewards/short/mean"] < 0 for row in rows(run)] == [True, True]
    first = [row for row in rows(run, "rollouts.jsonl") if row["step"] == 1]
    assert len(first) == 16, "8 per device, 2 accumulated: 4 prompts with 4 completions"
