"""Layers, origins, aliases and linked values."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from megads.config.deepspeed.json_file import FLAGS as DEEPSPEED_FLAGS
from megads.config.setting import Origin
from megads.config.sources.env_names import names_of
from megads.config.sources.flags import flags
from megads.config.sources.parse import parse
from megads.config.sources.presets import presets
from megads.config.sources.resolve import resolve, settings
from megads.config.tree import fields, value_of
from megads.errors import ConfigError


def test_each_layer_wins_over_the_one_below():
    bare = resolve(env={}, machine="generic")
    assert (bare.run.model.num_layers, str(bare.origins["model.num_layers"])) == (32, "default")
    preset = resolve("2B", env={}, machine="generic")
    assert (preset.run.model.hidden_size, str(preset.origins["model.hidden_size"])) == (2048, "preset 2B")
    machine = resolve("2B", env={}, machine="cpu")
    assert (machine.run.model.hidden_size, str(machine.origins["model.hidden_size"])) == (128, "machine cpu")
    env = resolve("2B", env={"HIDDEN": "256"}, machine="cpu")
    assert (env.run.model.hidden_size, str(env.origins["model.hidden_size"])) == (256, "env HIDDEN")
    cli = resolve("2B", env={"HIDDEN": "256"}, overrides={"model.hidden_size": "512"}, machine="cpu")
    assert cli.run.model.hidden_size == 512
    assert cli.origins["model.hidden_size"] == Origin("cli", "--set model.hidden_size")


def test_family_is_a_layer_between_default_and_preset():
    gpt = resolve(env={"MODEL_FAMILY": "gpt"}, machine="generic")
    assert gpt.run.model.activation == "gelu_tanh"
    assert str(gpt.origins["model.activation"]) == "family gpt"
    assert resolve("gpt-345M", env={}, machine="generic").run.model.tied_embeddings is True
    llama = resolve("gpt-345M", env={"MODEL_FAMILY": "llama"}, machine="generic")
    assert llama.run.model.normalization == "rmsnorm"


def test_every_origin_is_recorded():
    resolved = resolve("7B", env={}, machine="cpu")
    assert list(resolved.origins) == [name for name, _ in settings()]


def test_empty_variable_is_unset():
    assert resolve(env={"TP": "", "NO_LLAMA": "", "NHEADS": ""}, machine="generic").run.parallel.tensor == 1


@pytest.mark.parametrize("word", ["1", "true", "YES", "On"])
def test_switch_on(word):
    assert resolve(env={"ADD_BIAS": word}, machine="generic").run.model.bias is True


@pytest.mark.parametrize("word", ["0", "False", "no", "OFF"])
def test_switch_off(word):
    assert resolve(env={"EVAL_AT_START": word}, machine="generic").run.train.eval_at_start is False


@pytest.mark.parametrize(
    ("text", "value"),
    [("2_000", 2000), ("1e9", 10**9), ("1.5E3", 1500), (" 7 ", 7), ("4.67378015971e12", 4673780159710)],
)
def test_integers(text, value):
    assert resolve(env={"TRAIN_TOKENS": text}, machine="generic").run.train.train_tokens == value


def test_choices_ignore_case():
    run = resolve(env={"DTYPE": "BF16", "LAUNCH_WITH": "MPICH"}, machine="generic").run
    assert (run.train.dtype, run.launch.launch_with) == ("bf16", "mpich")


@pytest.mark.parametrize(
    ("alias", "name", "value"),
    [
        ("NHEADS", "model.num_heads", "8"),
        ("NUM_LAYERS", "model.num_layers", "8"),
        ("SEQ_LEN", "model.seq_length", "8"),
        ("OPTIM", "optim.optimizer", "adamw"),
        ("TRAIN_ITER", "train.train_iters", "8"),
        ("LR_WARMUP_FRACTION", "optim.lr_warmup_frac", "0.2"),
        ("SAVE", "checkpoint.dir", "there"),
    ],
)
def test_aliases(alias, name, value):
    resolved = resolve(env={alias: value}, machine="generic")
    assert str(value_of(resolved.run, name)) == value
    assert str(resolved.origins[name]) == f"env {alias}"


@pytest.mark.parametrize(("word", "value"), [("1", "on"), ("Yes", "on"), ("on", "on"), ("0", "off"), ("auto", "auto")])
def test_a_choice_between_on_and_off_is_a_switch_too(word, value):
    assert resolve(env={"TENSORBOARD": word}, machine="generic").run.track.tensorboard == value


def test_two_names_with_one_value_agree():
    assert resolve(env={"HEADS": "16", "NHEADS": "1_6"}, machine="generic").run.model.num_heads == 16


def test_negative_switches():
    on = resolve(env={"NO_LLAMA": "1", "NO_FLASH_ATTN": "yes"}, machine="generic")
    assert (on.run.model.family, on.run.model.attention) == ("gpt", "sdpa")
    assert str(on.origins["model.family"]) == "env NO_LLAMA"
    off = resolve(env={"NO_LLAMA": "0", "NO_FLASH_ATTN": "off", "ATTENTION": "flash"}, machine="generic")
    assert (off.run.model.family, off.run.model.attention) == ("llama", "flash")
    same = resolve(env={"NO_FLASH_ATTN": "1", "ATTENTION": "sdpa"}, machine="generic")
    assert same.run.model.attention == "sdpa"


def test_model_arch_and_preset_may_agree_by_alias():
    resolved = resolve("AuroraGPT-7B", env={"MODEL_ARCH": "7B"}, machine="generic")
    assert resolved.run.preset == "7B"
    assert resolve(env={"MODEL_ARCH": "llama-3.2-7b"}, machine="generic").run.preset == "7B"


def test_higher_layer_wins_between_linked_values():
    resolved = resolve("gpt3-175B", env={"GRAD_ACC_STEPS": "2", "TRAIN_ITERS": "10"}, machine="generic")
    train = resolved.run.train
    assert (train.global_batch, train.grad_acc_steps) == (0, 2)
    assert (train.train_samples, train.train_iters, train.train_tokens) == (0, 10, 0)
    assert (
        "GLOBAL_BATCH=1536 (preset gpt3-175B) is overridden by GRAD_ACC_STEPS=2 (env GRAD_ACC_STEPS)" in resolved.notes
    )


def test_warmup_fraction_replaces_a_lower_number_of_steps():
    resolved = resolve("codeparrot-110M", env={"LR_WARMUP_FRAC": "0.1"}, machine="generic")
    assert resolved.run.optim.lr_warmup_iters == 0
    assert any(note.startswith("LR_WARMUP_ITERS=2000 (preset codeparrot-110M)") for note in resolved.notes)


def test_nothing_given_is_the_default_token_budget():
    assert resolve("7B", env={}, machine="generic").run.train.train_tokens == 4_673_780_159_710


def test_machine_says_how_to_get_the_full_width():
    (note,) = resolve("7B", env={}, machine="cpu").notes
    assert "HIDDEN=128 (not 4096)" in note
    assert "MACHINE=generic" in note
    assert resolve("7B", env={}, machine="generic").notes == ()


def test_tiny_keeps_its_width_on_a_cpu():
    resolved = resolve("tiny", env={}, machine="cpu")
    assert resolved.run.model.hidden_size == 64
    assert resolved.notes == ()


def test_machine_name_comes_from_the_caller_or_set():
    assert resolve(env={"MACHINE": "cpu"}, machine="cpu").origins["machine"] == Origin("env", "MACHINE")
    chosen = resolve(env={}, overrides={"machine": "generic"}, machine="cpu")
    assert chosen.run.machine == "generic"
    assert chosen.run.model.hidden_size == 4096


def _another(name: str, current: Any) -> str:
    """Return text of a valid value of the setting that differs from ``current``."""
    field = fields()[name]
    kind = field.annotation
    if get_args(kind):
        others = [str(choice) for choice in get_args(kind) if choice != current]
        return others[0] if others else str(current)
    if kind is bool:
        return "0" if current else "1"
    if kind is str:
        return "7B" if name == "preset" and current != "7B" else "elsewhere"
    for candidate in ("6144", "0.5", "7", "0.25"):
        try:
            if parse(candidate, field) != current:
                return candidate
        except ValueError:
            continue
    raise AssertionError(f"no other value of {name}")


@pytest.mark.parametrize("preset", sorted(presets()))
@pytest.mark.parametrize("machine", ["cpu", "generic"])
def test_every_setting_overrides_every_preset(preset, machine):
    base = resolve(preset, env={}, machine=machine).run
    names = [name for name, _ in settings() if name not in ("preset", "machine", "config_file")]
    texts = {name: _another(name, value_of(base, name)) for name in names}
    from_env = resolve(preset, env={names_of(name)[0]: text for name, text in texts.items()}, machine=machine)
    from_cli = resolve(preset, env={names_of(name)[0]: "" for name in names}, overrides=texts, machine=machine)
    for name, text in texts.items():
        assert value_of(from_env.run, name) == value_of(from_cli.run, name) == parse(text, fields()[name]), name
        assert from_env.origins[name] == Origin("env", names_of(name)[0])
        assert from_cli.origins[name] == Origin("cli", f"--set {name}")


def test_every_variable_works_alone():
    base = resolve("gpt3-175B", env={}, machine="cpu").run
    for name, field in settings():
        if name in ("preset", "machine", "config_file"):
            continue
        text = _another(name, value_of(base, name))
        for variable in names_of(name):
            resolved = resolve("gpt3-175B", env={variable: text}, machine="cpu")
            assert value_of(resolved.run, name) == parse(text, field), variable
            assert resolved.origins[name] == Origin("env", variable)


def test_duplicate_key_in_yaml_is_refused(tmp_path):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "mine.yaml").write_text("settings:\n  parallel.tensor: 2\n  parallel.tensor: 4\n")
    with pytest.raises(ConfigError, match=r"machine mine.yaml:3: .*'parallel.tensor' is given twice"):
        resolve(env={}, machine="mine", root=tmp_path)


# Every option of an older toolkit, and the settings that say the same.
FLAGS = [
    ("--optimizer muon", "optim.optimizer=muon"),
    ("--sgd-momentum 0.8", "optim.sgd_momentum=0.8"),
    ("--data-path a", "data.path=a"),
    ("--split 9,1,0", "data.split=9,1,0"),
    ("--train-data-path a", "data.path=a data.split=100,0,0"),
    ("--valid-data-path a", "data.valid_path=a"),
    ("--test-data-path a", "data.test_path=a"),
    ("--blend-sample-in-corpus", "data.blend_in_corpus=true"),
    ("--shuffle-sample-in-corpus", "data.shuffle_in_corpus=true"),
    ("--tokenizer-type NullTokenizer", "data.tokenizer_type=NullTokenizer"),
    ("--tokenizer-model a", "data.tokenizer_model=a"),
    ("--tokenizer-name-or-path a", "data.tokenizer_model=a"),
    ("--vocab-file a", "data.vocab_file=a"),
    ("--vocab a", "data.vocab_file=a"),
    ("--merge-file a", "data.merge_file=a"),
    ("--vocab-extra-ids 100", "data.vocab_extra_ids=100"),
    ("--eod-mask-loss", "data.eod_mask_loss=true"),
    ("--reset-position-ids", "data.reset_position_ids=true"),
    ("--reset-attention-mask", "data.reset_attention_mask=true"),
    ("--num-workers 3", "data.num_workers=3"),
    ("--rampup-batch-size 1,1,100", "train.rampup_batch_size=1,1,100"),
    ("--skip-train-iteration-range 1-2", "train.skip_iterations=1-2"),
    ("--tensor-model-parallel-size 2", "parallel.tensor=2"),
    ("--pipeline-model-parallel-size 2", "parallel.pipeline=2"),
    ("--ds-sequence-parallel-size 2", "parallel.sequence=2"),
    ("--zero-stage 3", "parallel.zero_stage=3"),
    ("--use-distributed-optimizer", "parallel.zero_stage=1"),
    ("--sequence-parallel", "parallel.scatter_norms=true"),
    ("--DDP-impl torch", "parallel.ddp_impl=torch"),
    ("--recompute-activations", "recompute.granularity=selective"),
    ("--recompute-granularity full", "recompute.granularity=full"),
    ("--recompute-method block", "recompute.method=block"),
    ("--recompute-num-layers 2", "recompute.num_layers=2"),
    ("--checkpoint-num-layers 2", "recompute.num_layers=2"),
    ("--checkpoint-activations", "recompute.granularity=full recompute.method=uniform"),
    ("--deepspeed-activation-checkpointing", "recompute.engine=deepspeed"),
    ("--distribute-saved-activations", "recompute.engine=deepspeed recompute.partition_activations=true"),
    ("--partition-activations", "recompute.partition_activations=true"),
    ("--contigious-checkpointing", "recompute.contiguous_memory=true"),
    ("--checkpoint-in-cpu", "recompute.cpu_checkpointing=true"),
    ("--synchronize-each-layer", "recompute.synchronize=true"),
    ("--profile-backward", "recompute.profile=true"),
    ("--cpu-optimizer", "deepspeed.offload_optimizer=cpu"),
    ("--lr 0.5", "optim.lr=0.5"),
    ("--min-lr 0.5", "optim.min_lr=0.5"),
    ("--lr-decay-style WSD", "optim.lr_decay_style=wsd"),
    ("--lr_constant_plus_cooldown", "optim.lr_decay_style=wsd"),
    ("--lr-warmup-init 0.5", "optim.lr_warmup_init=0.5"),
    ("--lr-warmup-fraction 0.5", "optim.lr_warmup_frac=0.5"),
    ("--lr-warmup-iters 7", "optim.lr_warmup_iters=7"),
    ("--lr-warmup-samples 7", "optim.lr_warmup_samples=7"),
    ("--lr-warmup-tokens 7", "optim.lr_warmup_tokens=7"),
    ("--lr-decay-iters 7", "optim.lr_decay_iters=7"),
    ("--lr-decay-samples 7", "optim.lr_decay_samples=7"),
    ("--lr-decay-tokens 7", "optim.lr_decay_tokens=7"),
    ("--lr_constant_plus_cooldown_frac 0.5", "optim.lr_cooldown_frac=0.5"),
    ("--lr-cooldown-fraction 0.5", "optim.lr_cooldown_frac=0.5"),
    ("--lr-wsd-decay-iters 7", "optim.lr_cooldown_iters=7"),
    ("--lr-wsd-decay-samples 7", "optim.lr_cooldown_samples=7"),
    ("--lr-wsd-decay-style minus_sqrt", "optim.lr_cooldown_style=sqrt"),
    ("--constant-lr 0.5", "optim.lr_constant=0.5"),
    ("--lr-constant-fraction 0.5", "optim.lr_constant_frac=0.5"),
    ("--weight-decay 0.5", "optim.weight_decay=0.5"),
    ("--weight-decay-incr-style linear", "optim.weight_decay_incr_style=linear"),
    ("--start-weight-decay 0.5", "optim.start_weight_decay=0.5"),
    ("--end-weight-decay 0.5", "optim.end_weight_decay=0.5"),
    ("--lr-finder", "lr_finder.enabled=true"),
    ("--save a", "checkpoint.dir=a"),
    ("--save-interval 7", "checkpoint.save_interval=7"),
    ("--async-save", "checkpoint.in_background=true"),
    ("--load a", "checkpoint.load=a"),
    ("--ckpt-step 50", "checkpoint.step=50"),
    ("--finetune", "checkpoint.finetune=true"),
    ("--use-checkpoint-args", "checkpoint.use_args=true"),
    ("--no-load-optim", "checkpoint.load_optim=false"),
    ("--no-load-rng", "checkpoint.load_rng=false"),
    ("--no-save-optim", "checkpoint.save_optim=false"),
    ("--no-save-rng", "checkpoint.save_rng=false"),
    ("--override-opt_param-scheduler", "checkpoint.schedule=override"),
    ("--override-lr-scheduler", "checkpoint.schedule=override"),
    ("--use-checkpoint-opt_param-scheduler", "checkpoint.schedule=keep"),
    ("--use-checkpoint-lr-scheduler", "checkpoint.schedule=keep"),
    ("--log-interval 5", "log.log_interval=5"),
    ("--adam-beta1 0.5", "optim.adam_beta1=0.5"),
    ("--adam-beta2 0.5", "optim.adam_beta2=0.5"),
    ("--adam-eps 1e-7", "optim.adam_eps=1e-7"),
    ("--clip-grad 0.5", "optim.clip_grad=0.5"),
    ("--loss-scale 16", "optim.loss_scale=16"),
    ("--loss-scale-window 16", "optim.loss_scale_window=16"),
    ("--hysteresis 3", "optim.loss_scale_hysteresis=3"),
    ("--min-loss-scale 2.0", "optim.min_loss_scale=2"),
    ("--train-samples 500", "train.train_samples=500"),
    ("--train-iters 50", "train.train_iters=50"),
    ("--fp16", "train.dtype=fp16"),
    ("--bf16", "train.dtype=bf16"),
    ("--eval-interval 50", "train.eval_interval=50"),
    ("--eval-iters 5", "train.eval_iters=5"),
    ("--train-range-to-skip 5-7", "train.skip_iterations=5-7"),
    ("--seed 5", "train.seed=5"),
    ("--wandb-id abc", "track.wandb_id=abc"),
    ("--log-params-norm", "log.params_norm=true"),
    ("--log-num-zeros-in-grad", "log.num_zeros=true"),
    ("--tensorboard-dir a", "track.tensorboard_dir=a"),
    ("--tensorboard-queue-size 5", "track.tensorboard_queue_size=5"),
    ("--tensorboard-log-interval 5", "track.tensorboard_log_interval=5"),
    ("--log-timers-to-tensorboard", "track.log_timers=true"),
    ("--log-batch-size-to-tensorboard", "track.log_batch_size=true"),
    ("--log-validation-ppl-to-tensorboard", "track.log_validation_ppl=true"),
    ("--log-memory-to-tensorboard", "track.log_memory=true"),
    ("--log-world-size-to-tensorboard", "track.log_world_size=true"),
    ("--no-log-learnig-rate-to-tensorboard", "track.log_learning_rate=false"),
    ("--no-log-learning-rate-to-tensorboard", "track.log_learning_rate=false"),
    ("--no-log-loss-scale-to-tensorboard", "track.log_loss_scale=false"),
    ("--wandb-project a", "track.wandb_project=a"),
    ("--wandb-entity a", "track.wandb_entity=a"),
    ("--wandb-exp-name a", "track.wandb_name=a"),
    ("--codecarbon-dir a", "track.energy=true track.codecarbon_dir=a"),
    ("--skip-train", "train.evaluate_only=true"),
    ("--exit-interval 5", "train.exit_interval=5"),
    ("--on-spike rollback", "stability.on_spike=rollback"),
    ("--on-nan stop", "stability.on_nan=stop"),
    ("--deterministic-mode", "stability.deterministic=true"),
    ("--exit-duration-in-mins 5", "train.exit_duration_min=5"),
    ("--walltime 6:00:00", "launch.walltime=6:00:00"),
    ("--max-restarts 3", "launch.max_restarts=3"),
    ("--profile", "profile.steps=on"),
    ("--profile-step-start 2", "profile.step_start=2"),
    ("--profile-step-end 5", "profile.step_end=5"),
    ("--profile-ranks 1", "profile.ranks=1"),
    ("--flops-profile", "profile.flops=true"),
    ("--megatron-defaults", "defaults=megatron"),
    ("--optimizer adam", "optim.optimizer=adamw"),
    ("--num-layers 6", "model.num_layers=6"),
    ("--encoder-num-layers 6", "model.num_layers=6"),
    ("--hidden-size 512", "model.hidden_size=512"),
    ("--num-attention-heads 8", "model.num_heads=8"),
    ("--num-key-value-heads 4", "model.num_kv_heads=4"),
    ("--group-query-attention", "model.num_kv_heads=1"),
    ("--group-query-attention; --num-query-groups 4", "model.num_kv_heads=4"),
    ("--kv-channels 32", "model.head_dim=32"),
    ("--ffn-hidden-size 96", "model.ffn_hidden_size=96"),
    ("--seq-length 256", "model.seq_length=256"),
    ("--encoder-seq-length 256", "model.seq_length=256"),
    ("--max-position-embeddings 8192", "model.max_positions=8192"),
    ("--tokenizer-type NullTokenizer; --vocab-size 786", "data.tokenizer_type=NullTokenizer model.vocab_size=787"),
    ("--pad-vocab-size-to 250880", "model.vocab_size=250880"),
    ("--make-vocab-size-divisible-by 64", "model.vocab_multiple=64"),
    ("--normalization LayerNorm", "model.normalization=layernorm"),
    ("--norm-epsilon 1e-6", "model.norm_epsilon=1e-6"),
    ("--layernorm-epsilon 1e-6", "model.norm_epsilon=1e-6"),
    ("--swiglu", "model.activation=swiglu"),
    ("--openai-gelu", "model.activation=gelu_tanh"),
    ("--no-bias-gelu-fusion", "model.activation=gelu"),
    ("--no-bias-gelu-fusion; --swiglu", "model.activation=swiglu"),
    ("--position-embedding-type learned_absolute", "model.position_embedding=learned"),
    ("--position-embedding-type rotary", "model.position_embedding=rope"),
    ("--use-rotary-position-embeddings", "model.position_embedding=rope"),
    ("--rotary-base 500000", "model.rope_theta=500000"),
    ("--rotary-position-embeddings-theta 500000", "model.rope_theta=500000"),
    ("--rotary-seq-len-interpolation-factor 4", "model.rope_scaling=linear model.rope_scaling_factor=4"),
    ("--disable-bias-linear", "model.bias=false"),
    ("--untie-embeddings-and-output-weights", "model.tied_embeddings=false"),
    ("--hidden-dropout 0.2", "model.hidden_dropout=0.2"),
    ("--attention-dropout 0.2", "model.attention_dropout=0.2"),
    ("--init-method-std 0.006", "model.init_std=0.006"),
    ("--pp-partition-method type:transformer|embedding", "parallel.pipeline_split=ends"),
    ("--overlap-grad-reduce", "parallel.ddp_impl=torch"),
    ("--micro-batch-size 4", "train.micro_batch=4"),
    ("--global-batch-size 8", "train.global_batch=8"),
    ("--train-tokens 5000000", "train.train_tokens=5000000"),
    ("--distributed-timeout-minutes 30", "launch.timeout_s=1800"),
    ("--data-file-list a", "data.file_list=a"),
    ("--data-cache-path a", "data.cache_dir=a"),
    ("--log-level critical", "log.log_level=error"),
    ("--initial-loss-scale 4294967296", "optim.initial_loss_scale_power=32"),
    ("--remote-device cpu", "deepspeed.offload_params=cpu"),
    ("--use-pin-memory", "deepspeed.offload_pin_memory=true"),
    ("--accumulate-allreduce-grads-in-fp32", "deepspeed.grad_accum_dtype=fp32"),
    ("--zero-contigious-gradients", "deepspeed.contiguous_gradients=true"),
    ("--zero-reduce-scatter", "deepspeed.reduce_scatter=true"),
    (
        "--distribute-checkpointed-activations",
        "recompute.engine=deepspeed recompute.partition_activations=true",
    ),
    ("--profile_steps 2,3", "profile.steps=2,3"),
]


@pytest.mark.parametrize(("option", "same"), FLAGS)
def test_an_option_is_its_settings(option, same):
    given = [tuple(each.partition(" ")[::2]) for each in option.split("; ")]
    by_flag = resolve("33B", env={}, flags=given, machine="generic")
    overrides = dict(pair.split("=") for pair in same.split())
    by_set = resolve("33B", env={}, overrides=overrides, machine="generic")
    assert by_flag.run == by_set.run
    assert {str(by_flag.origins[name]) for name in overrides} <= {f"cli {flag}" for flag, _ in given}
    # The words agree with one another, and win over the environment.
    both = resolve("33B", env={"ZERO_STAGE": "0", "TP": "3"}, flags=given, overrides=overrides, machine="cpu")
    assert all(value_of(both.run, name) == value_of(by_set.run, name) for name in overrides)


def test_every_option_is_tested():
    tested = {each.split()[0] for option, _ in FLAGS for each in option.split("; ")}
    # --config reads a file: tests/config/sources/test_config_file.py.
    assert tested == set(flags()) - {*DEEPSPEED_FLAGS, "--config"}


@pytest.mark.parametrize(
    ("given", "overrides", "told"),
    [
        (
            [("--fp16", ""), ("--bf16", "")],
            {},
            "--fp16 and --bf16 give train.dtype two values, fp16 and bf16",
        ),
        ([("--sequence-parallel", "")], {"parallel.scatter_norms": "no"}, "--sequence-parallel and --set parallel.sc"),
        ([("--zero-stage", "2"), ("--use-distributed-optimizer", "")], {}, "two values, 2 and 1; drop one of them"),
        ([("--recompute-activations", ""), ("--checkpoint-activations", "")], {}, "selective and full; drop one"),
        ([("--DDP-impl", "apex")], {}, "--DDP-impl: 'apex' is not one of local, torch"),
        ([("--tensor-model-parallel-size", "0")], {}, "--tensor-model-parallel-size: 0 must be greater than 0"),
    ],
)
def test_options_that_differ_are_refused(given, overrides, told):
    with pytest.raises(ConfigError) as caught:
        resolve(env={}, flags=given, overrides=overrides, machine="generic")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("switch", "name", "value"),
    [
        ("USE_DISTRIBUTED_OPTIMIZER", "parallel.zero_stage", 1),
        ("RECOMPUTE_ACTIVATIONS", "recompute.granularity", "selective"),
        ("USE_ACTIVATION_CHECKPOINTING", "recompute.granularity", "full"),
        ("CHECKPOINT_ACTIVATIONS", "recompute.granularity", "full"),
        ("DEEPSPEED_ACTIVATION_CHECKPOINTING", "recompute.engine", "deepspeed"),
        ("DISTRIBUTE_SAVED_ACTIVATIONS", "recompute.engine", "deepspeed"),
        ("DISTRIBUTE_SAVED_ACTIVATIONS", "recompute.partition_activations", True),
        ("CPU_OPTIMIZER", "deepspeed.offload_optimizer", "cpu"),
        ("NO_LOAD_OPTIM", "checkpoint.load_optim", False),
        ("NO_LOAD_RNG", "checkpoint.load_rng", False),
        ("NO_SAVE_OPTIM", "checkpoint.save_optim", False),
        ("NO_SAVE_RNG", "checkpoint.save_rng", False),
        ("OVERRIDE_CKPT_OPT_PARAM", "checkpoint.schedule", "override"),
        ("NO_TENSORBOARD", "track.tensorboard", "off"),
        ("WANDB_DISABLED", "track.wandb_mode", "disabled"),
    ],
)
def test_switches_of_other_toolkits(switch, name, value):
    on, off = (resolve(env={switch: word}, machine="generic") for word in ("yes", "off"))
    assert (value_of(on.run, name), str(on.origins[name])) == (value, f"env {switch}")
    assert str(off.origins[name]) == "default"


@pytest.mark.parametrize(
    ("env", "overrides", "machine", "split", "told"),
    [
        ({"SPLIT": "98,2,0"}, {}, "cpu", "98,2,0", ""),
        (
            {"TRAIN_SPLIT": "5"},
            {"data.split": "98,2,0"},
            "cpu",
            "98,2,0",
            "TRAIN_SPLIT=5.0 (env TRAIN_SPLIT) is overridden by SPLIT=98,2,0 (cli --set data.split)",
        ),
        (
            {"SPLIT": "98,2,0"},
            {"data.val_split": "5"},
            "generic",
            "",
            "SPLIT=98,2,0 (env SPLIT) is overridden by VAL_SPLIT=5.0 (cli --set data.val_split)",
        ),
    ],
)
def test_of_the_two_ways_to_split_the_higher_layer_wins(env, overrides, machine, split, told):
    resolved = resolve(env=env, overrides=overrides, machine=machine)
    assert resolved.run.data.split == split
    assert [note for note in resolved.notes if "SPLIT" in note] == ([told] if told else [])


@pytest.mark.parametrize("mode", ["", "online", "offline", "disabled"])
def test_wandb_disabled_overrides_its_mode(mode):
    found = resolve(env={"WANDB_DISABLED": "1", "WANDB_MODE": mode}, machine="generic")
    assert found.run.track.wandb_mode == "disabled"
    assert str(found.origins["track.wandb_mode"]) == "env WANDB_DISABLED"
