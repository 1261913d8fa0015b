"""Parameters counted, memory estimated, and what would fit."""

from __future__ import annotations

import re

import pytest

from megads.config.derive import derive
from megads.config.optimizers import OPTIMIZERS
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from megads.families.decoder import padded_vocab_size
from megads.plan import memory as memory_module
from megads.plan.memory import (
    COMMUNICATOR_BYTES,
    CONTEXT_BYTES,
    CUDA_PROGRAM_BYTES,
    GIB,
    PROGRAM_BYTES,
    WORKSPACE_BYTES,
    count_parameters,
    estimate,
    parameters_of,
    program_bytes,
    stages,
)
from megads.plan.parts.activations import Stage, input_bytes, layer_bytes, saved_bytes
from megads.plan.parts.whole_parameters import ADAM_FLOATS, WORK_BYTES
from tests.config.advice import attempt_from


@pytest.fixture(autouse=True)
def _the_torch_of_a_cpu(monkeypatch):
    """Let figures be the same where another torch is installed."""
    monkeypatch.setattr(memory_module, "program_bytes", lambda: PROGRAM_BYTES)


def check_fits(run: RunConfig, world_size: int, ranks_on_host: int, available: int, host: str) -> None:
    memory_module.check_fits(run, world_size, ranks_on_host, available, host, attempt_from(run, world_size))


def _run(env: dict[str, str], ranks: int = 1, preset: str = "tiny", machine: str = "generic") -> RunConfig:
    resolved = resolve(preset, env={"TRAIN_ITERS": "10", "ENGINE": "deepspeed", **env}, machine=machine)
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=500).run


def test_parameters_by_hand():
    llama = _run({}).model  # 512 rows, hidden 64, 4 heads of 16, ffn 128, 2 layers
    layer = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert count_parameters(llama) == 2 * 512 * 64 + 2 * layer + 64
    grouped = _run({"NUM_KV_HEAD": "2"}).model
    assert count_parameters(llama) - count_parameters(grouped) == 2 * 2 * 64 * 32
    gpt = _run({"NO_LLAMA": "1"}).model  # ffn 256, 64 positions, tied
    layer = (4 * 64 * 64 + 4 * 64) + (2 * 64 * 256 + 256 + 64) + 4 * 64
    assert count_parameters(gpt) == 512 * 64 + 64 * 64 + 2 * layer + 2 * 64


@pytest.mark.parametrize(
    ("env", "weight", "gradient", "optimizer"),
    [
        ({"DTYPE": "fp32", "ZERO_STAGE": "0"}, 4, 4, 8),
        ({"DTYPE": "fp32", "ZERO_STAGE": "1"}, 4, 4, 4),
        ({"DTYPE": "bf16", "ZERO_STAGE": "0"}, 2, 4, 6),
        ({"DTYPE": "bf16", "ZERO_STAGE": "1"}, 2, 4, 6),
        ({"DTYPE": "fp16", "ZERO_STAGE": "1"}, 2, 4, 6),
    ],
)
def test_bytes_per_parameter_on_two_data_parallel_ranks(env, weight, gradient, optimizer):
    run = _run(env, ranks=2)
    count = count_parameters(run.model)
    memory = estimate(run, 2)
    assert (memory.weights, memory.gradients, memory.optimizer) == (count * weight, count * gradient, count * optimizer)
    assert memory.program == CONTEXT_BYTES + 2 * WORKSPACE_BYTES + COMMUNICATOR_BYTES
    parts = (memory.weights, memory.gradients, memory.optimizer, memory.activations, memory.logits, memory.buffers)
    assert memory.total == sum(parts) + memory.copy + memory.program
    assert memory.copy == 0


@pytest.mark.parametrize("zero", ["0", "1", "3"])
def test_what_is_saved_in_the_background_is_copied_by_those_who_share_it(zero):
    env = {"DTYPE": "fp32", "ZERO_STAGE": zero, "SAVE_IN_BACKGROUND": "1"}
    run = _run(env, ranks=2, machine="cpu")
    assert estimate(run, 2).copy == 12 * (count_parameters(run.model) // 2)
    assert estimate(_run({**env, "NO_SAVE_OPTIM": "1"}, ranks=2, machine="cpu"), 2).copy * 3 == estimate(run, 2).copy
    assert estimate(_run(env, ranks=2), 2).copy == 0  # on an accelerator, whose memory this is about


def test_a_run_that_does_not_fit_may_save_before_it_goes_on():
    run = _run({"NLAYERS": "8", "HIDDEN": "1024", "HEADS": "16", "SAVE_IN_BACKGROUND": "1"}, machine="cpu")
    memory = estimate(run, 1)
    with pytest.raises(ConfigError, match=r"copy \d.*; SAVE_IN_BACKGROUND=(0|false) or ") as told:
        check_fits(run, 1, 1, memory.total - memory.copy + 1, "laptop")
    assert "laptop has" in str(told.value)


def test_tensor_parallel_ranks_share_weights_and_logits():
    one, two = estimate(_run({}), 1), estimate(_run({"TP": "2"}, ranks=2), 2)
    assert one.logits == 2 * two.logits
    assert one.weights / 2 < two.weights < one.weights * 0.52
    assert one.activations / 2 < two.activations < one.activations


def test_activations_grow_with_the_batch_and_sequence():
    base = estimate(_run({"GLOBAL_BATCH": "0"}), 1).activations
    assert estimate(_run({"MICRO_BATCH": "8"}), 1).activations == 2 * base
    assert estimate(_run({"SEQ": "128"}), 1).activations == 2 * base


def test_what_fits_is_not_refused():
    check_fits(_run({}), 1, 1, GIB, "here")


WIDE = {"NLAYERS": "8", "HIDDEN": "2048", "HEADS": "16", "ZERO_STAGE": "0"}
LONG = {"NLAYERS": "8", "HIDDEN": "1024", "HEADS": "16", "SEQ": "1024", "MICRO_BATCH": "8", "GLOBAL_BATCH": "32"}


@pytest.mark.parametrize(
    ("env", "available", "settings"),
    [
        (WIDE, 18 * GIB, {"ZERO_STAGE", "TP", "PP", "NLAYERS"}),
        (WIDE, 20 * GIB, {"ZERO_STAGE", "TP", "PP", "NLAYERS"}),
        (LONG, 14 * GIB, {"RECOMPUTE", "SP", "MICRO_BATCH", "SEQ", "NLAYERS"}),
        (
            {**LONG, "TP": "2", "NO_LLAMA": "1", "NLAYERS": "12"},
            23 * GIB,
            {"SCATTER_NORMS", "RECOMPUTE", "MICRO_BATCH"},
        ),
    ],
)
def test_refusal_names_the_numbers_and_settings_that_do_fit(env, available, settings):
    run = _run(env, ranks=4)
    with pytest.raises(ConfigError) as caught:
        check_fits(run, 4, 4, available, "laptop")
    message = str(caught.value)
    assert message.startswith(f"laptop has {available / GIB:.2f} GiB of memory for 4 ranks that need ")
    assert re.search(r"GiB per rank: weights \d+\.\d\d, gradients .*, program 0\.\d\d;", message)
    assert message.endswith("--set train.force=true starts anyway")
    advice = dict(re.findall(r"\b([A-Z_]+)=(\w+)", message.split("; ")[2]))
    assert set(advice) >= settings
    for name, value in advice.items():
        check_fits(_run({**env, name: value}, ranks=4), 4, 4, available, "laptop")


def test_hopeless_hosts_get_a_smaller_preset():
    with pytest.raises(ConfigError, match="use a smaller preset such as tiny"):
        check_fits(_run({}), 1, 1, 1000, "calculator")


def test_force_starts_anyway():
    check_fits(_run({"FORCE": "1"}), 1, 1, 1000, "calculator")


# Per parameter: what rank and data-parallel ranks share, of 4 ranks (arXiv 1910.02054).
SHARES = [
    ({"DTYPE": "fp32", "ZERO_STAGE": "2"}, 4, 1, 2),
    ({"DTYPE": "fp32", "ZERO_STAGE": "3"}, 1, 1, 2),
    ({"DTYPE": "bf16", "ZERO_STAGE": "2"}, 2, 1, 3),
    ({"DTYPE": "bf16", "ZERO_STAGE": "3"}, 0.5, 1, 3),
    ({"DTYPE": "bf16", "ZERO_STAGE": "3", "SP": "2"}, 0.5, 1, 3),
    ({"DTYPE": "bf16", "ZERO_STAGE": "1", "GRAD_ACCUM_DTYPE": "bf16"}, 2, 4, 3),
    ({"DTYPE": "bf16", "ZERO_STAGE": "3", "ZERO_HPZ_PARTITION_SIZE": "2"}, 1.5, 1, 3),
    ({"DTYPE": "bf16", "ZERO_STAGE": "1", "CPU_OPTIMIZER": "1"}, 2, 4, 0),
    ({"DTYPE": "bf16", "ZERO_STAGE": "2", "CPU_OPTIMIZER": "1"}, 2, 0, 0),
    ({"DTYPE": "bf16", "ZERO_STAGE": "3", "CPU_OPTIMIZER": "1", "OFFLOAD_PARAMS": "cpu"}, 0, 0, 0),
]


@pytest.mark.parametrize(("env", "weight", "gradient", "optimizer"), SHARES, ids=lambda value: str(value))
def test_what_four_ranks_share(env, weight, gradient, optimizer):
    run = _run(env, ranks=4)
    count = count_parameters(run.model)
    memory = estimate(run, 4)
    assert (memory.weights, memory.gradients, memory.optimizer) == (count * weight, count * gradient, count * optimizer)


def test_offload_saves_nothing_on_a_host_without_accelerators():
    env = {"ZERO_STAGE": "3", "DTYPE": "bf16", "CPU_OPTIMIZER": "1", "OFFLOAD_PARAMS": "cpu"}
    here, plain = (_run({**each, "MACHINE": "cpu"}, ranks=2, machine="cpu") for each in (env, {**env, **OFF}))
    assert estimate(here, 2) == estimate(plain, 2)


OFF = {"CPU_OPTIMIZER": "0", "OFFLOAD_PARAMS": "none"}


def test_gathered_weights_of_zero_3_are_bounded():
    env = {"ZERO_STAGE": "3", "DTYPE": "bf16", "REDUCE_BUCKET_SIZE": "1000"}
    run = _run(env, ranks=2)
    assert estimate(run, 2).buffers == 4000 + 2 * count_parameters(run.model)
    few = _run({**env, "STAGE3_MAX_LIVE_PARAMETERS": "500"}, ranks=2)
    assert estimate(few, 2).buffers == 4000 + 1000


def test_the_fullest_stage_counts():
    env = {"NLAYERS": "8", "PP": "4", "GRAD_ACC_STEPS": "8", "GLOBAL_BATCH": "", "MICRO_BATCH": "1"}
    run = _run({**env, "SEQ": "2048"}, ranks=4)
    first, last = Stage(0, 2, True, False), Stage(3, 2, False, True)
    # Under 1F1B the first stage keeps four micro-batches and the last one.
    assert saved_bytes(run, first) == 4 * 2 * layer_bytes(run) == 4 * saved_bytes(run, last)
    assert estimate(run, 4).activations == saved_bytes(run, first)
    short = _run({**env, "SEQ": "2048", "GRAD_ACC_STEPS": "2"}, ranks=4)
    assert saved_bytes(short, first) == 2 * saved_bytes(short, last)
    uneven = _run({**env, "PIPELINE_SPLIT": "1,1,1,5", "HIDDEN": "1024", "SEQ": "16"}, ranks=4)
    layer = 4 * 1024 * 1024 + 3 * 1024 * uneven.model.ffn_hidden_size + 2 * 1024
    assert estimate(uneven, 4).weights == 4 * (5 * layer + 512 * 1024 + 1024)


def test_chunks_of_every_schedule_in_flight():
    env = {"NLAYERS": "8", "PP": "4", "GRAD_ACC_STEPS": "8", "GLOBAL_BATCH": "", "MICRO_BATCH": "1", "SEQ": "2048"}
    plain, waits = _run(env, ranks=4), _run({**env, "PIPELINE_SCHEDULE": "zb-h1"}, ranks=4)
    chunks = _run({**env, "VIRTUAL_STAGES": "2"}, ranks=4)
    layer = layer_bytes(plain)
    assert [saved_bytes(plain, stage) // layer for stage in stages(plain)] == [8, 6, 4, 2]
    # Weight gradients that wait keep as many on every stage as the first one of 1F1B has.
    assert [saved_bytes(waits, stage) // layer for stage in stages(waits)] == [8] * 4
    # Chunks of one layer: 2 (PP - s - 1) + (v - 1) PP + 1.
    assert [saved_bytes(chunks, stage) // layer for stage in stages(chunks)] == [11, 9, 7, 5]
    assert [stage.numbers for stage in stages(chunks)] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    uneven = _run({**env, "VIRTUAL_STAGES": "2", "PIPELINE_SPLIT": "1,1,1,1,1,1,1,1"}, ranks=4)
    assert estimate(uneven, 4) == estimate(chunks, 4)
    for run in (waits, chunks):
        assert sum(parameters_of(run, each) for each in stages(run)) == count_parameters(run.model)


def test_recomputed_layers_wait_with_all_that_their_weight_gradients_need():
    env = {"NLAYERS": "8", "PP": "4", "GRAD_ACC_STEPS": "8", "GLOBAL_BATCH": "", "MICRO_BATCH": "1", "SEQ": "2048"}
    run = _run({**env, "PIPELINE_SCHEDULE": "zb-h1", "RECOMPUTE": "full"}, ranks=4)
    layer, kept = layer_bytes(run), input_bytes(run)
    found = [saved_bytes(run, stage) for stage in stages(run)]
    # Stage s holds 4 - s micro-batches before a backward pass and s after it, or one less and one more.
    for stage, most in enumerate(found):
        assert most == max(2 * (held * kept + (4 - held) * layer) for held in (4 - stage, 3 - stage))


def test_a_pipeline_holds_a_copy_of_tied_embeddings_at_both_ends():
    env = {"TIED_EMBEDDINGS": "1", "NLAYERS": "2", "HIDDEN": "64"}
    one, two = _run(env), _run({**env, "PP": "2"}, ranks=2)
    layers = estimate(one, 1).weights - 4 * (512 * 64 + 64)
    assert estimate(two, 2).weights == layers // 2 + 4 * (512 * 64 + 64)


def test_a_slip_of_the_finger_is_told_at_once():
    run = _run({"NLAYERS": "1e5"})
    with pytest.raises(ConfigError, match="NLAYERS=4096 would fit"):
        check_fits(run, 1, 1, 20 * GIB, "laptop")


def test_a_torch_built_for_cuda_takes_more_on_a_cpu_too(tmp_path, monkeypatch):
    (tmp_path / "nvidia_cudnn_cu13-9.20.0.48.dist-info").mkdir()
    (tmp_path / "nvidia_cudnn_cu13-9.20.0.48.dist-info/METADATA").write_text("Name: nvidia-cudnn-cu13\n")
    monkeypatch.syspath_prepend(tmp_path)
    program_bytes.cache_clear()
    assert program_bytes() == CUDA_PROGRAM_BYTES
    program_bytes.cache_clear()


@pytest.mark.parametrize("name", [each for each, row in OPTIMIZERS.items() if not row.is_whole])
def test_state_of_single_numbers_is_shared_as_zero_says(name):
    count = count_parameters(_run({}).model)
    kinds = len(OPTIMIZERS[name].state)
    one = estimate(_run({"OPT": name, "DTYPE": "fp32", "ZERO_STAGE": "0"}, ranks=2), 2)
    shared = estimate(_run({"OPT": name, "DTYPE": "bf16", "ZERO_STAGE": "1"}, ranks=2), 2)
    assert one.optimizer == 4 * kinds * count
    assert shared.optimizer == (4 * kinds + 4) * count // 2


def test_whole_parameters_are_shared_by_all_and_have_one_owner():
    env = {"OPT": "lamb", "DTYPE": "fp32", "ZERO_STAGE": "0"}
    model = _run(env).model
    table = padded_vocab_size(model) * model.hidden_size
    matrices = count_parameters(model) - (2 * model.num_layers + 1) * model.hidden_size
    base = {each: estimate(_run({**env, "OPT": "adamw"}, ranks=each), each).buffers for each in (1, 2, 8)}
    for ranks, share in ((1, matrices), (2, matrices // 2), (8, table)):
        memory = estimate(_run(env, ranks=ranks), ranks)
        assert memory.optimizer == 4 * 2 * share
        assert memory.buffers - base[ranks] == WORK_BYTES * share


def test_what_a_matrix_rule_leaves_to_adamw_has_its_state():
    env = {"OPT": "shampoo", "DTYPE": "fp32"}
    run = _run(env)
    tables = 2 * padded_vocab_size(run.model) * run.model.hidden_size
    layers = count_parameters(run.model) - tables - (2 * run.model.num_layers + 1) * run.model.hidden_size
    assert estimate(run, 1).optimizer == 4 * (OPTIMIZERS["shampoo"].floats * layers + ADAM_FLOATS * tables)


def test_offload_leaves_the_state_of_whole_parameters_on_the_device():
    kept = estimate(_run({"OPT": "lamb", "OFFLOAD_OPTIMIZER": "cpu"}, ranks=2), 2)
    gone = estimate(_run({"OPT": "adamw", "OFFLOAD_OPTIMIZER": "cpu"}, ranks=2), 2)
    assert kept.optimizer > 0
    assert gone.optimizer == 0


def test_one_after_another_takes_less_than_many_at_once():
    env = {"NLAYERS": "64", "DTYPE": "fp32"}
    many, one = (estimate(_run({**env, "OPT": name}), 1) for name in ("galoreadamw8bit", "galoreadamw8bitperlayer"))
    assert one.buffers < many.buffers


def test_every_choice_is_a_row_and_a_head_has_no_logits():
    classes = {"TASK": "jsonl", "NUM_CLASSES": "3", "MICRO_BATCH": "2"}
    plain, of_task, rows = _run({"MICRO_BATCH": "2"}), _run(classes), _run({**classes, "MICRO_BATCH": "8"})
    choices = _run({**classes, "TASK_CHOICES": "4"})
    assert estimate(choices, 1).activations == estimate(rows, 1).activations > 3 * estimate(of_task, 1).activations
    assert estimate(choices, 1).logits == estimate(rows, 1).logits == 3 * 4 * 8 * 3
    assert estimate(plain, 1).logits > 1000 * estimate(of_task, 1).logits
    padded = padded_vocab_size(plain.model) * plain.model.hidden_size
    assert count_parameters(plain.model) - count_parameters(of_task.model) == padded - 3 * plain.model.hidden_size
    assert (choices.sample_tokens, of_task.sample_tokens) == (4 * choices.model.seq_length, of_task.model.seq_length)


def test_a_process_takes_memory_of_its_device_by_the_axes_it_talks_on():
    """Of a host without accelerators, what the program takes of its memory."""
    one, all_axes = _run({}), _run({"TP": "2", "PP": "2", "SP": "2"}, ranks=16)
    assert estimate(one, 1).program == CONTEXT_BYTES + 2 * WORKSPACE_BYTES
    assert estimate(all_axes, 16).program - estimate(one, 1).program == 4 * COMMUNICATOR_BYTES
    assert estimate(_run({}, machine="cpu"), 1).program == PROGRAM_BYTES
