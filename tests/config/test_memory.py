"""Parameters counted, memory estimated, and what would fit."""

from __future__ import annotations

import re

import pytest

from megads.config.derive import derive
from megads.config.memory import GIB, PROGRAM_BYTES, check_fits, count_parameters, estimate
from megads.config.resolve import resolve
from megads.config.schema import RunConfig
from megads.errors import ConfigError


def _run(env: dict[str, str], ranks: int = 1, preset: str = "tiny") -> RunConfig:
    resolved = resolve(preset, env={"TRAIN_ITERS": "10", **env}, machine="generic")
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
        ({"DTYPE": "fp32", "ZERO_STAGE": "1"}, 4, 4, 6),
        ({"DTYPE": "bf16", "ZERO_STAGE": "0"}, 2, 6, 6),
        ({"DTYPE": "bf16", "ZERO_STAGE": "1"}, 2, 6, 6),
        ({"DTYPE": "fp16", "ZERO_STAGE": "1"}, 2, 6, 6),
    ],
)
def test_bytes_per_parameter_on_two_data_parallel_ranks(env, weight, gradient, optimizer):
    run = _run(env, ranks=2)
    count = count_parameters(run.model)
    memory = estimate(run, 2)
    assert (memory.weights, memory.gradients, memory.optimizer) == (count * weight, count * gradient, count * optimizer)
    assert memory.program == PROGRAM_BYTES
    assert memory.total == sum(
        (memory.weights, memory.gradients, memory.optimizer, memory.activations, memory.logits, memory.program)
    )


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
    [(WIDE, 18 * GIB, {"TP", "NLAYERS"}), (LONG, 14 * GIB, {"MICRO_BATCH", "SEQ", "NLAYERS"})],
)
def test_refusal_names_the_numbers_and_settings_that_do_fit(env, available, settings):
    run = _run(env, ranks=4)
    with pytest.raises(ConfigError) as caught:
        check_fits(run, 4, 4, available, "laptop")
    message = str(caught.value)
    assert message.startswith(f"laptop has {available / GIB:.2f} GiB of memory for 4 ranks that need ")
    assert re.search(r"GiB per rank: weights \d+\.\d\d, gradients .*, program 0\.59;", message)
    assert message.endswith("--set train.force=true starts anyway")
    advice = dict(re.findall(r"\b(TP|MICRO_BATCH|SEQ|NLAYERS)=(\d+)", message))
    assert set(advice) >= settings
    for name, value in advice.items():
        check_fits(_run({**env, name: value}, ranks=4), 4, 4, available, "laptop")


def test_hopeless_hosts_get_a_smaller_preset():
    with pytest.raises(ConfigError, match="use a smaller preset such as tiny"):
        check_fits(_run({}), 1, 1, 1000, "calculator")


def test_force_starts_anyway():
    check_fits(_run({"FORCE": "1"}), 1, 1, 1000, "calculator")


@pytest.mark.parametrize(
    "env",
    [{}, {"NUM_KV_HEAD": "2"}, {"NO_LLAMA": "1", "HIDDEN_DROPOUT": "0"}, {"ADD_BIAS": "1", "TIED_EMBEDDINGS": "1"}],
)
def test_numbers_are_those_of_the_built_model(env):
    """Parameters exactly; what a layer keeps for its backward pass within 10 %."""
    import torch

    from megads.dist.grid import Grid
    from megads.dist.groups import Groups
    from megads.models.gpt import GPT

    shape = {"SEQ": "128", "ATTENTION_DROPOUT": "0", **env}
    saved = []
    for layers in (1, 3):
        run = _run({**shape, "NLAYERS": str(layers)})
        alone = Groups(grid=Grid(), rank=0, world=None, tensor=None, data_seq=None, model=None)
        model = GPT(run.model, alone)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.02)
        assert sum(weight.numel() for weight in model.parameters()) == count_parameters(run.model)
        weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        kept: dict[int, int] = {}
        tokens = torch.zeros(run.train.micro_batch, run.model.seq_length, dtype=torch.long)

        def pack(tensor, weights=weights, kept=kept):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model(tokens, tokens)
        assert loss.isfinite()
        saved.append((sum(kept.values()), estimate(run, 1).activations))
    measured, estimated = (large - small for small, large in zip(*saved, strict=True))
    assert estimated == pytest.approx(measured, rel=0.1)
