"""Models with experts, latent attention and Mamba layers: parameters as published, memory by hand."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.plan.conventions import MEGATRON_CORE, MIB
from megads.plan.memory import parameters_of, stages
from megads.plan.parts.experts import Extended, Latent, layer_kept, stage_counts, stage_memory, stages_of

MIXTRAL = {
    **{"NLAYERS": "32", "HIDDEN": "4096", "HEADS": "32", "NUM_KV_HEAD": "8", "FFN_HIDDEN_SIZE": "14336"},
    **{"VOCAB_SIZE": "32000", "SEQ": "4096"},
}
V3 = {
    **{"NLAYERS": "61", "HIDDEN": "7168", "HEADS": "128", "HEAD_DIM": "128", "FFN_HIDDEN_SIZE": "18432"},
    **{"VOCAB_SIZE": "129280", "SEQ": "4096"},
}
SMALL = {"NLAYERS": "4", "HIDDEN": "256", "HEADS": "4", "FFN_HIDDEN_SIZE": "512", "VOCAB_SIZE": "1024", "SEQ": "64"}


def run_of(env: dict[str, str], ranks: int = 1) -> RunConfig:
    settings = {"TRAIN_ITERS": "9", "DTYPE": "bf16", "TIED_EMBEDDINGS": "0", **env}
    resolved = resolve("", env=settings, machine="generic")
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=0).run


def total(run: RunConfig, model: Extended) -> int:
    found = stage_counts(run, model, next(stages(run)))
    return found.dense + found.experts


def test_parameters_of_published_models():
    """Mixtral 8x7B (arXiv 2401.04088) and DeepSeek-V3 (arXiv 2412.19437)."""
    assert total(run_of(MIXTRAL), Extended("e" * 32, 8, 2, 14336)) == pytest.approx(46.70e9, rel=1e-3)
    latent = Latent(1536, 512, 128, 64, 128)
    layers = "ttt" + "e" * 58
    assert total(run_of(V3), Extended(layers, 256, 8, 2048, 2048, latent=latent)) == pytest.approx(671.0e9, rel=1e-3)


def test_layers_without_experts_are_those_of_the_decoder():
    run = run_of({**SMALL, "TP": "2", "PP": "2"}, ranks=4)
    plain = Extended("tttt")
    for stage in stages(run):
        assert stage_counts(run, plain, stage).dense == parameters_of(run, stage)
    # Attention and MLP alone have a norm each, as the two of one layer.
    apart = run_of({**SMALL, "NLAYERS": "8"})
    assert total(apart, Extended("*-" * 4)) == total(run_of(SMALL), plain)


def test_experts_are_split_and_their_state_is_shared_by_fewer():
    """Of 8 ranks with TP=2 and EP=2 each expert is on 2 groups of 2, everything else on 4."""
    run = run_of({**SMALL, "TP": "2"}, ranks=8)
    model = Extended("eeee", 8, 1, 128, expert_parallel=2, expert_tensor=2)
    stage = next(stages(run))
    counts = stage_counts(run, model, stage)
    assert counts.experts == 4 * 4 * 3 * 256 * 128 // 2
    found = stage_memory(run, 8, model, stage, MEGATRON_CORE)
    assert found.weights == 2 * (counts.dense + counts.experts)
    assert found.gradients == 4 * (counts.dense + counts.experts)
    assert found.optimizer == 12 * counts.dense // 4 + 12 * counts.experts // 2
    frozen = stage_memory(run, 8, Extended("tttt", is_frozen=True, more=MIB, more_frozen=MIB), stage, MEGATRON_CORE)
    assert frozen.gradients == 4 * MIB
    assert frozen.optimizer == 12 * MIB // 4


def test_what_layers_keep():
    run = run_of(SMALL)
    tokens, width = 64, 256
    one, two = (Extended("e", 8, chosen, 128) for chosen in (1, 2))
    more = layer_kept(run, two, "e", MEGATRON_CORE) - layer_kept(run, one, "e", MEGATRON_CORE)
    assert more == 2 * tokens * (2 * width + 3 * 128)
    parts = [layer_kept(run, one, kind, MEGATRON_CORE) for kind in "*-t"]
    assert parts[0] + parts[1] == parts[2]


def test_stages_with_chunks_of_their_own():
    """``Et*3|(tt|)*3``: chunks of 3, 2, 2 and 2 layers on two stages."""
    first, last = stages_of([[3, 2], [2, 2]])
    assert (first.chunks, last.chunks) == ((range(3), range(5, 7)), (range(3, 5), range(7, 9)))
    assert (first.has_embedding, first.has_head, last.has_embedding, last.has_head) == (True, False, False, True)
    (alone,) = stages_of([[4]])
    assert alone.numbers == (0, 1, 2, 3)
    assert alone.chunks == ()
