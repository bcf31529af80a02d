"""Options of ``trl grpo``: GRPOConfig, transformers' TrainingArguments, ModelConfig and the script's arguments.

Torch-free. tests/config/test_importing.py compares names and defaults with TRL's own dataclasses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from grpo_train.config.importing.table import Draft, Library, by_name, lost, needless, same, shown, speed, turned
from grpo_train.config.sections.algorithm import LOSSES, NO_DELTA
from grpo_train.run_dir.files import number_in

UPDATE = "per_device_train_batch_size × number of processes × gradient_accumulation_steps"
ROWS = by_name(
    # length and batches
    turned("max_steps", -1, "run.total_steps", "optimizer updates, as here; not above 0: set it by num_train_epochs"),
    turned("num_train_epochs", 3.0, "run.total_steps",
           f"without max_steps, set it by hand: epochs × prompts × num_iterations × num_generations / ({UPDATE})"),
    turned("per_device_train_batch_size", 8, "rollout.buffer_size train.microbatch_size",
           "completions there, prompts here; the micro-batch is what fits into it, at least 1 prompt"),
    turned("gradient_accumulation_steps", 1, "rollout.buffer_size algorithm.updates_per_buffer",
           f"an update has {UPDATE} completions; divided by num_generations, prompts"),
    turned("generation_batch_size", None, "rollout.buffer_size", "completions; divided by num_generations, prompts"),
    turned("steps_per_generation", None, "rollout.buffer_size algorithm.updates_per_buffer",
           "micro-steps; divided by gradient_accumulation_steps, updates"),
    turned("num_processes", None, "run.nproc", "of `accelerate launch`; 1 unless `--nproc` says otherwise. The result "
           "does not depend on it here; where it does not divide the prompts of an update, fewer are used"),
    turned("nproc_per_node", None, "run.nproc", "of torchrun, times nnodes"),
    turned("num_machines", None, "run.nodes", "of `accelerate launch`"),
    turned("nnodes", None, "run.nodes", "of torchrun"),
    same("num_generations", 8, "rollout.num_generations"),
    same("num_iterations", 1, "algorithm.num_iterations"),
    same("max_completion_length", 512, "rollout.max_completion_length"),
    same("max_prompt_length", None, "rollout.max_prompt_length",
         "of TRL before 0.29, which cuts longer prompts; here they are excluded, and counted"),
    # sampling
    same("temperature", 1.0, "rollout.temperature"),
    turned("top_p", 1.0, "rollout.top_p algorithm.rollout_correction",
           "below 1 needs a correction: `token_truncate` unless vLLM's is set"),
    turned("top_k", 0, "rollout.top_k algorithm.rollout_correction", "as top_p"),
    turned("use_vllm", False, "rollout.backend", "true: `vllm` (`make setup-vllm`); false: `native`"),
    speed("vllm_gpu_memory_utilization", 0.3, "rollout.vllm_gpu_memory_utilization"),
    speed("vllm_max_model_length", None, "rollout.vllm_max_model_length"),
    turned("vllm_importance_sampling_correction", True, "algorithm.rollout_correction", "with use_vllm alone"),
    turned("vllm_importance_sampling_mode", "sequence_mask", "algorithm.rollout_correction", "with use_vllm alone"),
    turned("vllm_importance_sampling_clip_max", 3.0, "algorithm.rollout_correction_cap", "with use_vllm alone"),
    turned("vllm_importance_sampling_cap", None, "algorithm.rollout_correction_cap", "the older name"),
    # loss
    turned("loss_type", "dapo", "algorithm.loss_type",
           "as here but luspo and vespo; with importance_sampling_level `sequence`, gspo"),
    turned("importance_sampling_level", "token", "algorithm.loss_type",
           "`sequence` with `grpo` is gspo; with another loss also gspo, which weights completions equally"),
    turned("scale_rewards", "group", "algorithm.scale_rewards", "true: `group`, false: `none`"),
    turned("reward_weights", None, "algorithm.reward_weights", "by the names of reward_funcs, in their order"),
    turned("epsilon", 0.2, "algorithm.epsilon", "written out: the defaults of dapo and gspo differ here"),
    turned("epsilon_high", None, "algorithm.epsilon_high", "epsilon by default there, also for dapo"),
    turned("delta", None, "algorithm.delta", "without effect on cispo and sapo"),
    same("beta", 0.0, "algorithm.beta", "without use_bias_correction_kl"),
    turned("use_bias_correction_kl", True, "algorithm.beta",
           "not implemented: with beta, the KL term is as with false, plain k3"),
    same("entropy_coef", 0.0, "algorithm.entropy_coef"),
    same("mask_truncated_completions", False, "algorithm.mask_truncated_completions"),
    # optimizer
    same("learning_rate", 1e-6, "optimizer.learning_rate"),
    turned("warmup_steps", 0, "optimizer.warmup_steps", "below 1: a share of max_steps"),
    turned("warmup_ratio", None, "optimizer.warmup_steps", "of older versions: a share of max_steps"),
    turned("lr_scheduler_type", "linear", "optimizer.schedule",
           "linear, cosine, constant (without warmup there), constant_with_warmup, cosine_with_min_lr"),
    turned("lr_scheduler_kwargs", None, "optimizer.min_lr_ratio", "min_lr_rate, or min_lr / learning_rate"),
    same("weight_decay", 0.0, "optimizer.weight_decay"),
    same("adam_beta1", 0.9, "optimizer.adam_beta1"),
    same("adam_beta2", 0.999, "optimizer.adam_beta2"),
    same("adam_epsilon", 1e-8, "optimizer.adam_epsilon"),
    same("max_grad_norm", 1.0, "optimizer.max_grad_norm"),
    speed("gradient_checkpointing", True, "train.gradient_checkpointing"),
    turned("torch_compile", False, "train.compile", "`on`, or `off`"),
    # model
    same("model_name_or_path", None, "model.backbone"),
    turned("model_revision", "main", "model.backbone", "a commit: NAME@COMMIT; a branch is not pinned"),
    turned("use_peft", False, "model.adapter", "true: `lora`, false: `none`"),
    turned("lora_r", 16, "model.lora_rank", "with use_peft"),
    turned("lora_alpha", 32, "model.lora_alpha", "with use_peft"),
    turned("lora_dropout", 0.05, "model.lora_dropout", "with use_peft; 0 where a buffer has several updates"),
    turned("lora_target_modules", None, "model.lora_targets",
           "with use_peft; by default peft's for Qwen and Llama, `[q_proj, v_proj]`"),
    turned("dtype", "float32", "model.dtype", "the type of the trained weights, always float32 here; see bf16"),
    turned("torch_dtype", None, "model.dtype", "the older name of dtype"),
    turned("bf16", None, "model.dtype", "true: `bfloat16`; false: `float32`; not set: `auto`"),
    turned("fp16", False, "model.dtype", "true: `float16`"),
    turned("attn_implementation", None, "model.attention", "sdpa, eager, flash_attention_2"),
    turned("use_cpu", False, "model.device", "true: `cpu`"),
    # data and rewards
    turned("dataset_name", None, "task.name task.path task.grader",
           "task `data` with a path or hf:OWNER/NAME; its columns: docs/own-task.md"),
    turned("dataset_config", None, "task.path", "hf:OWNER/NAME:CONFIG"),
    turned("dataset_train_split", "train", "task.splits", "train"),
    turned("dataset_test_split", "test", "task.splits", "test"),
    turned("reward_funcs", None, "task.rewards algorithm.overlong_buffer",
           "`my.module.function` as `my.module:function`; TRL's own as `trl.rewards:NAME` (TRL must be installed)"),
    # schedule
    same("seed", 42, "run.seed"),
    same("full_determinism", False, "run.deterministic"),
    turned("save_steps", 500, "run.save_every", "below 1: a share of max_steps"),
    turned("save_strategy", "steps", "run.save_every", "`no`: at the end alone; `epoch`, `best`: set it by hand"),
    same("save_total_limit", None, "run.keep_last"),
    turned("eval_strategy", "no", "run.eval_every", "`steps`: eval_steps"),
    turned("eval_steps", None, "run.eval_every", "below 1: a share of max_steps; by default logging_steps"),
    turned("eval_on_start", False, "run.eval_initial", "with eval_strategy"),
    turned("num_generations_eval", None, "eval.num_samples eval.temperature",
           "at the temperature of training; by default one greedy completion here"),
    turned("report_to", "none", "tracking.wandb", "wandb: `auto`; all else is logged here in any case"),
    # without an equivalent
    lost("min_p", None, "no cut of the distribution by min_p; remove it, or use top_p"),
    lost("repetition_penalty", 1.0, "the sampler must be the policy here; pay for it with a reward function"),
    lost("generation_kwargs", None, "set temperature, top_p and top_k; other settings are not available"),
    lost("chat_template_kwargs", None, "add a column chat_template_kwargs to the data"),
    lost("vllm_structured_outputs_regex", None, "completions are not constrained; pay for the form with a reward"),
    lost("vllm_importance_sampling_clip_min", None, "only an upper bound: algorithm.rollout_correction_cap"),
    lost("off_policy_mask_threshold", None, "mask with algorithm.rollout_correction: sequence_mask"),
    lost("top_entropy_quantile", 1.0, "all tokens are trained; a loss of your own can mask some (loss_type)"),
    lost("use_adaptive_entropy", False, "set a fixed algorithm.entropy_coef"),
    lost("multi_objective_aggregation", "sum_then_normalize", "rewards are summed, then scaled; weight them"),
    lost("sync_ref_model", False, "the reference stays the starting model; start a new run from a checkpoint (--ckpt)"),
    lost("sapo_temperature_neg", 1.05, "fixed at 1.05; a loss of your own can have another"),
    lost("sapo_temperature_pos", 1.0, "fixed at 1.0; a loss of your own can have another"),
    lost("router_aux_loss_coef", None, "models with experts are not supported"),
    lost("max_tool_calling_iterations", None, "completions have one turn: no tools are called"),
    lost("cast_lm_head_to_fp32", False, "log-probabilities are float32, the matrix product is of model.dtype"),
    lost("shuffle_dataset", True, "the order is always shuffled by run.seed"),
    lost("optim", "adamw_torch_fused", "AdamW alone (adamw_torch is the same)"),
    lost("optim_args", None, "set optimizer.adam_beta1, adam_beta2, adam_epsilon"),
    lost("optim_target_modules", None, "all trained weights have AdamW"),
    lost("label_smoothing_factor", 0.0, "it has no meaning for this loss; remove it"),
    lost("neftune_noise_alpha", None, "no noise in embeddings; remove it"),
    lost("data_seed", None, "run.seed seeds data and sampling together"),
    lost("train_sampling_strategy", "random", "the order is always shuffled by run.seed"),
    lost("trust_remote_code", False, "code of a model's repository is not run; use a model that transformers has"),
    lost("model_init_kwargs", None, "set model.dtype and model.attention"),
    lost("lora_target_parameters", None, "name modules in model.lora_targets"),
    lost("lora_modules_to_save", None, "an adapter alone is trained; use model.adapter: none for all weights"),
    lost("use_rslora", False, "set model.lora_alpha to lora_alpha × √lora_rank, which is the same scale"),
    lost("use_dora", False, "plain LoRA alone"),
    lost("load_in_4bit", False, "weights are not quantized; use a smaller model or a GPU with more memory"),
    lost("load_in_8bit", False, "weights are not quantized; use a smaller model or a GPU with more memory"),
    lost("reward_model_name_or_path", None, "call the model in a reward function of your own (task.rewards)"),
    lost("datasets", [], "a mixture is a list of tasks, `task: [{name: data, path: …}, …]`"),
    lost("test_split_size", None, "without a test split a tenth is held out (task.split_seed)"),
    lost("resume_from_checkpoint", None, "checkpoints of TRL cannot be resumed; train from its exported model"),
    lost("config", None, "options of that file are not read; import it, too"),
    # what changes nothing that is learned
    needless("only with vespo, which is not available", "vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg"),
    needless("only with sync_ref_model", "ref_model_mixup_alpha ref_model_sync_steps"),
    needless("only with use_adaptive_entropy",
             "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target"),
    needless("dropout is off, but for model.lora_dropout", "disable_dropout"),
    needless("only with load_in_4bit or load_in_8bit",
             "bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage"),
    needless("a causal language model in any case", "lora_task_type"),
    needless("one server per process, started by the run; servers of your own: docs/vllm.md",
             "vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url vllm_server_host vllm_server_port "
             "vllm_server_timeout vllm_group_port vllm_tensor_parallel_size"),
    needless("the native backend batches continuously",
             "cache_implementation use_cache use_transformers_continuous_batching "
             "transformers_continuous_batching_config use_transformers_paged"),
    needless("every completion is in rollouts.jsonl",
             "log_completions log_multimodal num_completions_to_print log_unique_prompts log_completions_hub_repo"),
    needless("every step is logged",
             "logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter log_level "
             "log_level_replica disable_tqdm include_num_input_tokens_seen logging_dir"),
    needless("`--run-name NAME`; all runs are in one root", "run_name output_dir overwrite_output_dir"),
    needless("tracking.wandb_project names the project of Weights & Biases",
             "project trackio_space_id trackio_bucket_id trackio_static_space_id"),
    needless("`grpo-train export` writes and pushes a model",
             "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision"),
    needless("a checkpoint has the full state; all stay unless run.keep_last says otherwise",
             "save_only_model save_on_each_node enable_jit_checkpoint load_best_model_at_end metric_for_best_model "
             "greater_is_better ignore_data_skip restore_callback_states_from_checkpoint"),
    needless("evaluation is a separate process, with settings in the section eval",
             "eval_delay per_device_eval_batch_size prediction_loss_only eval_do_concat_batches "
             "eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics do_eval "
             "do_predict bf16_full_eval fp16_full_eval"),
    needless("every GPU has the whole model; docs/scaling.md",
             "deepspeed fsdp fsdp_config parallelism_config ds3_gather_for_generation accelerator_config config_file "
             "use_deepspeed deepspeed_config_file mixed_precision"),
    needless("processes are coordinated by run.nproc and run.nodes",
             "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend "
             "ddp_timeout local_rank ignore_bias_buffers average_tokens_across_devices main_process_port "
             "main_process_ip machine_rank master_addr master_port node_rank standalone multi_gpu gpu_ids rdzv_backend "
             "rdzv_endpoint rdzv_id dynamo_backend"),
    needless("variables of a run: docs/boxes.md", "env"),
    needless("memory and kernels are chosen in the section train",
             "gradient_checkpointing_kwargs activation_checkpointing activation_checkpointing_kwargs tf32 "
             "torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config torch_empty_cache_steps "
             "auto_find_batch_size pad_to_multiple_of skip_memory_metrics debug"),
    needless("the data is read at the start, with all columns",
             "remove_unused_columns dataloader_drop_last dataloader_num_workers dataloader_pin_memory "
             "dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context "
             "dataloader_in_order label_names length_column_name dataset_streaming streaming"),
    needless("`grpo-train train` trains", "do_train"),
)  # fmt: skip
SCRIPT_OVERLONG = {"max_completion_len": 1280, "soft_punish_cache": 256}
"""Settings of ``get_soft_overlong_punishment`` in TRL's script."""
OWN = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "get_soft_overlong_punishment")


def convert_trl(draft: Draft) -> None:
    """What is not copied."""
    updates = _batches(draft)
    steps = _length(draft)
    _schedule(draft, steps)
    _model(draft, updates)
    _loss(draft)
    _sampling(draft)
    _task(draft)


def _batches(draft: Draft) -> int:
    """Sizes of buffers and micro-batches; returns the updates of a buffer, all passes together."""
    nodes = next((draft.integer(name) for name in ("nnodes", "num_machines") if draft.has(name)), 1)
    processes = draft.nproc or 0
    if not processes and draft.has("num_processes"):
        processes = draft.integer("num_processes")
    if not processes and draft.has("nproc_per_node"):
        processes = draft.integer("nproc_per_node") * nodes
    if not processes:
        processes = 1
        draft.assumed.append("run.nproc: one process, as the file names no number; --nproc N says another")
    per_device, accumulated = draft.integer("per_device_train_batch_size"), draft.integer("gradient_accumulation_steps")
    size, per_update = draft.integer("num_generations"), per_device * processes * accumulated
    if draft.has("generation_batch_size") and draft.has("steps_per_generation"):
        raise draft.error("generation_batch_size", "TRL refuses it beside steps_per_generation; keep one")
    generated = per_update
    if draft.has("generation_batch_size"):
        generated = draft.integer("generation_batch_size")
    elif draft.has("steps_per_generation"):
        generated = per_device * processes * draft.integer("steps_per_generation")
    source = "per_device_train_batch_size"
    if generated % size:
        raise draft.error(source, f"{generated} completions of a rollout ({per_device} per device, {processes} "
                          f"processes) are not a multiple of num_generations {size}, as TRL requires, too")  # fmt: skip
    completions = math.lcm(generated, per_update) if generated < per_update else generated
    wanted = max(completions // per_update, 1)
    prompts = completions // size
    updates = math.gcd(prompts, wanted)
    if completions % per_update or updates != wanted:
        draft.lose("steps_per_generation", f"{completions / per_update:g} updates per rollout would split groups; "
                   f"algorithm.updates_per_buffer is {updates}")  # fmt: skip
    of_update = prompts // updates
    nproc = math.gcd(of_update, processes)
    if nproc != processes:
        draft.assumed.append(f"run.nproc: {of_update} prompts of an update can be divided among {nproc} processes, "
                             f"not {processes}; the result is the same")  # fmt: skip
    draft.set("rollout.buffer_size", prompts, source)
    draft.set("algorithm.updates_per_buffer", updates, "gradient_accumulation_steps")
    draft.set("train.microbatch_size", math.gcd(of_update // nproc, max(per_device // size, 1)), source)
    draft.set("run.nproc", nproc, "num_processes")
    draft.set("run.nodes", nodes, "num_machines")
    return updates * draft.integer("num_iterations")


def _length(draft: Draft) -> int:
    """``run.total_steps``; 0 where only the data says it."""
    steps = draft["max_steps"]
    if isinstance(steps, int | float) and steps > 0:
        draft.set("run.total_steps", draft.integer("max_steps"), "max_steps")
        return draft.integer("max_steps")
    prompts = draft.keys["rollout.buffer_size"][0] // draft.keys["algorithm.updates_per_buffer"][0]
    epochs, passes = draft["num_train_epochs"], draft["num_iterations"]
    draft.lose("num_train_epochs", f"set run.total_steps to {epochs} × prompts × {passes} / {prompts}")
    return 0


def _share(draft: Draft, name: str, steps: int) -> int | None:
    """A number of steps, which may be a share of all; None where it cannot be known."""
    value = draft[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**31:
        raise draft.error(name, f"expected a number of steps, got {shown(value)}")
    is_share = 0 < value < 1 or (name == "warmup_ratio" and value > 0)
    if not is_share:
        return int(value)
    if not steps:
        draft.lose(f"{name} {value}", "a share of steps that only the data says; set the number")
        return None
    return math.ceil(value * steps)


def _schedule(draft: Draft, steps: int) -> None:
    """Saves, evaluations, learning rate, tracking."""
    saves = draft.word("save_strategy")
    if saves == "no":
        draft.set("run.save_every", steps or 2**31 - 1, "save_strategy")
    elif saves == "steps":
        if every := _share(draft, "save_steps", steps):
            draft.set("run.save_every", every, "save_steps")
    else:
        draft.lose(f"save_strategy {saves}", "set run.save_every to a number of steps")
    evaluates = draft.word("eval_strategy")
    if evaluates == "steps":
        name = "eval_steps" if draft.has("eval_steps") else "logging_steps"
        every = _share(draft, name, steps) if draft.has(name) else 10
        if every:
            draft.set("run.eval_every", every, name if name == "eval_steps" else "eval_strategy")
        draft.set("run.eval_initial", bool(draft["eval_on_start"]), "eval_on_start")
    elif evaluates != "no":
        draft.lose(f"eval_strategy {evaluates}", "set run.eval_every to a number of steps")
    if draft.has("num_generations_eval"):
        draft.set("eval.num_samples", draft["num_generations_eval"], "num_generations_eval")
        draft.set("eval.temperature", draft["temperature"], "num_generations_eval")
    warmup = _share(draft, "warmup_ratio" if draft.has("warmup_ratio") else "warmup_steps", steps)
    kind = draft.word("lr_scheduler_type")
    names = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant",
             "cosine_with_min_lr": "cosine"}  # fmt: skip
    if kind in names:
        draft.set("optimizer.schedule", names[kind], "lr_scheduler_type")
    else:
        draft.lose(f"lr_scheduler_type {kind}", "choose constant, linear or cosine in optimizer.schedule")
    if warmup and kind != "constant":
        draft.set("optimizer.warmup_steps", warmup, "warmup_ratio" if draft.has("warmup_ratio") else "warmup_steps")
    settings = draft["lr_scheduler_kwargs"]
    if isinstance(settings, Mapping) and kind == "cosine_with_min_lr":
        rate = settings.get("min_lr_rate")
        if rate is None and "min_lr" in settings:
            rate = (number_in(settings["min_lr"]) or 0.0) / (number_in(draft["learning_rate"]) or 1.0)
        draft.set("optimizer.min_lr_ratio", rate or 0.0, "lr_scheduler_kwargs")
    elif settings:
        draft.lose("lr_scheduler_kwargs", "only min_lr_rate and min_lr of cosine_with_min_lr have a key")
    if draft.has("report_to"):
        uses_wandb = bool({"wandb", "all"} & set(draft.words("report_to")))
        draft.set("tracking.wandb", "auto" if uses_wandb else "off", "report_to")


def _model(draft: Draft, updates: int) -> None:
    """Model, adapter and types."""
    backbone, revision = draft["model_name_or_path"], str(draft["model_revision"])
    if backbone is None:
        draft.lose("model_name_or_path", "the file does not name a model; set model.backbone")
    elif re.fullmatch("[0-9a-f]{40}", revision):
        draft.set("model.backbone", f"{backbone}@{revision}", "model_revision")
    elif revision != "main":
        draft.lose(f"model_revision {revision}", "name a commit, model.backbone: OWNER/NAME@COMMIT")
    lora = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")
    draft.set("model.adapter", "lora" if draft["use_peft"] else "none", "use_peft")
    if draft["use_peft"]:
        targets = draft["lora_target_modules"]
        if isinstance(targets, str) and targets != "all-linear":
            targets = [targets]
        dropout = draft["lora_dropout"]
        if dropout and updates > 1:
            draft.lose(f"lora_dropout {dropout}", f"a buffer has {updates} updates, where its noise would be clipped")
            dropout = 0.0
        draft.set("model.lora_rank", draft["lora_r"], "lora_r")
        draft.set("model.lora_alpha", draft["lora_alpha"], "lora_alpha")
        draft.set("model.lora_dropout", dropout, "lora_dropout")
        draft.set("model.lora_targets", targets or ["q_proj", "v_proj"], "lora_target_modules")
        if targets == ["all-linear"]:
            draft.set("model.lora_targets", "all-linear", "lora_target_modules")
    else:
        draft.left_out += [f"{name}: without effect, as use_peft is not set" for name in lora if draft.has(name)]
    if draft["fp16"]:
        draft.set("model.dtype", "float16", "fp16")
    elif draft["bf16"] is not None:
        draft.set("model.dtype", "bfloat16" if draft["bf16"] else "float32", "bf16")
    weights = str(draft["torch_dtype"] or draft["dtype"])
    if weights not in ("float32", "auto", "None"):
        draft.lose(f"dtype {weights}", "trained weights are kept in float32, which needs more memory")
    if draft.has("attn_implementation"):
        if draft["attn_implementation"] in ("sdpa", "eager", "flash_attention_2"):
            draft.set("model.attention", draft["attn_implementation"], "attn_implementation")
        else:
            draft.left_out.append(f"attn_implementation {draft['attn_implementation']}: sdpa is used; the result is "
                                  "the same but for rounding")  # fmt: skip
    if draft["use_cpu"]:
        draft.set("model.device", "cpu", "use_cpu")
    if draft.has("torch_compile"):
        draft.set("train.compile", "on" if draft["torch_compile"] else "off", "torch_compile")


def _loss(draft: Draft) -> None:
    """Loss, clip range and scale of advantages."""
    loss = draft.word("loss_type")
    if draft["importance_sampling_level"] == "sequence":
        if loss != "grpo":
            draft.lose(f"importance_sampling_level sequence with {loss}", "gspo weights completions equally")
        loss = "gspo"
    if loss in LOSSES:
        draft.set("algorithm.loss_type", loss, "loss_type")
    else:
        draft.lose(f"loss_type {loss}", "choose algorithm.loss_type of docs/algorithms.md, or write one")
    low, high = draft["epsilon"], draft["epsilon_high"]
    draft.set("algorithm.epsilon", low, "epsilon")
    high_source = "epsilon_high" if draft.has("epsilon_high") else "epsilon"
    if loss == "cispo" and isinstance(high or low, int | float) and (high or low) < 1:
        draft.lose("epsilon_high", f"TRL bounds ratios by {high or low}, below 1; the usual 5.0 is used")
    elif loss != "dr_grpo" or high is not None:
        draft.set("algorithm.epsilon_high", low if high is None else high, high_source)
    if draft.has("delta"):
        if loss in NO_DELTA:
            draft.left_out.append(f"delta: without effect on {loss}")
        else:
            draft.set("algorithm.delta", draft["delta"], "delta")
    scale = draft.word("scale_rewards")
    draft.set("algorithm.scale_rewards", {"true": "group", "no": "none"}.get(scale, scale), "scale_rewards")
    if draft["beta"] and draft["use_bias_correction_kl"]:
        draft.lose(
            "use_bias_correction_kl", "TRL weights the KL term with the ratio; here it is plain k3, as with false"
        )


def _sampling(draft: Draft) -> None:
    """Backend, cuts of the distribution, correction between sampler and trainer."""
    if not draft.has("max_prompt_length"):
        draft.assumed.append("rollout.max_prompt_length: 512; longer prompts are excluded here, and TRL has no limit")
    if draft["use_vllm"]:
        draft.set("rollout.backend", "vllm", "use_vllm")
        if draft["vllm_importance_sampling_correction"]:
            cap = draft["vllm_importance_sampling_cap"] or draft["vllm_importance_sampling_clip_max"]
            draft.set("algorithm.rollout_correction", draft["vllm_importance_sampling_mode"],
                      "vllm_importance_sampling_mode")  # fmt: skip
            if cap is None:
                draft.lose("vllm_importance_sampling_clip_max", "an upper bound is needed; 2.0 is used")
            else:
                draft.set("algorithm.rollout_correction_cap", cap, "vllm_importance_sampling_clip_max")
    draft.set_cuts("top_p", "top_k")


def _task(draft: Draft) -> None:
    """Data and rewards."""
    name = draft["dataset_name"]
    if name is None:
        draft.lose("dataset_name", "the file does not name a dataset; set task.name, or task.path for your data")
    else:
        is_file = str(name).startswith((".", "/", "~")) or str(name).endswith((".jsonl", ".json", ".csv", ".parquet"))
        config = f":{draft['dataset_config']}" if draft.has("dataset_config") and not is_file else ""
        draft.set("task.name", "data", "dataset_name")
        draft.set("task.path", str(name) if is_file else f"hf:{name}{config}", "dataset_name")
        draft.assumed.append("task.template: a plain prompt goes into the task's default template, with think and "
                             "answer tags; TRL adds nothing: `template: question`. Messages go through the model's "
                             "chat template, as there")  # fmt: skip
        splits = {split: draft[f"dataset_{split}_split"] for split in ("train", "test")}
        if not is_file and any(draft.has(f"dataset_{split}_split") for split in splits):
            draft.set("task.splits", splits, "dataset_train_split")
    functions = draft.words("reward_funcs")
    if not functions:
        draft.lose("reward_funcs", "the file names none; set task.rewards")
        return
    _rewards(draft, functions)


def _rewards(draft: Draft, functions: list[str]) -> None:
    """``task.rewards`` and their weights, the grader of the data."""
    rewards: list[str] = []
    names: list[str] = []
    for function in functions:
        module, _, name = function.rpartition(".")
        if function == "get_soft_overlong_punishment":
            names.append("overlong")
            length, buffer = draft.integer("max_completion_length"), SCRIPT_OVERLONG["soft_punish_cache"]
            if length != SCRIPT_OVERLONG["max_completion_len"]:
                draft.lose(function, f"TRL's script counts from 1280 tokens, here from max_completion_length {length}")
            if buffer < length:
                draft.set("algorithm.overlong_buffer", buffer, "reward_funcs")
            continue
        names.append(name)
        rewards.append(f"trl.rewards:{function}" if function in OWN else f"{module}:{name}" if module else function)
        if not module and function not in OWN:
            draft.lose(function, "not a function of TRL; write MODULE:FUNCTION or FILE.py:FUNCTION in task.rewards")
            rewards.pop()
    if rewards:
        draft.set("task.rewards", rewards, "reward_funcs")
    has_answers = any(name.endswith("accuracy_reward") for name in names)
    if "task.name" in draft.keys:
        draft.set("task.grader", "math" if has_answers else "none", "reward_funcs")
    weights: Any = draft["reward_weights"]
    if weights is not None:
        weights = weights if isinstance(weights, list) else [weights]
        if len(weights) != len(names):
            raise draft.error("reward_weights", f"{len(weights)} weights for {len(names)} reward_funcs")
        draft.set("algorithm.reward_weights", dict(zip(names, weights, strict=True)), "reward_weights")


TRL = Library("TRL", "1.16", ROWS, convert_trl)
