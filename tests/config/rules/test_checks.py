"""Every wrong setting is one line: the value, where it came from, and what would work."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.config.derive import derive
from megads.config.sources.presets import read_preset
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from tests.config.advice import check

# (environment, words of the message); on one host of 4 ranks, with a tokenizer of 1000 tokens and the tiny model.
ENVIRONMENT = [
    # values
    ({"TP": "two"}, ["env TP: 'two' is not an int"]),
    ({"TP": "0"}, ["env TP: 0 must be greater than 0"]),
    ({"TP": "1.5"}, ["env TP: '1.5' is not an int"]),
    ({"TP": "2__0"}, ["env TP: '2__0' is not an int"]),
    ({"NHEADS": "-4"}, ["env NHEADS: -4 must be greater than 0"]),
    ({"TRAIN_TOKENS": "1.5e0"}, ["env TRAIN_TOKENS: '1.5e0' is not an int"]),
    ({"TRAIN_TOKENS": "1e99"}, ["env TRAIN_TOKENS: '1e99' is too large"]),
    ({"SEED": "4294967296"}, ["env SEED: 4294967296 must be less than 4294967296"]),
    ({"LR": "fast"}, ["env LR: 'fast' is not a number"]),
    ({"LR": "nan"}, ["env LR: 'nan' is not a finite number"]),
    ({"LR": "inf"}, ["env LR: 'inf' is not a finite number"]),
    ({"LR": "-1e-4"}, ["env LR: -0.0001 must be at least 0"]),
    ({"ADAM_BETA1": "1"}, ["env ADAM_BETA1: 1.0 must be less than 1"]),
    ({"DTYPE": "bf61"}, ["env DTYPE: 'bf61' is not one of fp32, bf16, fp16; did you mean bf16?"]),
    ({"DTYPE": "x"}, ["env DTYPE: 'x' is not one of fp32, bf16, fp16"]),
    ({"ZERO_STAGE": "5"}, ["env ZERO_STAGE: '5' is not one of 0, 1, 2, 3"]),
    ({"ADD_BIAS": "maybe"}, ["env ADD_BIAS: 'maybe' is not a switch", "1/true/yes/on or 0/false/no/off"]),
    ({"NO_FLASH_ATTN": "2"}, ["env NO_FLASH_ATTN: '2' is not a switch"]),
    ({"MODEL_FAMILY": "bert", "SEQ": "4"}, ["SEQ=4 leaves no text between the special tokens", "SEQ=8 or more"]),
    ({"MODEL_FAMILY": "t5", "EOD_MASK_LOSS": "1"}, ["EOD_MASK_LOSS=1 is for samples of whole documents, and MODEL_"]),
    ({"DECODER_SEQ": "64"}, ["DECODER_LAYERS=0 and DECODER_SEQ=64 are for t5, and MODEL_FAMILY="]),
    # names
    ({"HEADS": "8", "NHEADS": "4"}, ["env HEADS=8 and NHEADS=4", "model.num_heads", "unset one"]),
    ({"OPT": "muonclip"}, ["env OPT: 'muonclip' is not one of adamw, adam,", "; did you mean muon?"]),
    ({"ATTENTION": "flash", "NO_FLASH_ATTN": "1"}, ["ATTENTION=flash and NO_FLASH_ATTN=1 contradict", "unset one"]),
    ({"MODEL_FAMILY": "llama", "NO_LLAMA": "on"}, ["MODEL_FAMILY=llama and NO_LLAMA=on contradict"]),
    ({"CPU_OPTIMIZER": "1", "OFFLOAD_OPTIMIZER": "none"}, ["OFFLOAD_OPTIMIZER=none and CPU_OPTIMIZER=1 contradict"]),
    (
        {"USE_DISTRIBUTED_OPTIMIZER": "1", "ZERO_STAGE": "0"},
        ["ZERO_STAGE=0 and USE_DISTRIBUTED_OPTIMIZER=1 contradict"],
    ),
    ({"MODEL_ARCH": "7B"}, ["--preset tiny and MODEL_ARCH=7B name different presets; unset MODEL_ARCH"]),
    ({"MODEL_ARCH": "8B"}, ["no preset '8B'; known presets: 2B, 33B, 70B, 7B"]),
    # degrees
    ({"TP": "3"}, ["4 ranks cannot be split into TP=3 x PP=1 x SP=1 (= 3); use TP=4 or TP=2"]),
    ({"DP": "3"}, ["DP=3, but 4 ranks", "= 4; use DP=4 or NGPU_PER_HOST=3"]),
    ({"LAUNCH_WITH": "direct"}, ["LAUNCH_WITH=direct starts one rank, not 4", "LAUNCH_WITH=auto"]),
    # shapes
    ({"HIDDEN": "65"}, ["HIDDEN=65 is not a multiple of HEADS=4; use HIDDEN=64, HIDDEN=72 or HEAD_DIM=16"]),
    ({"NUM_KV_HEAD": "3"}, ["HEADS=4", "NUM_KV_HEAD=3", "use NUM_KV_HEAD=2 or NUM_KV_HEAD=4"]),
    ({"HEADS": "6", "HIDDEN": "96", "TP": "4"}, ["HEADS=6 cannot be split over TP=4 ranks; use TP=2 or TP=1"]),
    ({"NUM_KV_HEAD": "2", "TP": "4"}, ["NUM_KV_HEAD=2 cannot be split over TP=4 ranks", "use TP=2, TP=1 or"]),
    ({"FFN_HIDDEN_SIZE": "130", "TP": "4"}, ["FFN_HIDDEN_SIZE=130 cannot be split over TP=4", "use TP=2, TP=1 or"]),
    ({"VOCAB_MULTIPLE": "1", "VOCAB_SIZE": "1001", "TP": "2"}, ["vocabulary of 1001", "use VOCAB_MULTIPLE=2"]),
    ({"HIDDEN": "60"}, ["HEAD_DIM=15 is odd", "POSITION_EMBEDDING=learned"]),
    ({"NO_LLAMA": "1", "MAX_POSITIONS": "32"}, ["SEQ=64", "MAX_POSITIONS=32", "use MAX_POSITIONS=64"]),
    ({"VOCAB_SIZE": "999"}, ["VOCAB_SIZE=999 is smaller than the tokenizer's 1000", "use VOCAB_SIZE=1000 or more"]),
    # batches and lengths
    (
        {"GLOBAL_BATCH": "32", "GRAD_ACC_STEPS": "3"},
        ["GLOBAL_BATCH=32 (env GLOBAL_BATCH)", "4 x 3 x 4 = 48", "use GLOBAL_BATCH=48", "leave one of"],
    ),
    (
        {"GLOBAL_BATCH": "10", "MICRO_BATCH": "4"},
        ["GLOBAL_BATCH=10 (env GLOBAL_BATCH)", "4 x 4 = 16", "use GLOBAL_BATCH=16"],
    ),
    (
        {"GLOBAL_BATCH": "6"},
        ["GLOBAL_BATCH=6 (env GLOBAL_BATCH)", "not a multiple", "use GLOBAL_BATCH=4, GLOBAL_BATCH=8 or"],
    ),
    (
        {"TRAIN_ITERS": "5", "TRAIN_SAMPLES": "80"},
        ["TRAIN_SAMPLES=80 (env TRAIN_SAMPLES) is 10 steps", "TRAIN_ITERS=5 (env TRAIN_ITERS) is 5", "only one"],
    ),
    (
        {"TRAIN_TOKENS": "100"},
        [
            "TRAIN_TOKENS=100 (env TRAIN_TOKENS) is less than one batch of 512 tokens",
            "use TRAIN_TOKENS=512 or set TRAIN_ITERS",
        ],
    ),
    ({"TRAIN_SAMPLES": "7"}, ["TRAIN_SAMPLES=7 (env TRAIN_SAMPLES) is less than one batch of 8 samples"]),
    ({"TRAIN_ITERS": "0", "EVAL_ITERS": "0"}, ["TRAIN_ITERS=0) evaluates only, and EVAL_ITERS=0", "use EVAL_ITERS=20"]),
    (
        {"GLOBAL_BATCH": "32", "MICRO_BATCH": "4", "RAMPUP_BATCH_SIZE": "8 8 100"},
        [
            "'8 8 100': the batch size 8 of the ramp is not a multiple of MICRO_BATCH x DP = 4 x 4 = 16; use "
            "MICRO_BATCH=2,"
        ],
    ),
    (
        {"GLOBAL_BATCH": "32", "MICRO_BATCH": "2", "RAMPUP_BATCH_SIZE": "8 12 100"},
        ["the batch size 20 of the ramp is not a multiple of", "use MICRO_BATCH=1 or RAMPUP_BATCH_SIZE=8,8,100"],
    ),
    ({"GLOBAL_BATCH": "32", "RAMPUP_BATCH_SIZE": "64 8 100"}, ["START=64 must be", "at most GLOBAL_BATCH=32"]),
    ({"GLOBAL_BATCH": "32", "RAMPUP_BATCH_SIZE": "16"}, ["RAMPUP_BATCH_SIZE='16' is not START INCREMENT SAMPLES"]),
    (
        {"GLOBAL_BATCH": "32", "RAMPUP_BATCH_SIZE": "16 16 64", "TRAIN_SAMPLES": "15"},
        ["TRAIN_SAMPLES=15 (env TRAIN_SAMPLES) is less than one batch of 16 samples", "less in the ramp"],
    ),
    ({"SKIP_TRAIN_ITERATION_RANGE": "5"}, ["SKIP_TRAIN_ITERATION_RANGE='5': '5' is not FIRST-LAST"]),
    (
        {"SKIP_TRAIN_ITERATION_RANGE": "1-50", "TRAIN_ITERS": "50"},
        ["skips all of TRAIN_ITERS=50 iterations", "leave some to train on"],
    ),
    # schedule and precision
    ({"LR": "1e-5", "MIN_LR": "1e-4"}, ["MIN_LR=0.0001 is larger than LR=1e-05", "use MIN_LR=1e-06"]),
    ({"LR_WARMUP_ITERS": "50"}, ["LR_WARMUP_ITERS=50 takes all of the decay of 50 steps", "use LR_WARMUP_ITERS=5"]),
    (
        {"LR_WARMUP_ITERS": "5", "LR_WARMUP_FRAC": "0.2"},
        ["LR_WARMUP_ITERS=5 (env LR_WARMUP_ITERS) = 40 samples and LR_WARMUP_FRAC=0.2", "= 80 samples differ; leave"],
    ),
    (
        {"LR_DECAY_ITERS": "5", "LR_DECAY_SAMPLES": "41"},
        ["LR_DECAY_SAMPLES=41 (env LR_DECAY_SAMPLES) = 41 samples and LR_DECAY_ITERS=5", "= 40 samples differ; leave"],
    ),
    ({"LR_WARMUP_SAMPLES": "400"}, ["LR_WARMUP_SAMPLES=400 takes all of the decay of 400 samples; use LR_WARMUP_SAM"]),
    ({"LR_WARMUP_INIT": "0.1"}, ["LR_WARMUP_INIT=0.1 is larger than LR=", "use LR_WARMUP_INIT=0 or LR=0.1"]),
    (
        {"COOLDOWN": "0.2"},
        ["COOLDOWN=0.2 has no effect with LR_DECAY_STYLE=cosine; use LR_DECAY_STYLE=wsd or COOLDOWN=0"],
    ),
    (
        {"COOLDOWN": "0.6", "LR_DECAY_STYLE": "wsd", "LR_WARMUP_FRAC": "0.5"},
        ["LR_WARMUP_FRAC=0.5 = 200 and COOLDOWN=0.6 = 240 samples are more than the decay's 400; use COOLDOWN=0.1"],
    ),
    (
        {"LR_DECAY_STYLE": "infinite-cosine", "MIN_LR": "0"},
        ["LR_DECAY_STYLE=infinite-cosine ends with an exponential decay, which never reaches MIN_LR=0; use MIN_LR="],
    ),
    (
        {"LR_DECAY_STYLE": "infinite-inv-square-root", "LR_CONSTANT": "0.6", "MIN_LR": "1e-5"},
        ["LR_CONSTANT=0.6 is not between MIN_LR=", "use LR_CONSTANT="],
    ),
    ({"LR_CONSTANT": "1e-3"}, ["LR_CONSTANT=0.001 has no effect with LR_DECAY_STYLE=cosine; use "]),
    (
        {"START_WEIGHT_DECAY": "0"},
        ["START_WEIGHT_DECAY=0 has no effect with WEIGHT_DECAY_INCR_STYLE=constant; use WEI"],
    ),
    ({"END_WEIGHT_DECAY": "-0.5"}, ["END_WEIGHT_DECAY=-0.5 is negative; use END_WEIGHT_DECAY=-1"]),
    (
        {"LR_FINDER": "1", "LR_FINDER_MIN": "2"},
        ["LR_FINDER_MIN=2 is not below LR_FINDER_MAX=1; use LR_FINDER_MIN=1e-06"],
    ),
    ({"LR_FINDER": "1", "LR_FINDER_ITERS": "51"}, ["LR_FINDER_ITERS=51 must be from 2 to TRAIN_ITERS=50, whose samp"]),
    ({"ATTENTION": "flash"}, ["ATTENTION=flash has no DTYPE=fp32", "use DTYPE=bf16 or ATTENTION=sdpa"]),
    ({"LOSS_SCALE": "128"}, ["LOSS_SCALE=128 is for DTYPE=fp16, not fp32"]),
    (
        {"DTYPE": "fp16", "INITIAL_LOSS_SCALE_POWER": "2", "MIN_LOSS_SCALE": "8"},
        ["INITIAL_LOSS_SCALE_POWER=2 starts at 4, below MIN_LOSS_SCALE=8"],
    ),
    # data
    ({"TRAIN_SPLIT": "0", "VAL_SPLIT": "0"}, ["TRAIN_SPLIT=0, VAL_SPLIT=0, TEST_SPLIT=0: all shares are 0"]),
    ({"TRAIN_SPLIT": "0"}, ["TRAIN_SPLIT=0, VAL_SPLIT=10", "leaves nothing to train on", "TRAIN_SPLIT=990"]),
    ({"SPLIT": "0,9,1"}, ["SPLIT=0,9,1 leaves nothing to train on; use SPLIT=990,10,0"]),
    (
        {"SPLIT": "9,0,1", "EVAL_ITERS": "2"},
        ["SPLIT=9,0,1 leaves nothing to validate on (EVAL_ITERS=2); use SPLIT=990,10,0 or EVAL_"],
    ),
    ({"SPLIT": "a,b"}, ["SPLIT=a,b: expected the shares of train, valid and test, e.g. 969,30,1"]),
    ({"VAL_SPLIT": "-1"}, ["env VAL_SPLIT: -1.0 must be at least 0"]),
    (
        {"VAL_SPLIT": "0", "EVAL_ITERS": "2"},
        ["VAL_SPLIT=0 leaves nothing to validate on (EVAL_ITERS=2)", "or EVAL_ITERS=0"],
    ),
    ({"TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "2000"}, ["NullTokenizer cannot read the demo corpus"]),
    (
        {"TOKENIZER_TYPE": "BertWordPieceCase", "RESET_POSITION_IDS": "1", "EOD_MASK_LOSS": "1"},
        ["EOD_MASK_LOSS=1 RESET_POSITION_IDS=1", "BertWordPieceCase has no end-of-document token"],
    ),
    ({"TOKENIZER_TYPE": "GPT9BPETokenizer"}, ["env TOKENIZER_TYPE: 'GPT9BPETokenizer' is not one of HFTokenizer"]),
    ({"RUN_NAME": "a/b"}, ["RUN_NAME='a/b' is not one folder's name", "set RUN_DIR"]),
    ({"RUN_NAME": ".."}, ["RUN_NAME='..' is not one folder's name"]),
    ({"RUN_DIR": "a\nb"}, ["RUN_DIR='a\\nb' is not a path"]),
]

OVERRIDES = [
    ({"parallel.tensor": "two"}, ["--set parallel.tensor: 'two' is not an int"]),
    ({"parallel.tensr": "2"}, ["--set parallel.tensr=2: no setting named", "did you mean parallel.tensor?"]),
    ({"TP": "2"}, ["--set TP=2: no setting named 'TP'; did you mean parallel.tensor?"]),
    ({"num_layers": "2"}, ["no setting named 'num_layers'; did you mean model.num_layers?"]),
    ({"xyzzy": "2"}, ["no setting named 'xyzzy'; `megads config` lists them"]),
    ({"model.num_layers": ""}, ["--set model.num_layers: '' is not an int"]),
    ({"machine": "cray"}, ["no machine 'cray'; known machines: ", "cpu, ", "generic"]),
    ({"preset": "2B"}, ["--preset tiny and --set preset=2B name different presets; drop --set preset"]),
]

FILES = [
    ("settings:\n  model.num_layers: 0\n", "X.yaml: model.num_layers: 0 must be greater than 0"),
    ("settings:\n  model.num_layers: two\n", "X.yaml: model.num_layers: 'two' is not an int"),
    ("settings:\n  model.num_layers: true\n", "X.yaml: model.num_layers: True is not an int"),
    ("settings:\n  model.num_layers: 1.5\n", "X.yaml: model.num_layers: 1.5 is not an int"),
    ("settings:\n  model.bias: 2\n", "X.yaml: model.bias: 2 is not a switch"),
    ("settings:\n  optim.lr: .nan\n", "X.yaml: optim.lr: nan is not a finite number"),
    ("settings:\n  optim.lr: [1]\n", "X.yaml: optim.lr: [1] is not a number"),
    ("settings:\n  data.file_list: 7\n", "X.yaml: data.file_list: 7 is not text; put it in quotes"),
    ("settings:\n  train.dtype: bf61\n", "X.yaml: train.dtype: 'bf61' is not one of fp32, bf16, fp16; did you mean"),
    ("settings:\n  model.layers: 2\n", "X.yaml: no setting named 'model.layers'; did you mean model."),
    ("settings:\n  NLAYERS: 2\n", "X.yaml: no setting named 'NLAYERS'"),
    ("settings:\n  preset: 7B\n", "X.yaml: preset cannot be set in this file"),
    ("settings: [1]\n", "X.yaml: settings must be 'key: value' lines, not [1]"),
    ("setting: {}\n", "X.yaml: 'setting' is not one of "),
    ("settings: {\n", "X.yaml:2: is not valid YAML"),
    ("- 1\n", "X.yaml: must hold 'key: value' lines"),
    ("1: 2\n", "X.yaml:1: is not valid YAML: key 1 is not text"),
]


def _prepare(preset: str | None, env: dict[str, str], overrides: dict[str, str] | None) -> None:
    resolved = resolve(preset, env=env, overrides=overrides, machine="generic")
    check(derive(resolved, num_hosts=1, ranks_per_host=4, vocab_size=1000).run, 4)


def _refused(preset: str | None, env: dict[str, str], overrides: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        _prepare(preset, env, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("env", "words"), ENVIRONMENT, ids=lambda value: str(value)[:60])
def test_environment(env, words):
    message = _refused("tiny", env)
    for word in words:
        assert word in message


@pytest.mark.parametrize(("overrides", "words"), OVERRIDES, ids=lambda value: str(value)[:60])
def test_overrides(overrides, words):
    message = _refused("tiny", {}, overrides)
    for word in words:
        assert word in message


@pytest.mark.parametrize(("text", "words"), FILES, ids=lambda value: str(value)[:60])
def test_preset_files(text, words, tmp_path):
    (tmp_path / "X.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_preset("X", tmp_path)
    assert f"preset {words}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "words"), FILES, ids=lambda value: str(value)[:60])
def test_machine_files(text, words, tmp_path):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "X.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve(env={}, machine="X", root=tmp_path)
    assert f"machine {words}" in str(caught.value)


def test_unknown_machine_names_the_folder():
    with pytest.raises(ConfigError, match=r"no machine 'cpuu'; known machines: .*; did you mean cpu\?"):
        resolve(env={}, machine="cpuu")
    with pytest.raises(ConfigError, match="no machine 'cpu'; known machines: none"):
        resolve(env={}, machine="cpu", root=Path("absent"))


def test_null_tokenizer_needs_a_vocabulary():
    resolved = resolve("tiny", env={"TOKENIZER_TYPE": "NullTokenizer"}, machine="generic")
    with pytest.raises(ConfigError, match="TOKENIZER_TYPE=NullTokenizer needs VOCAB_SIZE"):
        derive(resolved, num_hosts=1, ranks_per_host=1, vocab_size=0)


def test_a_large_layout_of_a_preset_says_what_to_do():
    resolved = resolve("gpt3-175B", env={}, machine="generic")
    with pytest.raises(ConfigError, match=r"100 ranks cannot be split into TP=8 x PP=16 x SP=1 \(= 128\)"):
        derive(resolved, num_hosts=25, ranks_per_host=4, vocab_size=1000)
    alone = resolve("gpt3-175B", env={"PP": "1"}, machine="generic")
    derived = derive(alone, num_hosts=10, ranks_per_host=4, vocab_size=1000)
    assert any(note.startswith("GLOBAL_BATCH=1536 (preset gpt3-175B) becomes 1535: ") for note in derived.notes)
