"""Engines on rows packed with documents, against a loop that gives the model one document after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from tests.engine.plain import CLIP, eval_loss, in_halves, let_fp16_run, make_engine, plain_optimizer, rate, settings
from tests.ranks import groups_of, run_ranks

END, STEPS = 3, 3
RESET = {"data.reset_position_ids": "1", "data.reset_attention_mask": "1"}
MASK = {"data.eod_mask_loss": "1"}
LLAMA = {"model.num_layers": "4", "model.num_kv_heads": "2"}
GPT = {"model.num_layers": "4", "model.family": "gpt", "model.hidden_dropout": "0", "model.attention_dropout": "0"}
PARTITIONED = {"parallel.zero_stage": "3", "deepspeed.param_persistence_threshold": "0"}
SCATTER = {"parallel.scatter_norms": "1"}
SELECTIVE = {"recompute.granularity": "selective"}
FULL = {"recompute.granularity": "full"}
BLOCK = {**FULL, "recompute.method": "block", "recompute.num_layers": "1"}
DEEPSPEED = {**FULL, "recompute.engine": "deepspeed"}


def batches(run: Any, step: int, data_rank: int) -> list[Any]:
    """Return this data rank's micro-batches: the same 8 samples on every grid, two of them of one document."""
    import torch

    generator = torch.Generator().manual_seed(step)
    samples = torch.randint(END + 1, 100, (8, run.model.seq_length + 1), generator=generator)
    ends = torch.rand(samples.shape, generator=generator) < 0.2
    ends[4:6] = False
    samples[ends] = END
    blocks = samples.view(run.train.grad_acc_steps, run.parallel.data, run.train.micro_batch, -1)
    return [block[data_rank] for block in blocks]


def everything(run: Any, step: int) -> Any:
    """Return the step's samples ``[8, S + 1]``, in the order of the loader."""
    import torch

    parts = [batches(run, step, rank) for rank in range(run.parallel.data)]
    return torch.cat([micro_batch for micro_batches in zip(*parts, strict=True) for micro_batch in micro_batches])


def sums_of_samples(model: Any, samples: Any, masked: bool) -> Any:
    """Return each sample's summed loss and counted tokens, from documents that the model is given alone."""
    import torch

    rows = []
    for sample in samples:
        tokens, labels = sample[:-1], sample[1:]
        ends = [i + 1 for i, token in enumerate(tokens.tolist()) if token == END]
        logits = torch.cat([model(piece[None])[0] for piece in tokens.tensor_split(ends) if len(piece)])
        losses = torch.nn.functional.cross_entropy(logits[:, :100], labels, reduction="none")
        counted = tokens != END if masked else torch.ones_like(tokens, dtype=torch.bool)
        rows.append(torch.stack([losses[counted].sum(), counted.sum()]))
    return torch.stack(rows)


def one_rank(run: Any) -> Any:
    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model

    alone = run.model_copy(update={"parallel": settings({}).parallel})
    return build_model(alone, Groups(Grid(), 0))


Trained = tuple[list[float], list[float], dict[str, Any]]
_plain_loops: dict[str, Trained] = {}


def plain_loop(run: Any) -> Trained:
    """Return losses, norms and weights of :func:`_plain_loop`; not to be changed: they are kept."""
    key = repr((run.model, run.data, run.optim, run.train.dtype))
    if key not in _plain_loops:
        _plain_loops[key] = _plain_loop(run)
    return _plain_loops[key]


def _plain_loop(run: Any) -> Trained:
    """Return losses, norms and weights of a plain torch loop that never sees two documents at once."""
    import torch

    model = one_rank(run)
    optimizer = plain_optimizer(model, run)
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        total, count = sums_of_samples(model, everything(run, step), run.data.eod_mask_loss).sum(dim=0)
        loss = total / count
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), run.optim.clip_grad)))
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms, dict(model.named_parameters())


def _trains_like_documents_alone(grid: dict[str, int], changes: Mapping[str, str]) -> None:
    import torch

    from megads.parallel.tensor import take_shard

    run, groups = settings(grid, **in_halves(grid, changes)), groups_of(**grid)
    losses, norms, weights = plain_loop(run)
    engine = make_engine(run, groups, eod=END)
    results = [engine.train_step(batches(run, step, groups.data_rank), rate(step)) for step in range(STEPS)]
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-4)
    assert min(norms) > CLIP
    for state in engine.state.by_parameter():
        whole = weights[state.name].detach()
        local = take_shard(whole, state.parameter.shard, groups.tensor_rank, groups.tensor_size)
        torch.testing.assert_close(state.tensors["weight"], local, rtol=1e-4, atol=2e-6)


LAYOUTS = {
    "one": ({}, {**LLAMA, **MASK}),
    "tp2": ({"tensor": 2}, {**LLAMA, **DEEPSPEED}),
    "sp2": ({"seq": 2}, {**GPT, **SELECTIVE}),
    "dp2-zero2": ({"data": 2}, {**GPT, **MASK, "parallel.zero_stage": "2"}),
    "dp2-zero3-full": ({"data": 2}, {**LLAMA, **FULL, **PARTITIONED}),
    "pp2": ({"pipe": 2}, {**GPT, **MASK}),
    "pp2-full": ({"pipe": 2}, {**LLAMA, **FULL}),
    "pp2-selective": ({"pipe": 2}, {**GPT, **SELECTIVE}),
    "pp2-deepspeed": ({"pipe": 2}, {**LLAMA, **DEEPSPEED}),
    "tp2-sp2": ({"tensor": 2, "seq": 2}, {**GPT, **SCATTER, **MASK, **BLOCK}),
    "pp2-sp2": ({"pipe": 2, "seq": 2}, {**LLAMA, **FULL}),
    "pp2-tp2": ({"pipe": 2, "tensor": 2}, {**GPT, **SCATTER}),
    "pp4": ({"pipe": 4}, {**LLAMA, "train.micro_batch": "1", "train.grad_acc_steps": "8"}),
}


@pytest.mark.dist
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_documents_train_like_documents_alone(layout):
    grid, changes = LAYOUTS[layout]
    run_ranks(math.prod(grid.values()), _trains_like_documents_alone, grid, {**RESET, **changes}, timeout_s=180)


def _bf16_is_near(grid: dict[str, int], changes: Mapping[str, str]) -> None:
    run, groups = settings(grid, **changes), groups_of(**grid)
    losses, norms, _ = plain_loop(settings(grid, **{**changes, "train.dtype": "fp32"}))
    engine = make_engine(run, groups, eod=END)
    results = [engine.train_step(batches(run, step, groups.data_rank), rate(step)) for step in range(STEPS)]
    assert [float(r.loss) for r in results] == pytest.approx(losses, abs=5e-3)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=2e-2)


@pytest.mark.dist
def test_bf16_is_near():
    run_ranks(2, _bf16_is_near, {"pipe": 2}, {**RESET, **GPT, "train.dtype": "bf16"}, timeout_s=180)


def _settings_are_independent(grid: dict[str, int]) -> None:
    """Every combination trains, each differently, and the layout gives what one rank gives."""
    import itertools

    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.engine.micro_batches import Splitter

    losses = []
    for bits in itertools.product("01", repeat=3):
        names = ("data.reset_position_ids", "data.reset_attention_mask", "data.eod_mask_loss")
        changes = {**GPT, **dict(zip(names, bits, strict=True))}
        run, groups = settings(grid, **changes), groups_of(**grid)
        engine = make_engine(run, groups, eod=END)
        result = engine.train_step(batches(run, 0, groups.data_rank), 1e-2)
        # What one rank should give is in tests/parity/test_hf.py.
        (part,) = Splitter(run, Groups(Grid(), 0), END)([everything(run, 0)])
        expected = one_rank(run)(part.tokens, part.labels, None, part.documents)
        assert float(result.loss) == pytest.approx(expected.item(), rel=1e-5)
        losses.append(float(result.loss))
    assert len({round(loss, 6) for loss in losses}) == 8


@pytest.mark.dist
def test_the_three_settings_are_independent():
    run_ranks(2, _settings_are_independent, {"pipe": 2}, timeout_s=180)


def _without_ends_no_bit_changes(grid: dict[str, int], changes: Mapping[str, str]) -> None:
    results = []
    for resets in ({}, RESET):
        run, groups = settings(grid, **changes, **resets), groups_of(**grid)
        engine = make_engine(run, groups, eod=99 if resets else None)
        steps = []
        for step in range(2):
            given = [batch.masked_fill(batch == 99, 98) for batch in batches(run, step, groups.data_rank)]
            result = engine.train_step(given, 1e-2)
            steps += [float(result.loss), result.grad_norm, float(eval_loss(engine, given))]
        results.append(steps)
    assert results[0] == results[1]


@pytest.mark.dist
@pytest.mark.parametrize("grid", [{"pipe": 2}, {"seq": 2}], ids=["pp2", "sp2"])
def test_without_ends_no_bit_changes(grid):
    run_ranks(2, _without_ends_no_bit_changes, grid, GPT, timeout_s=180)


def test_an_end_that_nobody_knows_is_refused():
    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.engine.micro_batches import Splitter
    from megads.errors import ConfigError

    for changes in (MASK, RESET):
        with pytest.raises(ConfigError, match="need the token that ends a document, and none is known"):
            Splitter(settings({}, **changes), Groups(Grid(), 0), None)
    Splitter(settings({}), Groups(Grid(), 0), None)


# Evaluation, sample by sample


def _every_sample_is_evaluated(grid: dict[str, int], changes: Mapping[str, str]) -> None:
    import torch

    from tests.parity.recorder import Traffic

    let_fp16_run()
    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups, eod=END)
    with torch.no_grad():
        expected = sums_of_samples(one_rank(run).eval(), everything(run, 7), run.data.eod_mask_loss)
    mine = batches(run, 7, groups.data_rank)
    before = torch.get_rng_state()
    found = engine.eval_losses(mine)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.shape == (8, 2)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    torch.testing.assert_close(found[:, 0], expected[:, 0], rtol=1e-5, atol=0)
    assert torch.equal(found[:, 1], expected[:, 1])
    loss = eval_loss(engine, mine)
    assert loss.shape == ()
    assert float(loss) == float(found[:, 0].sum() / found[:, 1].sum())
    assert float(loss) == pytest.approx(float(expected[:, 0].sum() / expected[:, 1].sum()), rel=1e-5)
    with Traffic(groups) as traffic:
        assert torch.equal(engine.eval_losses(mine), found)
    reductions = {key: rows for key, rows in traffic.rows.items() if key[1] == "all-reduce" and rows[1] == 16}
    if groups.grid.world_size > 1:
        assert [calls for calls, _ in reductions.values()] == [1]
    if groups.tensor is None and groups.seq is None and "parallel.zero_stage" not in changes:
        assert {key[1] for key in traffic.rows} <= {"all-reduce", "send", "recv"}


DROPOUT = {"model.hidden_dropout": "0.1", "model.attention_dropout": "0.1"}
EVALUATED = {
    "one": ({}, {**GPT, **RESET, **DROPOUT}),
    "dp2": ({"data": 2}, {**LLAMA, **RESET, **MASK}),
    "dp2-zero3": ({"data": 2}, {**LLAMA, **RESET, **PARTITIONED}),
    "pp2-dp2": ({"pipe": 2, "data": 2}, {**GPT, **RESET, **MASK, **DROPOUT}),
    "pp2-sp2": ({"pipe": 2, "seq": 2}, {**LLAMA, **RESET, **DROPOUT}),
    "tp2-sp2": ({"tensor": 2, "seq": 2}, {**GPT, **RESET, **MASK, **SCATTER}),
}


@pytest.mark.dist
@pytest.mark.parametrize("layout", EVALUATED)
def test_every_sample_of_all_ranks_is_evaluated(layout):
    grid, changes = EVALUATED[layout]
    run_ranks(math.prod(grid.values()), _every_sample_is_evaluated, grid, changes, timeout_s=180)


# Rows of BERT


def _rows_of_bert(seq: int, changes: dict[str, str]) -> None:
    import torch

    from megads.data.samples.masked.rows import BertRow
    from megads.engine.micro_batches import Splitter
    from tests.parity.layouts import Layout, batches

    run, groups = Layout("bert", sp=seq).run(**changes), groups_of(seq=seq)
    (batch, *_), row, length = batches(run, 0, 0), BertRow(16), 16 // seq
    mine = slice(groups.seq_rank * length, (groups.seq_rank + 1) * length)
    (part,) = Splitter(run, groups, None)([batch])
    assert torch.equal(part.tokens, batch[:, row.text][:, mine])
    assert torch.equal(part.labels, batch[:, row.labels][:, mine])
    assert torch.equal(part.documents.lengths.tokens, batch[:, row.length])
    assert part.documents.lengths.whole == 16
    if run.model.token_types:
        assert torch.equal(part.documents.types, batch[:, row.types][:, mine])
    else:
        assert part.documents.types is None
    if not run.model.binary_head:
        assert part.pairs is None
        assert part.target is part.labels
    else:
        expected = batch[:, row.is_random] if groups.seq_rank == 0 else torch.full((2,), -1)
        assert torch.equal(part.pairs, expected)
        assert part.target.tokens is part.labels
        assert part.target.pairs is part.pairs


@pytest.mark.dist
@pytest.mark.parametrize("seq", [1, 2])
@pytest.mark.parametrize("changes", [{}, {"model.binary_head": "0"}, {"model.token_types": "0"}], ids=str)
def test_a_row_of_bert_in_parts(seq, changes):
    run_ranks(seq, _rows_of_bert, seq, changes)


def _rows_of_t5(seq: int) -> None:
    import torch

    from megads.data.samples.masked.rows import T5Row
    from megads.engine.micro_batches import Splitter
    from tests.parity.layouts import Layout, batches

    run, groups = Layout("t5", sp=seq).run(), groups_of(seq=seq)
    (batch, *_), row = batches(run, 0, 0), T5Row(16, 8)
    splitter = Splitter(run, groups, None)
    (part,) = splitter([batch])
    text, start, labels = (
        batch[:, each].chunk(seq, dim=1)[groups.seq_rank] for each in (row.text_enc, row.text_dec, row.labels)
    )
    assert torch.equal(part.tokens, torch.cat([text, start], dim=1))
    assert torch.equal(part.labels, labels)
    assert torch.equal(part.documents.lengths.tokens, batch[:, row.length_enc])
    assert (part.documents.lengths.whole, part.documents.encoder_tokens) == (16, 16 // seq)
    counted = int((batch[:, row.labels] >= 0).sum())
    assert int(splitter.counted_tokens([part])) == counted
    with pytest.raises(ValueError, match="rows of 17 numbers; those of SEQ=16 and DECODER_SEQ=8 have 34"):
        splitter([torch.zeros(2, 17, dtype=torch.int64)])


@pytest.mark.dist
@pytest.mark.parametrize("seq", [1, 2])
def test_a_row_of_t5_in_parts(seq):
    run_ranks(seq, _rows_of_t5, seq)


def _rows_of_retro(seq: int) -> None:
    import torch

    from megads.data.samples.retro.rows import RetroRow
    from megads.engine.micro_batches import Splitter
    from tests.parity.layouts import Layout, batches

    run, groups = Layout("retro", sp=seq, more={"data.eod_mask_loss": "1"}).run(), groups_of(seq=seq)
    (batch, *_), row = batches(run, 0, 0), RetroRow.of(run.model)
    batch[0, 5] = 7
    splitter = Splitter(run, groups, 7)
    (part,) = splitter([batch])
    text = batch[:, :16].chunk(seq, dim=1)[groups.seq_rank]
    neighbors = batch[:, row.neighbors].view(2, 4, 2, 8).chunk(seq, dim=1)[groups.seq_rank]
    assert torch.equal(part.tokens, torch.cat([text, neighbors.flatten(1)], dim=1))
    labels = batch[:, 1:17].masked_fill(batch[:, :16] == 7, -100).chunk(seq, dim=1)[groups.seq_rank]
    assert torch.equal(part.labels, labels)
    assert part.documents.encoder_tokens == 16 // seq
    with pytest.raises(ValueError, match="rows of 17 numbers; those of SEQ=16 have 81"):
        splitter([torch.zeros(2, 17, dtype=torch.int64)])


@pytest.mark.dist
@pytest.mark.parametrize("seq", [1, 2])
def test_a_row_with_neighbours_in_parts(seq):
    run_ranks(seq, _rows_of_retro, seq)


def test_the_weight_of_a_hidden_token_is_that_of_the_whole_step():
    import torch

    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.data.samples.masked.rows import BertRow
    from megads.engine.micro_batches import Splitter
    from tests.parity.layouts import Layout, batches

    run, row = Layout("bert").run(), BertRow(16)
    splitter = Splitter(run, Groups(Grid(), 0), None)
    made = batches(run, 0, 0)
    hidden = sum(int((batch[:, row.labels] >= 0).sum()) for batch in made)
    assert float(splitter.token_weight(splitter(made))) == pytest.approx(len(made) / hidden)
    drawn = splitter.with_random_labels(splitter(made), 3)
    assert all(
        torch.equal(part.labels >= 0, batch[:, row.labels] >= 0) for part, batch in zip(drawn, made, strict=True)
    )
    assert all((part.pairs == -1).all() for part in drawn)
    with pytest.raises(ValueError, match="rows of 17 numbers; those of SEQ=16 have 50"):
        splitter([torch.zeros(2, 17, dtype=torch.int64)])
