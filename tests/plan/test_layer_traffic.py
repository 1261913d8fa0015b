"""What layers send, by hand; that it is what the real engine asks for: ``tests/trace/test_compare.py``."""

from __future__ import annotations

from megads.plan.layer_traffic import sequence_counts, tensor_counts
from megads.plan.memory import stages
from tests.trace.dry_runs import run_of

NATIVE = {"ENGINE": "native", "GRAD_ACC_STEPS": "1"}


def _counts(preset, env):
    run = run_of(preset, 8, NATIVE | env)
    (stage,) = stages(run)
    return run, tensor_counts(run, stage), sequence_counts(run, stage)


def test_a_layer_of_t5s_decoder_has_three_products_of_its_own_text_and_one_of_the_encoders():
    run, plain, _ = _counts("t5-220M", {"TP": "2", "NLAYERS": "2", "DECODER_LAYERS": "3"})
    width = run.model.hidden_size * run.train.micro_batch
    seen, said = run.model.seq_length * width, run.model.decoder_seq_length * width
    assert plain["all-reduce", said] == 3 * 6 + 1  # and the head's
    assert plain["all-reduce", seen] == 2 * 4 + 3
    assert plain["all-reduce", seen + said] == 1  # both texts are embedded at once


def test_frozen_weights_gather_no_input_again_and_adapters_send_their_rank():
    run, plain, _ = _counts("7B", {"TP": "2", "NLAYERS": "3", "SCATTER_NORMS": "1", "LORA_RANK": "4"})
    own = run.model.seq_length * run.train.micro_batch
    _, trained, _ = _counts("7B", {"TP": "2", "NLAYERS": "3", "SCATTER_NORMS": "1"})
    assert trained["all-gather", own * run.model.hidden_size] == 3 * 6 + 1 + 2
    assert plain["all-gather", own * run.model.hidden_size] == 3 * 4 + 1
    assert plain["all-gather", own * 4] == 2 * 3  # gradients of what goes into two B's that are whole
    assert plain["reduce-scatter", own * 3 * 4] == 3  # q, k and v have an A each


def test_recomputed_layers_send_again():
    env = {"SP": "4", "NLAYERS": "4"}
    _, _, once = _counts("7B", env)
    _, _, again = _counts("7B", env | {"RECOMPUTE": "full"})
    _, _, half = _counts("7B", env | {"RECOMPUTE": "full", "RECOMPUTE_METHOD": "block", "RECOMPUTE_NUM_LAYERS": "2"})
    assert [sum(each.values()) for each in (once, half, again)] == [16, 20, 24]
