"""Options of other toolkits on the command line."""

import shlex

import pytest

from megads.config.deepspeed.json_file import FLAGS as DEEPSPEED_FLAGS
from megads.config.sources.flags import flags, split_flags
from megads.config.sources.resolve import resolve
from megads.config.tree import value_of
from megads.errors import ConfigError

MODEL = (
    *("--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32"),
    *("--micro-batch-size", "2", "--lr", "1e-4"),
)


def resolved(*words, preset=None, env=None, machine="generic"):
    pairs, rest = split_flags(words, {})
    assert not rest
    return resolve(preset, env=env or {}, flags=pairs, machine=machine)


@pytest.mark.parametrize(
    ("words", "pairs", "rest"),
    [
        ("--data-path 0.3 a 0.7 b --fp16", [("--data-path", "0.3 a 0.7 b"), ("--fp16", "")], []),
        ("--data-path 0.3 'a x' 0.7 b", [("--data-path", '0.3 "a x" 0.7 b')], []),
        ("--data-path '0.3 a 0.7 b'", [("--data-path", "0.3 a 0.7 b")], []),
        ("--lr=1e-4 -h --min-lr -1", [("--lr", "1e-4"), ("--min-lr", "-1")], ["-h"]),
        ("--profile pt --profile_steps 2,3", [("--profile", ""), ("--profile_steps", "2,3")], []),
        ("--profile --fp16 x", [("--profile", ""), ("--fp16", "")], ["x"]),
        ("--set --lr --lr 1", [("--lr", "1")], ["--set", "--lr"]),
        ("--lr 1 -- --lr 2", [("--lr", "1")], ["--", "--lr", "2"]),
        ("--spec a b --finetune", [("--spec", "a b"), ("--finetune", "")], []),
    ],
)
def test_a_command_line_is_split_as_argparse_splits_it(words, pairs, rest):
    assert split_flags(shlex.split(words), {"--set": True}) == (pairs, rest)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--lr", "--lr needs a value"),
        ("--zero-stage", "--zero-stage needs a value: 0, 1, 2 or 3"),
        ("--lr --fp16", "--lr needs a value, and the next word is '--fp16'"),
        ("--fp16=1", "--fp16 takes no value, not '1'"),
    ],
)
def test_an_option_without_its_value_is_refused(words, told):
    with pytest.raises(ConfigError) as caught:
        split_flags(words.split(), {})
    assert str(caught.value) == told


def test_an_option_that_is_given_twice_means_the_last_as_in_argparse():
    run = resolved(*MODEL, "--train-iters", "5", "--lr", "3e-4")
    assert run.run.optim.lr == 3e-4
    assert "--lr 1e-4 is overridden by --lr 3e-4" in run.notes


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--initial-loss-scale 1000", "--initial-loss-scale: '1000' is not a power of two; use 4294967296 (2**32) or"),
        ("--initial-loss-scale inf", "--initial-loss-scale: 'inf' is not a number"),
        ("--distributed-timeout-minutes soon", "--distributed-timeout-minutes: 'soon' is not a number"),
        ("--tokenizer-type NullTokenizer --vocab-size many", "--vocab-size: 'many' is not an int"),
        ("--position-embedding-type alibi", "--position-embedding-type: 'alibi' is not one of rope, learned"),
        (
            "--tokenizer-type HFTokenizer --vocab-size 7",
            "--vocab-size is of --tokenizer-type NullTokenizer, as in Megatron-LM; VOCAB_SIZE sets",
        ),
    ],
)
def test_a_wrong_word_is_one_line(words, told):
    with pytest.raises(ConfigError) as caught:
        resolved(*words.split(), preset="33B")
    assert str(caught.value).startswith(told)


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
    ("--tp-comm-overlap", "parallel.tp_overlap=4"),
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
    ("--pretrained-checkpoint a", "checkpoint.load=a checkpoint.finetune=true"),
    ("--task MNLI", "finetune.task=MNLI"),
    ("--train-data a", "finetune.train_data=a"),
    ("--valid-data a", "finetune.valid_data=a"),
    ("--test-data a", "finetune.test_data=a"),
    ("--class-names a", "finetune.classes=a"),
    ("--epochs 5", "finetune.epochs=5"),
    ("--keep-last", "finetune.keep_last=true"),
    ("--chat-template chatml", "finetune.chat_template=chatml"),
    ("--pack-chats", "finetune.packs=true"),
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
    ("--overlapping-eval 16", "tasks.stride=16"),
    ("--strict-lambada", "tasks.strict_lambada=true"),
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
    ("--container llm.sif", "launch.container=llm.sif"),
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
    ("--model-family bert", "model.family=bert"),
    ("--model-type T5", "model.family=t5"),
    ("--bert-no-binary-head", "model.family=bert model.binary_head=0"),
    ("--bert-no-binary-head; --model-type GPT", "model.family=gpt model.binary_head=0"),
    ("--decoder-seq-length 64", "model.family=t5 model.decoder_seq_length=64"),
    ("--decoder-num-layers 2", "model.decoder_layers=2"),
    ("--mask-prob 0.2; --short-seq-prob 0", "data.mask_prob=0.2 data.short_seq_prob=0"),
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
    ("--pipeline-model-parallel-split-rank 2", "parallel.pipeline_split=rank:2"),
    ("--enable-zbh1-pipeline", "parallel.pipeline_schedule=zb-h1"),
    ("--enable-zbh1-exact-semantics", "parallel.pipeline_schedule=zb-h1"),
    ("--num-virtual-stages-per-pipeline-rank 2", "parallel.virtual_stages=2"),
    ("--num-layers-per-virtual-pipeline-stage 4", "parallel.layers_per_virtual_stage=4"),
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
    ("--relative-attention-num-buckets 16", "model.relative_buckets=16"),
    ("--relative-attention-max-distance 64", "model.relative_distance=64"),
    ("--lora-rank 8", "model.lora_rank=8"),
    ("--lora-alpha 4", "model.lora_alpha=4"),
    ("--lora-dropout 0.1", "model.lora_dropout=0.1"),
    ("--lora-targets q,v", "model.lora_targets=q,v"),
    ("--lora-target-modules q_proj", "model.lora_targets=q_proj"),
    ("--retro-add-retriever", "model.family=retro"),
    ("--retro-encoder-layers 3", "model.retro_encoder_layers=3"),
    ("--retro-encoder-hidden-dropout 0.2", "model.retro_encoder_hidden_dropout=0.2"),
    ("--retro-encoder-attention-dropout 0", "model.retro_encoder_attention_dropout=0"),
    ("--retro-num-neighbors 5", "model.retro_num_neighbors=5"),
    ("--retro-num-retrieved-chunks 1", "model.retro_retrieved_chunks=1"),
    ("--retro-project-dir P", "data.retro_project_dir=P"),
    ("--retro-workdir P", "data.retro_project_dir=P"),
    ("--retro-cyclic-train-iters 9", "data.retro_cyclic_train_iters=9"),
    ("--retro-no-verify-neighbor-count", "data.retro_verify_neighbor_count=False"),
    ("--retro-attention-gate 0.5", "model.retro_attention_gate=0.5"),
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
