"""Options of other toolkits: each one is a setting, harmless or rejected, and means what it means there."""

import json
import shlex

import pytest

from megads.config.deepspeed.dictionary import SETTING_OF, deepspeed_config
from megads.config.deepspeed.overrides import adopt
from megads.config.derive import derive
from megads.config.rules.advice import shown
from megads.config.run_folder import save_config
from megads.config.schedule.rates import Schedule
from megads.config.setting import Origin
from megads.config.sources.flags import BACKEND, flags, read_flags, split_flags, takes_of
from megads.config.sources.other_options import HARMLESS, NEEDS, OPTIONS, REJECTED
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from tests.config.option_names import NAMES

MODEL = (
    *("--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32"),
    *("--micro-batch-size", "2", "--lr", "1e-4"),
)
SWITCH_AND_VALUE = {"--profile": "", "--num-experts": "values", "--profile_steps": "values"}
"""What follows an option that toolkits disagree on, or that takes more words here."""


def resolved(*words, preset=None, env=None, machine="generic"):
    pairs, rest = split_flags(words, {})
    assert not rest
    return resolve(preset, env=env or {}, flags=pairs, machine=machine)


@pytest.mark.parametrize("toolkits", NAMES)
def test_every_option_of_the_toolkits_is_a_setting_harmless_or_rejected(toolkits):
    for word in NAMES[toolkits].split():
        name = word.rstrip(":")
        assert (name in flags()) + (name in HARMLESS) + (name in REJECTED) + (name == "--no-position-embedding") == 1, (
            name
        )
        takes = {0: "", 1: "value", 2: "values"}[len(word) - len(name)]
        assert takes_of(name) == SWITCH_AND_VALUE.get(name, takes), name


def test_all_three_lists_are_there():
    counts = {letter: sum(len(text.split()) for key, text in NAMES.items() if letter in key) for letter in "MDB"}
    assert counts == {"M": 302, "D": 316, "B": 184}


@pytest.mark.parametrize("name", REJECTED)
def test_a_rejected_option_says_what_would_work(name):
    with pytest.raises(ConfigError) as caught:
        read_flags([(name, "7")])
    message = str(caught.value)
    assert message.startswith(f"{name} 7 is not supported: ")
    assert "\n" not in message
    for value in REJECTED[name].so_here:
        assert read_flags([(name, value)]).notes == ()


def test_harmless_options_are_reported_in_one_line_each_reason():
    read = read_flags([("--no-masked-softmax-fusion", ""), ("--deepspeed", ""), ("--no-rope-fusion", "")])
    assert read.given == {}
    assert read.notes == (
        "--no-masked-softmax-fusion and --no-rope-fusion have no effect: kernels are torch's and are chosen by torch",
        "--deepspeed has no effect: the engine is always DeepSpeed's",
    )
    silent = [name for name in HARMLESS if not read_flags([(name, "1")]).notes]
    assert silent == [BACKEND]


@pytest.mark.parametrize("name", NEEDS)
def test_an_option_that_is_nothing_alone_names_the_other(name):
    with pytest.raises(ConfigError) as caught:
        read_flags([(name, "7")])
    assert any(other in str(caught.value) for other in NEEDS[name].options)


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


DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2,
    "train_batch_size": 8,
    "gradient_clipping": 0.5,
    "zero_optimization": {"stage": 2, "overlap_comm": True, "offload_optimizer": {"device": "cpu"}},
    "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 500, "initial_scale_power": 12},
    "bf16": {"enabled": False},
    "activation_checkpointing": {"partition_activations": True, "number_checkpoints": 4},
    "flops_profiler": {"enabled": True, "profile_step": 3, "top_modules": 3},
    "optimizer": {"type": "Adam", "params": {"lr": "auto", "betas": [0.8, 0.9], "eps": 1e-7, "weight_decay": 0.2}},
    "steps_per_print": 2000,
    "prescale_gradient": False,
}


def test_a_file_of_deepspeed_gives_settings_their_values(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    words = ["--deepspeed", "--deepspeed_config", str(tmp_path / "ds.json"), "--train-iters", "5"]
    found = resolved(*MODEL, *words, "--zero-stage", "2", "--clip-grad", "0.5")
    run, optim = found.run, found.run.optim
    assert (run.train.micro_batch, run.train.global_batch, run.train.dtype) == (2, 8, "fp16")
    assert (run.parallel.zero_stage, run.parallel.ddp_impl, optim.clip_grad) == (2, "torch", 0.5)
    assert (optim.initial_loss_scale_power, optim.loss_scale_window, optim.loss_scale) == (12, 500, 0)
    assert (optim.optimizer, optim.lr, optim.adam_beta1, optim.adam_beta2) == ("adamw", 1e-4, 0.8, 0.9)
    assert (optim.adam_eps, optim.weight_decay) == (1e-7, 0.2)
    assert (run.recompute.engine, run.recompute.partition_activations) == ("deepspeed", True)
    assert (run.profile.flops, run.profile.flops_step) == (True, 3)
    rest = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}, "steps_per_print": 2000}
    assert json.loads(run.deepspeed.config_overrides) == rest
    path = tmp_path / "ds.json"
    assert str(found.origins["train.global_batch"]) == f"cli --deepspeed_config {path} train_batch_size"
    assert (
        f"--deepspeed_config {path}: DeepSpeed has no key 'prescale_gradient'; did you mean prescale_gradients?; "
        "it is ignored"
    ) in found.notes


@pytest.mark.parametrize(
    ("content", "words", "told"),
    [
        ({"zero_optimization": {"stage": 3}}, "--zero-stage 1", "--zero-stage and --deepspeed_config {} zero_optimiza"),
        ({"gradient_clipping": 0.5}, "--clip-grad 1.0", "give optim.clip_grad two values, 1.0 and 0.5; drop one of"),
        ({"fp16": {"enabled": False}}, "--fp16", "--fp16 and --deepspeed_config {} fp16.enabled=false contradict"),
        ({"bf16": {"enabled": True}}, "--fp16", "give train.dtype two values, fp16 and bf16; drop one of them"),
        ({"train_batch_size": "many"}, "", "--deepspeed_config {} train_batch_size: 'many' is not an int"),
        ({"optimizer": {"type": "Adagrad"}}, "", "--deepspeed_config {} optimizer.type: 'Adagrad' is not one of adam,"),
        ([1], "", "--deepspeed_config {}: holds '[1]', not an object; use {{...}}"),
    ],
)
def test_a_file_of_deepspeed_may_not_contradict_options(content, words, told, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        resolved(*MODEL, "--train-iters", "5", "--deepspeed_config", str(path), *words.split())
    assert told.format(path) in str(caught.value)


def test_a_file_of_deepspeed_that_is_not_there_is_one_line():
    with pytest.raises(ConfigError, match=r"--deepspeed_config nowhere\.json: No such file or directory"):
        resolved(*MODEL, "--deepspeed_config", "nowhere.json")
    with pytest.raises(ConfigError, match="is not the name of a file; DS_CONFIG_OVERRIDES takes JSON itself"):
        read_flags([("--deepspeed_config", '{"a": 1}')])


@pytest.mark.parametrize(
    ("option", "change", "advice"),
    [
        ("--optimizer", {"optim.optimizer": "sgd"}, "OPT=sgd and drop --optimizer"),
        (
            "--initial-loss-scale",
            {"optim.initial_loss_scale_power": 8},
            "INITIAL_LOSS_SCALE_POWER=8 and drop --init",
        ),
        ("--no-bias-gelu-fusion", {"model.activation": "gelu_tanh"}, "ACTIVATION=gelu_tanh and drop --no-bias-gelu-fu"),
        ("--seq-length", {"model.seq_length": 64}, "--seq-length=64"),
    ],
)
def test_advice_is_in_the_units_of_what_it_names(option, change, advice):
    origins = dict.fromkeys(change, Origin("cli", option))
    assert shown(change, origins).startswith(advice)


@pytest.mark.parametrize(("decoupled", "optimizer"), [(True, "adamw"), (False, "adam")])
def test_adam_of_deepspeed_is_adamw_unless_it_says_no(decoupled, optimizer, tmp_path):
    content = {"optimizer": {"type": "Adam", "params": {"adam_w_mode": decoupled}}}
    (tmp_path / "ds.json").write_text(json.dumps(content))
    found = resolved(*MODEL, "--train-iters", "5", "--deepspeed_config", str(tmp_path / "ds.json"))
    assert found.run.optim.optimizer == optimizer


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            MODEL[:2],
            "--hidden-size, --num-attention-heads, --seq-length, --micro-batch-size, --lr and --train-iters",
        ),
        (MODEL, "--train-iters is missing: Megatron-LM has no default for it; pass it, or name a --preset"),
    ],
)
def test_what_megatron_demands_is_demanded(words, told):
    with pytest.raises(ConfigError) as caught:
        resolved(*words)
    assert str(caught.value).startswith(told)
    given = {"HIDDEN": "64", "HEADS": "4", "SEQ": "32", "MICRO_BATCH": "2", "LR": "1", "TRAIN_TOKENS": "640"}
    assert resolved(*words, env=given).run.defaults == "megatron"


ALCF = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "steps_per_print": 1,
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
    "wall_clock_breakdown": False,
    "communication_data_type": "fp16",
    "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1},
    "bfloat16": {"enabled": False, "loss_scale": 1.0},
    "zero_optimization": {
        "stage": 3,
        "reduce_scatter": False,
        "stage3_max_live_parameters": 3e9,
        "stage3_prefetch_bucket_size": 5e7,
        "overlap_comm": True,
        "offload_optimizer": {"device": "none", "buffer_count": 4, "pipeline_read": False, "pin_memory": True},
    },
    "comms_logger": {"enabled": False, "verbose": False, "debug": False},
    "flops_profiler": {"enabled": True, "profile_step": 2, "module_depth": -1, "detailed": True, "output_file": None},
}


def test_alcfs_file_is_taken_whole(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(ALCF))
    words = ["--no-pipeline-parallel", "--deepspeed", f"--deepspeed_config={tmp_path / 'ds.json'}", "--zero-stage=3"]
    found = resolved(*MODEL, *words, "--train-iters", "5")
    run = adopt(derive(found, num_hosts=1, ranks_per_host=1, vocab_size=500), SETTING_OF).run
    assert (run.train.dtype, run.parallel.zero_stage, run.train.grad_acc_steps) == ("fp16", 3, 4)
    assert (run.deepspeed.reduce_scatter, run.deepspeed.max_live_parameters) == (False, 3_000_000_000)
    assert (run.deepspeed.communication_data_type, run.profile.flops) == ("fp16", True)
    assert run.deepspeed.config_overrides == ""
    made = deepspeed_config(run, 1)
    assert made["zero_optimization"]["stage3_prefetch_bucket_size"] == 50_000_000


def test_no_option_is_two_things():
    assert not set(HARMLESS) & set(REJECTED)
    assert not set(OPTIONS) & set(flags())


BUDGET = ("--num-layers", "2", *MODEL[2:], "--global-batch-size", "8", "--train-samples", "800")


@pytest.mark.parametrize(
    ("words", "steps", "decay", "first"),
    [
        ((*BUDGET, "--train-tokens", str(10 * 8 * 32)), 10, 100, "TRAIN_TOKENS=2560 (cli --train-tokens, 10 steps)"),
        ((*BUDGET, "--train-tokens", "1e9"), 100, 100, "TRAIN_SAMPLES=800 (cli --train-samples, 100 steps)"),
        ((*BUDGET[:-2], "--train-iters", "30", "--train-tokens", "2560"), 10, 30, "TRAIN_TOKENS=2560"),
        ((*BUDGET, "--train-tokens", "2560", "--lr-decay-samples", "160"), 10, 20, "TRAIN_TOKENS=2560"),
    ],
)
def test_tokens_are_a_second_limit(tmp_path, words, steps, decay, first):
    found = derive(resolved(*words), num_hosts=1, ranks_per_host=1, vocab_size=500)
    assert (found.run.train.train_iters, found.run.optim.lr_decay_iters) == (steps, decay)
    assert Schedule.of(found.run).decay_samples == 8 * decay
    notes = [note for note in found.notes if "ends the run before" in note]
    assert len(notes) == 1
    assert notes[0].startswith(first)
    # The run's own file says the same.
    save_config(found.run, found.origins, tmp_path / "config.yaml")
    again = resolve(env={"CONFIG_FILE": str(tmp_path / "config.yaml")}, machine="generic")
    again = derive(again, num_hosts=1, ranks_per_host=1, vocab_size=500)
    assert again.run.train == found.run.train
    assert again.run.optim == found.run.optim


def test_other_lengths_that_differ_are_refused():
    for words in ((*BUDGET, "--train-iters", "30"), (*BUDGET, "--train-iters", "30", "--train-tokens", "2560")):
        with pytest.raises(ConfigError, match="set only one of them"):
            derive(resolved(*words), num_hosts=1, ranks_per_host=1, vocab_size=500)
    both = resolved(*BUDGET[:-2], env={"TRAIN_TOKENS": "2560", "TRAIN_SAMPLES": "800"})
    with pytest.raises(ConfigError, match="set only one of them"):
        derive(both, num_hosts=1, ranks_per_host=1, vocab_size=500)


def test_alcfs_own_options_are_known():
    words = ["--adjust-word-embedding-init", "--word-embedding-init-std", "0.63", "--multiprocessing-context", "fork"]
    pairs, rest = split_flags(words, {})
    assert rest == []
    notes = read_flags(pairs).notes
    assert len(notes) == 2
    assert "--word-embedding-init-std have no effect: the model that Megatron-DeepSpeed trains" in notes[0]
