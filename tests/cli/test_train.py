"""The command lines of the toolkits that came before, as they are written: what they mean, and that they start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megads.config.derive import derive, padded_vocab_size
from megads.config.run_folder import save_config
from megads.config.schedule.rates import Schedule
from megads.config.setting import Origin
from megads.config.sources.flags import split_flags
from megads.config.sources.resolve import resolve
from megads.config.tree import value_of
from megads.plan.memory import count_parameters
from tests.config.advice import check

ROOT = Path(__file__).parents[2]
RECORDER = '#!{}\nimport json, os, sys\njson.dump(sys.argv, open(os.environ["WORDS"], "w"))\n'
PLACES = {
    "DATA_PATH": "my-gpt2_text_document",
    "DATA_BLEND": "0.2 a 0.3 b 0.5 c",
    "VOCAB_FILE": "gpt2-vocab.json",
    "MERGE_FILE": "gpt2-merges.txt",
    "CHECKPOINT_PATH": "checkpoints/gpt2",
    "TENSORBOARD_PATH": "tensorboard",
    **{"N_GPUS": "2", "PP_SIZE": "1", "TP_SIZE": "1", "ZERO_STAGE": "1", "GPUS_PER_NODE": "8"},
    **{"MICRO_BATCH_SIZE": "1", "GLOBAL_BATCH_SIZE": "16", "SAVE_INTERVAL": "50"},
}
GPT2 = 50257


def words_of(script, folder, *more, launcher="", **env):
    """Run a script of examples/ and return the command that it runs in the end."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("megads", "torchrun", "deepspeed"):
        (programs / name).write_text(RECORDER.format(sys.executable))
        (programs / name).chmod(0o755)
    path = {"PATH": f"{programs}:{os.environ['PATH']}", "WORDS": str(folder / "words.json")}
    launchers = {} if launcher is None else {"LAUNCHER": launcher}
    command = ["bash", str(ROOT / "examples" / script), *more]
    subprocess.run(command, check=True, cwd=folder, env={**path, **PLACES, **launchers, **env})
    program, *words = json.loads((folder / "words.json").read_text())
    return [Path(program).name, *words]


def derived(words, hosts, per_host, folder, monkeypatch):
    """Return the run that `megads train` makes of a command line on a cluster."""
    monkeypatch.chdir(folder)
    assert words[:2] == ["megads", "train"]
    pairs, rest = split_flags(words[2:], {})
    assert rest == []
    found = resolve(env={}, flags=pairs, machine="polaris", num_hosts=hosts)
    found = derive(found, num_hosts=hosts, ranks_per_host=per_host, vocab_size=GPT2)
    check(found.run, hosts * per_host)
    return found


COMMON = {
    "defaults": "megatron",
    "model.family": "gpt",
    "model.normalization": "layernorm",
    "model.activation": "gelu_tanh",
    "model.position_embedding": "learned",
    "model.bias": True,
    "model.tied_embeddings": True,
    "model.hidden_dropout": 0.1,
    "model.attention_dropout": 0.1,
    "model.norm_epsilon": 1e-5,
    "train.seed": 1234,
    "train.dtype": "fp16",
    "optim.optimizer": "adamw",
    "optim.clip_grad": 1.0,
    "optim.adam_beta1": 0.9,
    "optim.adam_eps": 1e-8,
    "optim.loss_scale": 0.0,
    "data.tokenizer_type": "GPT2BPETokenizer",
    "name": "gpt2",
    "checkpoint.dir": "checkpoints/gpt2",
    "checkpoint.load": "checkpoints/gpt2",
}
MEDIUM = {
    **{"model.num_layers": 24, "model.hidden_size": 1024, "model.num_heads": 16, "model.head_dim": 64},
    **{"model.ffn_hidden_size": 4096, "model.seq_length": 1024, "model.max_positions": 1024, "model.init_std": 0.02},
    **{"optim.weight_decay": 0.01, "optim.adam_beta2": 0.999, "optim.initial_loss_scale_power": 32},
    **{"train.train_iters": 500_000, "data.split": "949,50,1", "train.eval_interval": 1000, "train.eval_iters": 10},
}
MASKED = {
    **{"model.activation": "gelu_tanh", "data.tokenizer_type": "BertWordPieceLowerCase", "optim.min_lr": 1e-5},
    **{"optim.lr_decay_style": "linear", "optim.lr_warmup_frac": 0.01, "optim.lr": 1e-4, "data.mask_prob": 0.15},
    **{"data.short_seq_prob": 0.1, "model.seq_length": 512, "model.max_positions": 512, "data.split": "949,50,1"},
    **{"optim.weight_decay": 0.01, "optim.adam_beta2": 0.999, "train.eval_interval": 1000, "train.eval_iters": 10},
}
BERT = {
    **MASKED,
    **{"model.family": "bert", "model.token_types": 2, "model.binary_head": True, "optim.lr_decay_iters": 990_000},
    **{"model.num_layers": 24, "model.hidden_size": 1024, "model.num_heads": 16, "model.ffn_hidden_size": 4096},
}
T5 = {
    **MASKED,
    **{"model.family": "t5", "model.decoder_seq_length": 128, "model.decoder_layers": 12, "data.vocab_extra_ids": 100},
    **{"model.num_layers": 12, "model.hidden_size": 768, "model.num_heads": 12, "model.ffn_hidden_size": 3072},
    **{"model.head_dim": 64, "train.train_iters": 1_000_000, "optim.lr_decay_iters": 1_000_000},
}
# Script, hosts, ranks on each: settings, rows of the vocabulary, parameters.
EXAMPLES = {
    ("pretrain_gpt.sh", 1, 1): (
        {**MEDIUM, "train.micro_batch": 4, "train.grad_acc_steps": 2, "log.log_interval": 100},
        50304,
        354_871_296,
    ),
    ("pretrain_gpt_distributed.sh", 1, 8): (
        {**MEDIUM, "train.micro_batch": 8, "train.global_batch": 64, "parallel.ddp_impl": "torch"},
        50304,
        354_871_296,
    ),
    ("pretrain_gpt_distributed_with_mp.sh", 1, 8): (
        {
            **MEDIUM,
            **{"parallel.tensor": 2, "parallel.pipeline": 2, "parallel.data": 2, "parallel.scatter_norms": True},
            **{"train.micro_batch": 4, "train.global_batch": 16, "train.grad_acc_steps": 2},
        },
        50432,
        355_002_368,
    ),
    ("pretrain_gpt3_175B.sh", 128, 8): (
        {
            **{"parallel.tensor": 8, "parallel.pipeline": 16, "parallel.data": 8, "parallel.scatter_norms": True},
            **{"model.num_layers": 96, "model.hidden_size": 12288, "model.num_heads": 96, "model.init_std": 0.006},
            **{"train.global_batch": 1536, "train.rampup_batch_size": "16 16 5859375", "optim.adam_beta2": 0.95},
            **{"optim.weight_decay": 0.1, "data.path": "0.2 a 0.3 b 0.5 c", "recompute.granularity": "selective"},
        },
        51200,
        # 12 L h^2 (1 + 13 / 12h) + (V + s) h + 2h, the 174.6 billion of the paper
        174_615_846_912,
    ),
    ("pretrain_gpt_single_node.sh", 1, 2): (
        {
            **{"model.num_layers": 2, "model.hidden_size": 64, "train.train_samples": 100, "parallel.zero_stage": 1},
            **{"optim.lr_decay_style": "linear", "optim.initial_loss_scale_power": 12, "optim.loss_scale_window": 500},
            **{"data.train_split": 969.0, "data.val_split": 30.0, "data.test_split": 1.0, "data.split": ""},
            **{"recompute.granularity": "full", "recompute.engine": "deepspeed", "track.log_timers": True},
        },
        50304,
        None,
    ),
    ("ds_pretrain_gpt2.sh", 16, 4): (
        {"parallel.zero_stage": 2, "parallel.data": 64, "train.global_batch": 2048, "parallel.ddp_impl": "torch"},
        50304,
        1_557_686_400,
    ),
    ("ds_pretrain_gpt2_model_parallel.sh", 16, 4): (
        {"parallel.tensor": 2, "parallel.data": 32, "recompute.partition_activations": True},
        50432,
        None,
    ),
    ("pretrain_bert.sh", 1, 1): (
        {**BERT, "train.micro_batch": 4, "train.global_batch": 8, "train.train_iters": 2_000_000},
        50304,
        # (V + S + 2) h + L (12 h^2 + 13 h) + 2h, heads of tokens (h^2 + 3h + V) and sentences (h^2 + 3h + 2)
        356_502_658,
    ),
    ("pretrain_bert_distributed.sh", 1, 8): (
        {**BERT, "train.micro_batch": 4, "train.global_batch": 32, "train.train_iters": 1_000_000},
        50304,
        None,
    ),
    ("pretrain_bert_distributed_with_mp.sh", 1, 8): (
        {**BERT, "parallel.tensor": 2, "parallel.pipeline": 2, "train.micro_batch": 2, "train.global_batch": 16},
        50432,
        None,
    ),
    ("pretrain_t5.sh", 1, 1): (
        {**T5, "train.micro_batch": 16, "train.global_batch": 16},
        50304,
        # (V + S) h + L (12 h^2 + 13 h) + L (16 h^2 + 19 h) + 4h + V
        237_555_840,
    ),
    ("pretrain_t5_distributed.sh", 1, 8): ({**T5, "train.micro_batch": 16, "train.global_batch": 128}, 50304, None),
    ("pretrain_t5_distributed_with_mp.sh", 1, 8): (
        {**T5, "parallel.tensor": 2, "train.micro_batch": 16, "train.global_batch": 128},
        50432,
        None,
    ),
    ("codeparrot.sh", 1, 8): (
        {
            **{"model.num_layers": 12, "model.hidden_size": 768, "train.micro_batch": 12, "train.global_batch": 192},
            **{"optim.lr_warmup_iters": 2000, "optim.adam_beta2": 0.999, "optim.weight_decay": 0.1},
            **{"data.train_split": 969.0, "track.tensorboard_dir": "experiments/tensorboard"},
        },
        50304,
        None,
    ),
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example[0])
def test_a_command_means_what_it_means_there(example, tmp_path, monkeypatch):
    script, hosts, per_host = example
    settings, rows, parameters = EXAMPLES[example]
    found = derived(words_of(script, tmp_path), hosts, per_host, tmp_path, monkeypatch)
    expected = {**COMMON, **settings}
    assert {name: value_of(found.run, name) for name in expected} == expected
    assert padded_vocab_size(found.run.model) == rows
    assert parameters is None or count_parameters(found.run.model) == parameters
    # Nothing is the machine's: the command means the same everywhere.
    assert {origin.layer for origin in found.origins.values()} <= {
        *("default", "megatron", "family", "cli", "derived", "env"),
    }


def test_the_rates_of_a_command_are_those_of_megatron(tmp_path, monkeypatch):
    run = derived(words_of("pretrain_gpt.sh", tmp_path), 1, 1, tmp_path, monkeypatch).run
    # Warm-up over .01 of the decay's 320,000 steps of 8 samples, cosine to min-lr, which stays.
    rates = [Schedule.of(run).lr(8 * step) for step in (0, 1600, 3200, 161_600, 320_000, 400_000)]
    assert rates == pytest.approx([0, 7.5e-5, 1.5e-4, 8e-5, 1e-5, 1e-5])
    words = words_of("pretrain_gpt_single_node.sh", tmp_path)
    run = derived(words, 1, 2, tmp_path, monkeypatch).run
    # Linear, Megatron-LM's default, from 5 samples of warm-up to 0 after all 100.
    rates = [Schedule.of(run).lr(samples) for samples in (0, 5, 52.5, 100)]
    assert rates == pytest.approx([0, 1e-4, 5e-5, 0])
    run = derived(words_of("pretrain_gpt3_175B.sh", tmp_path), 128, 8, tmp_path, monkeypatch).run
    rates = [Schedule.of(run).lr(samples) for samples in (0, 183_105, 126_953_125, 146_484_375)]
    assert rates == pytest.approx([0, 6e-5, 6e-6, 6e-6])


LLAMA = (
    *("--num-layers", "2", "--hidden-size", "768", "--num-attention-heads", "12", "--seq-length", "64"),
    *("--max-position-embeddings", "1024", "--micro-batch-size", "1", "--train-iters", "10", "--lr", "1e-3"),
    *("--swiglu", "--normalization", "RMSNorm", "--disable-bias-linear", "--no-bias-gelu-fusion"),
    *("--untie-embeddings-and-output-weights", "--use-rotary-position-embeddings", "--no-position-embedding"),
    *("--group-query-attention", "--num-query-groups", "4", "--attention-dropout", "0", "--hidden-dropout", "0"),
)


def test_a_llama_is_described_by_options(tmp_path, monkeypatch):
    run = derived(["megads", "train", *LLAMA], 1, 1, tmp_path, monkeypatch).run
    model = run.model
    assert (model.normalization, model.activation, model.position_embedding) == ("rmsnorm", "swiglu", "rope")
    assert (model.bias, model.tied_embeddings, model.num_kv_heads, model.rope_theta) == (False, False, 4, 10000.0)
    assert model.ffn_hidden_size == int(4 * 768 * 2 / 3 / 64) * 64 == 2048
    # Nothing says fp16 or bf16, or how the rate falls.
    assert (run.train.dtype, run.optim.lr_decay_style, run.optim.min_lr, run.optim.lr_warmup_frac) == (
        *("fp32", "linear", 0.0),
        0.0,
    )
    rates = [Schedule.of(run).lr(step) for step in (0, 5, 10)]
    assert rates == pytest.approx([1e-3, 5e-4, 0])
    assert (run.train.eval_interval, run.train.eval_iters, run.log.log_interval) == (1000, 100, 100)


@pytest.mark.parametrize(
    ("save", "name"),
    [(["--save", "a/small/"], "small"), (["--save", ".."], "gpt"), ([], "gpt"), (["--save", "a b"], "a b")],
)
def test_commands_that_save_to_different_folders_are_different_runs(save, name, tmp_path, monkeypatch):
    run = derived(["megads", "train", *LLAMA, *save], 1, 1, tmp_path, monkeypatch).run
    assert run.name == name


@pytest.mark.parametrize("more", [(), ("--make-vocab-size-divisible-by", "128")])
def test_a_runs_own_file_says_whose_defaults_hold(tmp_path, more):
    pairs, _ = split_flags([*LLAMA, "--tensor-model-parallel-size", "2", *more], {})
    first = resolve(env={}, flags=pairs, machine="cpu")
    first = derive(first, num_hosts=1, ranks_per_host=2, vocab_size=500)
    save_config(first.run, first.origins, tmp_path / "config.yaml")
    again = resolve(env={"CONFIG_FILE": str(tmp_path / "config.yaml")}, flags=[("--num-layers", "3")], machine="cpu")
    again = derive(again, num_hosts=1, ranks_per_host=2, vocab_size=500)
    assert again.run.model.model_dump() == {**first.run.model.model_dump(), "num_layers": 3}
    assert (again.run.defaults, again.run.model.vocab_multiple) == ("megatron", 256)
    assert again.run.train.model_dump() == first.run.train.model_dump()
    assert again.run.optim.model_dump() == first.run.optim.model_dump()
    wider = resolve(env={"CONFIG_FILE": str(tmp_path / "config.yaml"), "TP": "4"}, machine="cpu")
    assert derive(wider, num_hosts=1, ranks_per_host=4, vocab_size=500).run.model.vocab_multiple == 512


def test_defaults_are_megatrons_for_a_command_without_a_preset():
    flags = [("--num-layers", "2")]
    with_preset = resolve("33B", env={}, flags=flags, machine="generic")
    assert (with_preset.run.defaults, with_preset.run.optim.lr_decay_style) == ("megads", "cosine")
    asked = resolve("33B", env={}, flags=[*flags, ("--megatron-defaults", "")], machine="generic")
    assert (asked.run.defaults, asked.run.optim.lr_decay_style) == ("megatron", "linear")
    assert asked.origins["optim.lr_decay_style"] == Origin("megatron", "default")
    assert asked.run.model.hidden_size == with_preset.run.model.hidden_size
    refused = resolve(env={"MEGADS_DEFAULTS": "megads"}, flags=flags, machine="generic")
    assert (refused.run.defaults, refused.run.optim.lr_decay_style) == ("megads", "cosine")
    assert resolve(env={"NLAYERS": "2"}, machine="generic").run.defaults == "megads"


@pytest.mark.parametrize(
    ("script", "start"),
    [
        (
            "pretrain_gpt_distributed.sh",
            "torchrun --nproc_per_node 8 --nnodes 1 --node_rank 0 --master_addr localhost --master_port 6000 -m "
            "megads train --num-layers 24",
        ),
        ("pretrain_gpt_single_node.sh", "deepspeed --num_gpus 2 --module megads train --tensor-model-parallel-size 1"),
        ("pretrain_gpt.sh", "megads train --num-layers 24"),
    ],
)
def test_a_script_starts_its_launcher(script, start, tmp_path):
    words = words_of(script, tmp_path, "--dry-run", launcher=None)
    assert " ".join(words).startswith(start)
    assert words[-1] == "--dry-run"


SINGLE_NODE = "pretrain_gpt_single_node.sh"
# The variable that says how many ranks a host has; for the others NGPU_PER_HOST.
RANKS_BY = {
    **{f"pretrain_{model}_distributed.sh": "GPUS_PER_NODE" for model in ("gpt", "bert", "t5")},
    **{f"pretrain_{model}_distributed_with_mp.sh": "GPUS_PER_NODE" for model in ("gpt", "bert", "t5")},
    **{"codeparrot.sh": "GPUS_PER_NODE", SINGLE_NODE: "N_GPUS"},
}
OF_ONE_SCRIPT = {"N_GPUS", "PP_SIZE", "TP_SIZE", "GPUS_PER_NODE"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with a vocabulary of bytes, and `megads` as a program."""
    folder = tmp_path_factory.mktemp("files")
    letters = [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 256 + 68)]
    words = [*map(chr, letters), "<|endoftext|>"]
    (folder / "gpt2-vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "gpt2-merges.txt").write_text("#version: 0.2\n")
    (folder / "bert-vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\n")
    (folder / "bin").mkdir()
    (folder / "bin/megads").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m megads "$@"\n')
    (folder / "bin/megads").chmod(0o755)
    return folder


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example[0])
def test_a_script_is_previewed_to_its_end(example, files):
    """On Polaris, whose 40 GB hold every one of them, the 175B model's 128 x 8 ranks too."""
    script, hosts, per_host = example
    places = {name: value for name, value in PLACES.items() if name not in OF_ONE_SCRIPT or script == SINGLE_NODE}
    if "gpt" not in script:
        places |= {"VOCAB_FILE": "bert-vocab.txt", "MERGE_FILE": ""} if script.startswith("pretrain") else {}
    env = {
        **{"PATH": f"{files / 'bin'}:{os.environ['PATH']}", "HOME": str(files), "PYTHONPATH": str(ROOT), **places},
        **{"LAUNCHER": "", "MEGADS_STRICT": "1", "MACHINE": "polaris", "NHOSTS": str(hosts)},
        **{"GPUS_PER_NODE": "", RANKS_BY.get(script, "NGPU_PER_HOST"): str(per_host)},
    }
    command = ["bash", str(ROOT / "examples" / script), "--dry-run"]
    done = subprocess.run(command, cwd=files, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"\nlayout   {per_host * hosts} rank" in done.stdout
    assert "\ndefaults Megatron-LM's; " in done.stdout
    before_drawing = done.stdout.partition("\npipeline ")[0]
    *_, memory, step = before_drawing.splitlines()
    assert memory.startswith("memory   about ")
    assert step.startswith("step     about ")
    assert not (files / "runs").exists()
    assert "is not a setting" not in done.stderr


def test_alcfs_line_is_a_dry_run(tmp_path):
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    env = {**kept, "MEGADS_PYTHON": sys.executable, "MACHINE": "cpu", "TP": "2", "NLAYERS": "10"}
    command = ["bash", str(ROOT / "examples/train_aGPT_7B.sh"), "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "TP=2 PP=1" in done.stdout
    assert "llama, 10 layers" in done.stdout


def test_every_example_is_tested():
    # Those of finetuning: tests/e2e/test_finetune.py.
    scripts = {path.name for path in (ROOT / "examples").glob("*.sh") if not path.name.startswith("finetune")}
    assert scripts == {example[0] for example in EXAMPLES} | {"train_aGPT_7B.sh"}
