"""The file of --deepspeed_config, as settings."""

import json

import pytest

from megads.config.deepspeed.dictionary import deepspeed_config
from megads.config.derive import derive
from megads.config.sources.flags import read_flags, split_flags
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError

MODEL = (
    *("--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32"),
    *("--micro-batch-size", "2", "--lr", "1e-4"),
)


def resolved(*words, preset=None, env=None, machine="generic"):
    pairs, rest = split_flags(words, {})
    assert not rest
    return resolve(preset, env=env or {}, flags=pairs, machine=machine)


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


@pytest.mark.parametrize(("decoupled", "optimizer"), [(True, "adamw"), (False, "adam")])
def test_adam_of_deepspeed_is_adamw_unless_it_says_no(decoupled, optimizer, tmp_path):
    content = {"optimizer": {"type": "Adam", "params": {"adam_w_mode": decoupled}}}
    (tmp_path / "ds.json").write_text(json.dumps(content))
    found = resolved(*MODEL, "--train-iters", "5", "--deepspeed_config", str(tmp_path / "ds.json"))
    assert found.run.optim.optimizer == optimizer


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
    run = derive(found, num_hosts=1, ranks_per_host=1, vocab_size=500).run
    assert (run.train.dtype, run.parallel.zero_stage, run.train.grad_acc_steps) == ("fp16", 3, 4)
    assert (run.deepspeed.reduce_scatter, run.deepspeed.max_live_parameters) == (False, 3_000_000_000)
    assert (run.deepspeed.communication_data_type, run.profile.flops) == ("fp16", True)
    assert run.deepspeed.config_overrides == ""
    made = deepspeed_config(run, 1)
    assert made["zero_optimization"]["stage3_prefetch_bucket_size"] == 50_000_000
