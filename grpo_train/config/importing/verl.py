"""Options of ``python -m verl.trainer.main_ppo``, from the configs of verl 0.9.1. Torch-free.

A step of verl is a rollout batch with all its updates; a step here is one update. Its scheduler moves once a batch.
"""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Any

from grpo_train.config.importing.table import Draft, Library, by_name, lost, needless, same, shown, speed, turned
from grpo_train.config.sections.algorithm import NO_DELTA

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
OPTIM, CORRECTION = f"{ACTOR}.optim", "algorithm.rollout_correction"
ROWS = by_name(
    # length and batches
    turned("data.train_batch_size", 1024, "rollout.buffer_size", "prompts, as here"),
    turned(f"{ACTOR}.ppo_mini_batch_size", 256, "algorithm.updates_per_buffer",
           "prompts of an update: train_batch_size / ppo_mini_batch_size updates"),
    turned(f"{ACTOR}.ppo_micro_batch_size_per_gpu", None, "train.microbatch_size",
           "completions there, prompts here: divided by n, at least 1"),
    turned(f"{ACTOR}.ppo_micro_batch_size", None, "train.microbatch_size", "the older name"),
    same(f"{ACTOR}.ppo_epochs", 1, "algorithm.num_iterations"),
    same(f"{ROLLOUT}.n", 1, "rollout.num_generations", "at least 2"),
    turned("trainer.n_gpus_per_node", 8, "run.nproc", "times nnodes; where it does not divide the prompts of an "
           "update, fewer are used. The result does not depend on it here"),
    same("trainer.nnodes", 1, "run.nodes"),
    turned("trainer.total_training_steps", None, "run.total_steps", "× updates of a batch"),
    turned("trainer.total_epochs", 30, "run.total_steps",
           "without total_training_steps, set it by hand: epochs × prompts / train_batch_size × updates of a batch"),
    same("data.max_prompt_length", 512, "rollout.max_prompt_length"),
    same("data.max_response_length", 512, "rollout.max_completion_length"),
    # sampling
    turned(f"{ROLLOUT}.name", None, "rollout.backend", "vllm: `vllm`; others: `native`"),
    same(f"{ROLLOUT}.temperature", 1.0, "rollout.temperature"),
    turned(f"{ROLLOUT}.top_p", 1.0, "rollout.top_p algorithm.rollout_correction",
           "below 1 needs a correction: `token_truncate` unless one is set"),
    turned(f"{ROLLOUT}.top_k", -1, "rollout.top_k algorithm.rollout_correction", "-1: 0; else as top_p"),
    turned(f"{ROLLOUT}.gpu_memory_utilization", 0.5, "rollout.vllm_gpu_memory_utilization", "with vllm"),
    speed(f"{ROLLOUT}.max_model_len", None, "rollout.vllm_max_model_length"),
    turned(f"{CORRECTION}.rollout_is", None, "algorithm.rollout_correction",
           "token: `token_truncate`, sequence: `sequence_truncate`"),
    turned(f"{CORRECTION}.rollout_is_threshold", 2.0, "algorithm.rollout_correction_cap", "an upper bound alone"),
    turned("algorithm.filter_groups.enable", False, "rollout.filter_groups", "by the reward"),
    turned("algorithm.filter_groups.max_num_gen_batches", 0, "rollout.max_rounds", "0, no limit: 10 rounds"),
    # loss
    turned("algorithm.adv_estimator", "gae", "algorithm.loss_type",
           "grpo alone: there is no critic, and no other baseline"),
    turned("algorithm.norm_adv_by_std_in_grpo", True, "algorithm.scale_rewards", "true: `group`, false: `none`"),
    turned(f"{ACTOR}.policy_loss.loss_mode", "vanilla", "algorithm.loss_type",
           "vanilla: by loss_agg_mode; gspo, sapo, cispo, dppo_tv (`dppo`)"),
    turned(f"{ACTOR}.loss_agg_mode", "token-mean", "algorithm.loss_type",
           "of vanilla: token-mean is `dapo`, seq-mean-token-mean `grpo`, seq-mean-token-sum-norm `dr_grpo`"),
    turned(f"{ACTOR}.loss_scale_factor", None, "algorithm.loss_type", "the constant of dr_grpo: max_response_length"),
    turned(f"{ACTOR}.clip_ratio", 0.2, "algorithm.epsilon", "only where clip_ratio_low and clip_ratio_high are null"),
    turned(f"{ACTOR}.clip_ratio_low", 0.2, "algorithm.epsilon", "written out"),
    turned(f"{ACTOR}.clip_ratio_high", 0.2, "algorithm.epsilon_high", "written out; cispo: 1 + it, the bound itself"),
    turned(f"{ACTOR}.clip_ratio_c", 3.0, "algorithm.delta", "of vanilla, the dual clip"),
    turned(f"{ACTOR}.use_kl_loss", False, "algorithm.beta", "true: kl_loss_coef"),
    turned(f"{ACTOR}.kl_loss_coef", 0.001, "algorithm.beta", "with use_kl_loss"),
    turned(f"{ACTOR}.kl_loss_type", "low_var_kl", "algorithm.beta", "low_var_kl and k3 alone"),
    same(f"{ACTOR}.entropy_coeff", 0, "algorithm.entropy_coef"),
    # optimizer
    same(f"{OPTIM}.lr", 1e-6, "optimizer.learning_rate"),
    turned(f"{OPTIM}.lr_warmup_steps", -1, "optimizer.warmup_steps", "× updates of a batch"),
    turned(f"{OPTIM}.lr_warmup_steps_ratio", 0.0, "optimizer.warmup_steps", "a share of run.total_steps"),
    turned(f"{OPTIM}.lr_scheduler_type", "constant", "optimizer.schedule", "constant, cosine"),
    turned(f"{OPTIM}.warmup_style", None, "optimizer.schedule", "the older name"),
    same(f"{OPTIM}.min_lr_ratio", 0.0, "optimizer.min_lr_ratio"),
    same(f"{OPTIM}.weight_decay", 0.01, "optimizer.weight_decay"),
    turned(f"{OPTIM}.betas", [0.9, 0.999], "optimizer.adam_beta1 optimizer.adam_beta2", "both"),
    same(f"{OPTIM}.clip_grad", 1.0, "optimizer.max_grad_norm"),
    turned(f"{ACTOR}.grad_clip", None, "optimizer.max_grad_norm", "the older name of clip_grad"),
    turned(f"{ACTOR}.use_dynamic_bsz", False, "train.token_budget", "true: ppo_max_token_len_per_gpu"),
    turned(f"{ACTOR}.ppo_max_token_len_per_gpu", 16384, "train.token_budget", "with use_dynamic_bsz"),
    speed(f"{MODEL}.enable_gradient_checkpointing", True, "train.gradient_checkpointing"),
    speed(f"{MODEL}.use_remove_padding", True, "train.packing"),
    # model
    same(f"{MODEL}.path", None, "model.backbone"),
    turned(f"{MODEL}.lora_rank", 0, "model.adapter model.lora_rank", "0: `none`, all weights"),
    turned(f"{MODEL}.lora_alpha", 16, "model.lora_alpha", "with lora_rank"),
    turned(f"{MODEL}.target_modules", "all-linear", "model.lora_targets", "with lora_rank"),
    speed(f"{ACTOR}.fsdp_config.dtype", "bfloat16", "model.dtype"),
    # data, evaluation, schedule
    turned("data.train_files", None, "task.name task.path task.splits task.template task.correct_reward",
           "task `data`; its columns prompt and reward_model.ground_truth are read as they are; a correct answer pays "
           "1, as in verl's gsm8k and math"),
    turned("data.val_files", None, "task.splits", "beside train_files"),
    turned("data.prompt_key", "prompt", "task.prompt_field", "where it is not `prompt`"),
    turned("data.train_max_samples", -1, "task.limit", "the first N; -1: all"),
    turned("data.seed", None, "run.seed", "0 by default here"),
    turned("trainer.save_freq", -1, "run.save_every", "× updates of a batch; -1: at the end alone"),
    turned("trainer.test_freq", -1, "run.eval_every", "× updates of a batch; -1: never"),
    same("trainer.val_before_train", True, "run.eval_initial"),
    same("trainer.max_actor_ckpt_to_keep", None, "run.keep_last"),
    turned("trainer.logger", ["console", "wandb"], "tracking.wandb",
           "with wandb, where the file says so: `auto`"),
    turned("trainer.project_name", "verl_examples", "tracking.wandb_project", "with wandb"),
    turned(f"{ROLLOUT}.val_kwargs.n", 1, "eval.num_samples", "as here"),
    turned(f"{ROLLOUT}.val_kwargs.do_sample", False, "eval.temperature", "false: greedy"),
    turned(f"{ROLLOUT}.val_kwargs.temperature", 0, "eval.temperature", "with do_sample"),
    turned(f"{ROLLOUT}.val_kwargs.top_p", 1.0, "eval.top_p", "with do_sample"),
    turned("reward_model.overlong_buffer.enable", False, "algorithm.overlong_buffer", "of the DAPO recipe"),
    turned("reward_model.overlong_buffer.len", 0, "algorithm.overlong_buffer", "with enable"),
    turned("reward_model.overlong_buffer.penalty_factor", 1.0, "algorithm.reward_weights", "weight of `overlong`"),
    # without an equivalent
    lost("algorithm.use_kl_in_reward", False, "the KL term is in the loss: algorithm.beta"),
    lost("algorithm.use_pf_ppo", False, "completions are not weighted again"),
    lost("algorithm.gamma", 1.0, "rewards are of whole completions: there is no discount"),
    lost(f"{CORRECTION}.rollout_rs", None, "mask with algorithm.rollout_correction: sequence_mask"),
    lost(f"{CORRECTION}.rollout_is_batch_normalize", False, "weights are not normalized"),
    lost(f"{CORRECTION}.bypass_mode", False, "the old policy is always the trainer's"),
    lost("algorithm.filter_groups.metric", "reward", "groups are filtered by their total rewards"),
    lost(f"{ACTOR}.policy_loss.*", None, "choose a loss of docs/algorithms.md, or write one"),
    lost(f"{ACTOR}.tau_pos", 1.0, "fixed at 1.0; a loss of your own can have another"),
    lost(f"{ACTOR}.tau_neg", 1.05, "fixed at 1.05; a loss of your own can have another"),
    lost(f"{ACTOR}.shuffle", False, "an update has the prompts in the order of the data"),
    lost(f"{OPTIM}.optimizer", "AdamW", "AdamW alone"),
    lost(f"{OPTIM}.num_cycles", 0.5, "half a cosine wave: down to min_lr_ratio"),
    lost(f"{OPTIM}.override_optimizer_config", None, "set optimizer.adam_beta1, adam_beta2, adam_epsilon"),
    lost(f"{ROLLOUT}.multi_turn.enable", False, "completions have one turn: no tools are called"),
    lost(f"{ROLLOUT}.ignore_eos", False, "completions end at the end-of-text token"),
    lost(f"{ROLLOUT}.val_kwargs.top_k", -1, "evaluations are greedy or by eval.temperature and eval.top_p"),
    lost(f"{MODEL}.trust_remote_code", False, "code of a model's repository is not run"),
    lost(f"{MODEL}.override_config", {}, "the model's own config is used"),
    lost(f"{MODEL}.custom_chat_template", None, "use a model with that template, or task.template"),
    lost(f"{MODEL}.lora_adapter_path", None, "train on with `grpo-train train --ckpt DIR`"),
    lost(f"{MODEL}.exclude_modules", None, "name modules in model.lora_targets"),
    lost("data.shuffle", True, "the order is always shuffled by run.seed"),
    lost("data.truncation", "error", "longer prompts are excluded, and counted"),
    lost("data.apply_chat_template_kwargs", {}, "add a column chat_template_kwargs to the data"),
    lost("data.custom_cls.*", None, "prepare the rows as a file: docs/own-task.md"),
    lost("reward.custom_reward_function.path", None, "make it a reward function of ours: docs/from-verl.md"),
    lost("custom_reward_function.path", None, "make it a reward function of ours: docs/from-verl.md"),
    lost("reward.reward_model.enable", False, "call the model in a reward function of your own (task.rewards)"),
    lost("reward_model.enable", False, "call the model in a reward function of your own (task.rewards)"),
    lost("reward_model.reward_manager", None, "rewards are added by algorithm.reward_weights"),
    lost("trainer.resume_from_path", None, "checkpoints of verl cannot be resumed; train from its exported model"),
    lost("defaults", None, "settings of other files are not read; import them, too"),
    # what changes nothing that is learned
    needless("the function above is named by task.rewards",
             "reward.custom_reward_function.name custom_reward_function.name"),
    needless("there is no critic", "critic.* algorithm.lam algorithm.kl_penalty algorithm.kl_ctrl.* "
             "trainer.critic_warmup trainer.max_critic_ckpt_to_keep"),
    needless("the reference uses what the policy uses", "actor_rollout_ref.ref.*"),
    needless("only with what it belongs to", f"algorithm.pf_ppo.* {CORRECTION}.* algorithm.filter_groups.* "
             f"reward.* reward_model.* {ROLLOUT}.multi_turn.*"),
    needless("memory and kernels are chosen in the sections train and rollout",
             f"{ACTOR}.* {MODEL}.* {ROLLOUT}.* {OPTIM}.* actor_rollout_ref.hybrid_engine "
             "actor_rollout_ref.nccl_timeout"),
    needless("the data is read at the start, with all columns", "data.*"),
    needless("`--run-name NAME`; all runs are in one root", "trainer.experiment_name trainer.default_local_dir "
             "trainer.default_hdfs_dir"),
    needless("processes are started by torchrun, not by Ray",
             "ray_init.* ray_kwargs.* trainer.ray_wait_register_center_timeout trainer.device trainer.balance_batch "
             "trainer.use_v1 trainer.v1.* transfer_queue.* skip.* global_profiler.* hydra.*"),
    needless("every step and completion is logged, and every run can be resumed", "trainer.*"),
    needless("rewards of code run in our sandbox", "sandbox_fusion.*"),
    needless("there is no distillation", "distillation.*"),
)  # fmt: skip
OTHER_LOSSES = {"gspo": "gspo", "sapo": "sapo", "cispo": "cispo", "dppo_tv": "dppo"}
AGGREGATED = {"token-mean": "dapo", "seq-mean-token-mean": "grpo", "seq-mean-token-sum-norm": "dr_grpo"}
BY_COMPLETION = ("gspo", "sapo")


def convert_verl(draft: Draft) -> None:
    """What is not copied."""
    updates = _batches(draft)
    _schedule(draft, updates)
    _model(draft)
    _loss(draft)
    _sampling(draft)
    _task(draft)


def _batches(draft: Draft) -> int:
    """Sizes of buffers and micro-batches; returns the updates of a batch, all passes together."""
    mini, source = f"{ACTOR}.ppo_mini_batch_size", "data.train_batch_size"
    prompts, of_update, size = draft.integer(source), draft.integer(mini), draft.integer(f"{ROLLOUT}.n")
    if size < 2:
        raise draft.error(f"{ROLLOUT}.n", "1 completion per prompt has no group; set at least 2")
    if prompts % of_update:
        raise draft.error(mini, f"does not divide data.train_batch_size {prompts}; set one that does")
    nodes = draft.integer("trainer.nnodes")
    processes = draft.nproc or draft.integer("trainer.n_gpus_per_node") * nodes
    nproc = math.gcd(of_update, processes)
    if nproc != processes:
        draft.assumed.append(f"run.nproc: {of_update} prompts of an update can be divided among {nproc} processes, "
                             f"not {processes}; the result is the same")  # fmt: skip
    names = (f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size")
    micro = next((name for name in names if draft.has(name)), None)
    per_pass = max(draft.integer(micro) // size, 1) if micro else 1
    draft.set("rollout.buffer_size", prompts, source)
    draft.set("algorithm.updates_per_buffer", prompts // of_update, mini)
    draft.set("run.nproc", nproc, "trainer.n_gpus_per_node")
    draft.set("train.microbatch_size", math.gcd(of_update // nproc, per_pass), micro or names[0])
    tokens, longest = f"{ACTOR}.ppo_max_token_len_per_gpu", "data.max_prompt_length + data.max_response_length"
    if draft[f"{ACTOR}.use_dynamic_bsz"]:
        if draft.integer(tokens) < draft.integer("data.max_prompt_length") + draft.integer("data.max_response_length"):
            raise draft.error(tokens, f"below {longest}")
        draft.set("train.token_budget", draft.integer(tokens), tokens)
    return prompts // of_update * draft.integer(f"{ACTOR}.ppo_epochs")


def _schedule(draft: Draft, updates: int) -> None:
    """Steps of verl, in updates."""
    total = 0
    if draft.has("trainer.total_training_steps"):
        total = draft.integer("trainer.total_training_steps") * updates
        draft.set("run.total_steps", total, "trainer.total_training_steps")
    else:
        epochs, batch = shown(draft["trainer.total_epochs"]), draft["data.train_batch_size"]
        draft.lose("trainer.total_epochs", f"set run.total_steps to {epochs} × prompts / {batch} × {updates}")
    saves, tests = _steps(draft, "trainer.save_freq"), _steps(draft, "trainer.test_freq")
    draft.set("run.save_every", saves * updates if saves > 0 else total or 2**31 - 1, "trainer.save_freq")
    draft.set("run.eval_every", tests * updates if tests > 0 else 0, "trainer.test_freq")
    warmup, ratio = _steps(draft, f"{OPTIM}.lr_warmup_steps"), draft[f"{OPTIM}.lr_warmup_steps_ratio"]
    if warmup >= 0:
        draft.set("optimizer.warmup_steps", warmup * updates, f"{OPTIM}.lr_warmup_steps")
    elif isinstance(ratio, int | float) and 0 < ratio <= 1:
        if total:
            draft.set("optimizer.warmup_steps", int(ratio * total), f"{OPTIM}.lr_warmup_steps_ratio")
        else:
            draft.lose(f"{OPTIM}.lr_warmup_steps_ratio", "a share of steps that only the data says; set the number")
    older = f"{OPTIM}.warmup_style"
    name = older if draft.has(older) else f"{OPTIM}.lr_scheduler_type"
    if draft.word(name) in ("constant", "cosine"):
        draft.set("optimizer.schedule", draft.word(name), name)
    else:
        draft.lose(f"{name} {draft.word(name)}", "choose constant, linear or cosine in optimizer.schedule")
    betas = draft[f"{OPTIM}.betas"]
    if not isinstance(betas, list) or len(betas) != 2:
        raise draft.error(f"{OPTIM}.betas", "expected two numbers")
    for key, value in zip(("adam_beta1", "adam_beta2"), betas, strict=True):
        draft.set(f"optimizer.{key}", value, f"{OPTIM}.betas")
    if draft.has(f"{ACTOR}.grad_clip"):
        draft.set("optimizer.max_grad_norm", draft[f"{ACTOR}.grad_clip"], f"{ACTOR}.grad_clip")
    if draft.has("trainer.logger") and "wandb" in draft.words("trainer.logger"):
        draft.set("tracking.wandb", "auto", "trainer.logger")
        draft.set("tracking.wandb_project", draft["trainer.project_name"], "trainer.project_name")


def _steps(draft: Draft, name: str) -> int:
    """A number of steps, -1 for none. Raises ConfigError."""
    value = draft[name]
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 2**31:
        raise draft.error(name, f"expected a number of steps or -1, got {shown(value)}")
    return value


def _model(draft: Draft) -> None:
    """Model and adapter."""
    if not draft.has(f"{MODEL}.path"):
        draft.lose(f"{MODEL}.path", "the file does not name a model; set model.backbone")
    rank = draft[f"{MODEL}.lora_rank"]
    draft.set("model.adapter", "lora" if rank else "none", f"{MODEL}.lora_rank")
    if rank:
        draft.set("model.lora_rank", rank, f"{MODEL}.lora_rank")
        draft.set("model.lora_alpha", draft[f"{MODEL}.lora_alpha"], f"{MODEL}.lora_alpha")
        draft.set("model.lora_targets", draft[f"{MODEL}.target_modules"], f"{MODEL}.target_modules")


def _loss(draft: Draft) -> None:
    """Loss, clip range, KL term, scale of advantages."""
    estimator = draft.word("algorithm.adv_estimator")
    if estimator not in ("grpo", "grpo_vectorized"):
        draft.lose(f"algorithm.adv_estimator {estimator}", "the baseline is the mean of the group, as with grpo")
    mode, combined = draft.word(f"{ACTOR}.policy_loss.loss_mode"), draft.word(f"{ACTOR}.loss_agg_mode")
    loss = OTHER_LOSSES.get(mode, AGGREGATED.get(combined, "dapo"))
    if mode not in ("vanilla", *OTHER_LOSSES):
        draft.lose(f"{ACTOR}.policy_loss.loss_mode {mode}", "choose algorithm.loss_type of docs/algorithms.md")
    expected = "seq-mean-token-mean" if loss in BY_COMPLETION else "token-mean"
    if combined not in AGGREGATED or (mode != "vanilla" and combined != expected):
        draft.lose(f"{ACTOR}.loss_agg_mode {combined}", f"{loss} has the normalizer of {expected}")
    source = f"{ACTOR}.policy_loss.loss_mode" if mode != "vanilla" else f"{ACTOR}.loss_agg_mode"
    draft.set("algorithm.loss_type", loss, source)
    if draft.has(f"{ACTOR}.loss_scale_factor"):
        draft.lose(
            f"{ACTOR}.loss_scale_factor", "the constant is rollout.max_completion_length: scale the learning rate"
        )
    low, high = (_clip(draft, side) for side in ("low", "high"))
    if loss == "cispo":
        draft.lose(f"{ACTOR}.clip_ratio_low", "cispo bounds ratios from above alone")
        high += 1
    draft.set("algorithm.epsilon", low, f"{ACTOR}.clip_ratio_low")
    draft.set("algorithm.epsilon_high", high, f"{ACTOR}.clip_ratio_high")
    if loss not in NO_DELTA and loss != "gspo":
        draft.set("algorithm.delta", draft[f"{ACTOR}.clip_ratio_c"], f"{ACTOR}.clip_ratio_c")
    if draft[f"{ACTOR}.use_kl_loss"]:
        draft.set("algorithm.beta", draft[f"{ACTOR}.kl_loss_coef"], f"{ACTOR}.kl_loss_coef")
        kind = draft.word(f"{ACTOR}.kl_loss_type")
        if kind not in ("low_var_kl", "k3"):
            draft.lose(f"{ACTOR}.kl_loss_type {kind}", "the KL term is k3 (low_var_kl)")
    name = "algorithm.norm_adv_by_std_in_grpo"
    draft.set("algorithm.scale_rewards", "group" if draft[name] else "none", name)


def _clip(draft: Draft, side: str) -> float:
    """A side of the clip range. Raises ConfigError."""
    name = f"{ACTOR}.clip_ratio_{side}"
    value = draft[name] if draft[name] is not None else draft[f"{ACTOR}.clip_ratio"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise draft.error(name, f"expected a number, got {shown(value)}")
    return value


def _sampling(draft: Draft) -> None:
    """Backend, correction, filter, evaluation."""
    backend = draft.word(f"{ROLLOUT}.name")
    if backend == "vllm":
        draft.set("rollout.backend", "vllm", f"{ROLLOUT}.name")
        share = f"{ROLLOUT}.gpu_memory_utilization"
        draft.set("rollout.vllm_gpu_memory_utilization", draft[share], share)
    elif backend != "none":
        draft.assumed.append(f"rollout.backend: native in place of {shown(backend)}")
    name = f"{CORRECTION}.rollout_is"
    if draft.has(name):
        draft.set("algorithm.rollout_correction", f"{draft.word(name)}_truncate", name)
        draft.set("algorithm.rollout_correction_cap", draft[f"{name}_threshold"], f"{name}_threshold")
    draft.set_cuts(f"{ROLLOUT}.top_p", f"{ROLLOUT}.top_k")
    if draft["algorithm.filter_groups.enable"]:
        draft.set("rollout.filter_groups", True, "algorithm.filter_groups.enable")
        rounds = "algorithm.filter_groups.max_num_gen_batches"
        if draft[rounds]:
            draft.set("rollout.max_rounds", draft[rounds], rounds)
    draft.set("eval.num_samples", draft[f"{ROLLOUT}.val_kwargs.n"], f"{ROLLOUT}.val_kwargs.n")
    if draft[f"{ROLLOUT}.val_kwargs.do_sample"]:
        for option in ("temperature", "top_p"):
            draft.set(f"eval.{option}", draft[f"{ROLLOUT}.val_kwargs.{option}"], f"{ROLLOUT}.val_kwargs.{option}")


def _task(draft: Draft) -> None:
    """Data and rewards."""
    train, test = draft["data.train_files"], draft["data.val_files"]
    train, test = ((each[0] if isinstance(each, list) and len(each) == 1 else each) for each in (train, test))
    if isinstance(train, list):
        draft.lose("data.train_files", "several files: put them into a directory, and name it in task.path")
    elif train is None:
        draft.lose("data.train_files", "the file names no data; set task.name, or task.path for your data")
    else:
        file, other = PurePosixPath(str(train)), PurePosixPath(str(test))
        draft.set("task.name", "data", "data.train_files")
        if test is not None and not isinstance(test, list) and file.parent == other.parent:
            draft.set("task.path", str(file.parent), "data.train_files")
            draft.set("task.splits", {"train": file.name, "test": other.name}, "data.val_files")
        else:
            draft.set("task.path", str(file), "data.train_files")
            if test is not None:
                draft.lose("data.val_files", "put it beside train_files, and name both in task.splits")
        draft.set("task.template", "chat", "data.train_files")
        draft.set("task.correct_reward", 1.0, "data.train_files")
        draft.assumed += [
            "task.grader: number; verl scores by data_source. Choose math for MATH, DAPO and AIME",
            "task.template: chat asks for answer tags, which the reward reads; the data may ask for #### or a box",
        ]
    if draft.word("data.prompt_key") != "prompt":
        draft.set("task.prompt_field", draft["data.prompt_key"], "data.prompt_key")
    if _steps(draft, "data.train_max_samples") > 0:
        draft.set("task.limit", draft["data.train_max_samples"], "data.train_max_samples")
    if draft.has("data.seed"):
        draft.set("run.seed", draft["data.seed"], "data.seed")
    overlong = "reward_model.overlong_buffer"
    if draft[f"{overlong}.enable"]:
        draft.set("algorithm.overlong_buffer", draft[f"{overlong}.len"], f"{overlong}.len")
        weight: Any = draft[f"{overlong}.penalty_factor"]
        draft.set("algorithm.reward_weights", {"overlong": weight}, f"{overlong}.penalty_factor")


VERL = Library("verl", "0.9", ROWS, convert_verl)
