"""Every layout on the same model and the same samples, and the one-rank loop they must equal."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from megads.config.derive import derive
from megads.config.engine_choice import needed
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.data.samples.masked.rows import BertRow, T5Row
from megads.data.samples.retro.rows import RetroRow
from tests.engine.plain import ENGINES, let_fp16_run, without_engine
from tests.pairs import SEED
from tests.ranks import groups_of

VOCAB = 100
SAMPLES = 8  # a step
STEPS = 3
SIZES = {
    "model.num_layers": "4",
    "model.hidden_size": "32",
    "model.num_heads": "8",
    "model.num_kv_heads": "8",
    "model.head_dim": "4",
    "model.ffn_hidden_size": "48",
    "model.seq_length": "16",
    "model.vocab_multiple": "8",
    "train.micro_batch": "2",
    "train.global_batch": str(SAMPLES),
    "train.train_iters": "20",
    "train.dtype": "fp32",
    "optim.clip_grad": "0.3",
    "optim.weight_decay": "0.1",
}
T5 = {"model.family": "t5", "model.decoder_layers": "2", "model.decoder_seq_length": "8", "data.vocab_extra_ids": "0"}
T5_RELATIVE = {
    **T5,
    "model.hidden_dropout": "0",
    "model.attention_dropout": "0",
    "model.normalization": "rmsnorm",
    "model.activation": "geglu_tanh",
    "model.position_embedding": "relative",
    "model.relative_buckets": "8",
    "model.relative_distance": "12",
    "model.bias": "false",
    "model.tied_embeddings": "false",
}
RETRO = {
    "model.family": "retro",
    "model.num_layers": "6",
    "model.retro_chunk_length": "4",
    "model.hidden_dropout": "0",
    "model.attention_dropout": "0",
    "model.retro_encoder_hidden_dropout": "0",
    "model.retro_encoder_attention_dropout": "0",
}
KINDS: dict[str, dict[str, str]] = {
    "llama": {},
    "gqa": {"model.num_kv_heads": "4"},
    "mqa": {"model.num_kv_heads": "1"},
    "uneven": {"model.num_heads": "6", "model.num_kv_heads": "3", "model.hidden_size": "24"},
    "gpt": {"model.family": "gpt", "model.hidden_dropout": "0", "model.attention_dropout": "0"},
    "gpt-dropout": {"model.family": "gpt"},
    "qwen3": {"model.qk_norm": "head", "model.num_kv_heads": "4", "model.head_dim": "6"},
    "olmo2": {"model.qk_norm": "all", "model.norm_position": "after", "model.num_kv_heads": "4"},
    "bert": {"model.family": "bert", "model.hidden_dropout": "0", "model.attention_dropout": "0"},
    "bert-dropout": {"model.family": "bert"},
    "bert-original": {
        "model.family": "bert",
        "model.hidden_dropout": "0",
        "model.attention_dropout": "0",
        "model.norm_position": "behind_sum",
    },
    "bert-tokens": {
        "model.family": "bert",
        "model.hidden_dropout": "0",
        "model.attention_dropout": "0",
        "model.binary_head": "false",
    },
    "t5": {**T5, "model.hidden_dropout": "0", "model.attention_dropout": "0"},
    "t5-dropout": T5,
    "t5-v1.1": T5_RELATIVE,
    "t5-v1.0": {**T5_RELATIVE, "model.activation": "relu", "model.tied_embeddings": "true"},
    "retro": RETRO,
    "retro-dropout": {**RETRO, "model.hidden_dropout": "0.1", "model.retro_encoder_hidden_dropout": "0.1"},
    "llama-tied": {"model.tied_embeddings": "true"},
    "gpt-untied": {
        "model.family": "gpt",
        "model.hidden_dropout": "0",
        "model.attention_dropout": "0",
        "model.tied_embeddings": "false",
    },
}


@dataclass(frozen=True)
class Layout:
    """One way to share the work: a kind of model, degrees, and further settings."""

    kind: str = "llama"
    tp: int = 1
    pp: int = 1
    sp: int = 1
    dp: int = 1
    zero: int = 1
    more: dict[str, str] = field(default_factory=dict, hash=False)
    engine: str = "deepspeed"

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.sp * self.dp

    @property
    def degrees(self) -> dict[str, int]:
        return {"pipe": self.pp, "data": self.dp, "seq": self.sp, "tensor": self.tp}

    def __str__(self) -> str:
        more = "".join(f"-{key.rpartition('.')[2]}={value}" for key, value in self.more.items())
        more += "" if self.engine == "deepspeed" else f"-{self.engine}"
        return f"{self.kind}-tp{self.tp}pp{self.pp}sp{self.sp}dp{self.dp}-z{self.zero}{more}"

    def on(self, engine: str) -> Layout:
        """Return the same on ``engine``, one of ``ENGINES``; what only DeepSpeed reads is left out for another."""
        return replace(self, engine=engine, more=without_engine(self.more) if engine == "native" else self.more)

    @property
    def is_native(self) -> bool:
        """Whether the native engine can do it."""
        return not needed(self.on("native").run(), "deepspeed")

    def run(self, **changes: str) -> RunConfig:
        """Return the derived settings."""
        overrides = {
            **SIZES,
            **KINDS[self.kind],
            "parallel.tensor": str(self.tp),
            "parallel.pipeline": str(self.pp),
            "parallel.sequence": str(self.sp),
            "parallel.zero_stage": str(self.zero),
            "engine.kind": self.engine,
            **self.more,
            **changes,
        }
        asked = resolve(None, env={}, overrides=overrides, machine="generic", root=Path(__file__).parents[2])
        return derive(asked, num_hosts=1, ranks_per_host=self.ranks, vocab_size=VOCAB).run


def batches(run: RunConfig, step: int, data_rank: int) -> list[Any]:
    """Return a data rank's micro-batches of ``step``: every layout gets the same samples, :data:`SAMPLES` at most.

    Documents end unevenly (token 7), so that with ``eod_mask_loss`` the counted tokens differ
    from rank to rank.
    """
    import torch

    generator = torch.Generator().manual_seed(step)
    if run.model.family == "bert":
        samples = hidden_samples(run.model.seq_length, generator)
    elif run.model.family == "t5":
        samples = cut_out_samples(run.model.seq_length, run.model.decoder_seq_length, generator)
    elif run.model.family == "retro":
        samples = torch.randint(0, VOCAB, (SAMPLES, RetroRow.of(run.model).width), generator=generator)
    else:
        samples = torch.randint(0, VOCAB, (SAMPLES, run.model.seq_length + 1), generator=generator)
        samples[: SAMPLES // 2, : run.model.seq_length // 4 + step] = 7
    samples = samples[: run.train.global_batch]
    blocks = samples.view(run.train.grad_acc_steps, run.parallel.data, run.train.micro_batch, -1)
    return [block[data_rank] for block in blocks]


def hidden_samples(length: int, generator: Any) -> Any:
    """Return rows of BERT with unequal lengths and unequal numbers of hidden tokens, most of them in the first half."""
    import torch

    row, place = BertRow(length), torch.arange(length)
    samples = torch.zeros(SAMPLES, row.width, dtype=torch.int64)
    lengths = torch.randint(4, length + 1, (SAMPLES,), generator=generator)
    real = place < lengths[:, None]
    text, words = (torch.randint(1, VOCAB, (SAMPLES, length), generator=generator) for _ in range(2))
    chance = torch.rand(SAMPLES, length, generator=generator) * (1 + 2 * (place >= length // 2))
    hidden = real & (chance < torch.arange(SAMPLES)[:, None] / SAMPLES)
    hidden[:, 1] = True
    samples[:, row.text] = text * real
    samples[:, row.types] = (place >= lengths[:, None] // 2) & real
    samples[:, row.labels] = words.masked_fill(~hidden, -1)
    samples[:, row.length] = lengths
    samples[:, row.is_random] = torch.randint(0, 2, (SAMPLES,), generator=generator)
    return samples


def cut_out_samples(encoder: int, decoder: int, generator: Any) -> Any:
    """Return rows of T5 with unequal lengths of either text."""
    import torch

    row = T5Row(encoder, decoder)
    samples = torch.zeros(SAMPLES, row.width, dtype=torch.int64)
    lengths, said = (torch.randint(2, n + 1, (SAMPLES,), generator=generator) for n in (encoder, decoder))
    text, start, words = (
        torch.randint(1, VOCAB, (SAMPLES, n), generator=generator) for n in (encoder, decoder, decoder)
    )
    samples[:, row.text_enc] = text * (torch.arange(encoder) < lengths[:, None])
    samples[:, row.text_dec] = start * (torch.arange(decoder) < said[:, None])
    samples[:, row.labels] = words.masked_fill(torch.arange(decoder) >= said[:, None], -1)
    samples[:, row.length_enc], samples[:, row.length_dec] = lengths, said
    return samples


def plain_loss(model: Any, run: RunConfig, batch: Any, masked: bool = False) -> Any:
    """Return the loss of a whole global batch on one rank, by torch's own cross entropy."""
    import torch
    from torch.nn.functional import cross_entropy

    from megads.parallel.documents import Documents, Lengths

    if run.model.family == "bert":
        row = BertRow(run.model.seq_length)
        documents = Documents(lengths=Lengths(batch[:, row.length], row.seq_length), types=batch[:, row.types])
        outputs = model(batch[:, row.text], documents=documents)
        logits, pairs = outputs if run.model.binary_head else (outputs, None)
        loss = cross_entropy(logits[..., :VOCAB].flatten(0, 1), batch[:, row.labels].flatten(), ignore_index=-1)
        return loss if pairs is None else loss + cross_entropy(pairs, batch[:, row.is_random])
    if run.model.family == "t5":
        t5 = T5Row(run.model.seq_length, run.model.decoder_seq_length)
        documents = Documents(lengths=Lengths(batch[:, t5.length_enc], t5.encoder_length))
        logits = model(batch[:, : t5.labels.start], documents=documents)
        return cross_entropy(logits[..., :VOCAB].flatten(0, 1), batch[:, t5.labels].flatten(), ignore_index=-1)
    if run.model.family == "retro":
        retro, length = RetroRow.of(run.model), run.model.seq_length
        tokens = torch.cat([batch[:, :length], batch[:, retro.neighbors]], dim=1)
        logits = model(tokens, documents=Documents(encoder_tokens=length))
        return cross_entropy(logits[..., :VOCAB].flatten(0, 1), batch[:, 1 : length + 1].flatten())
    tokens, labels = batch[:, :-1], batch[:, 1:]
    if masked:
        labels = labels.masked_fill(tokens == 7, -100)
    return cross_entropy(model(tokens)[..., :VOCAB].flatten(0, 1), labels.flatten())


def rate(step: int) -> float:
    return 1e-2 * (step + 1) / 6


def on_both(layouts: Sequence[Layout]) -> list[Layout]:
    """Return ``layouts`` on DeepSpeed, then those that the native engine can do on that."""
    return [*layouts, *(layout.on("native") for layout in layouts if layout.is_native)]


def on_either(layouts: Sequence[Layout]) -> list[Layout]:
    """Return each of ``layouts`` on one engine, drawn where it runs on both: for cases that cost seconds."""
    drawn = random.Random(f"engines/{SEED}")
    return [layout.on(drawn.choice(ENGINES)) if layout.is_native else layout for layout in layouts]


def eod_of(run: RunConfig) -> int | None:
    return 7 if run.data.eod_mask_loss else None


def one_rank(
    kind: str, masked: bool = False, steps: int = STEPS, lr: Callable[[int], float] = rate
) -> tuple[list[float], list[float]]:
    """Return the losses and gradient norms of a plain torch loop: no engine, no groups, no micro-batches."""
    return one_rank_and_weights(kind, masked, steps, lr, KINDS[kind].get("model.num_layers", "4"))[:2]


@cache
def one_rank_and_weights(
    kind: str,
    masked: bool = False,
    steps: int = STEPS,
    lr: Callable[[int], float] = rate,
    layers: str = "4",
    more: tuple[tuple[str, str], ...] = (),
) -> tuple[list[float], list[float], dict[str, Any]]:
    """Return what :func:`one_rank` does, and the weights by name; not to be changed: they are kept.

    ``more`` are further settings; one micro-batch is the global batch.
    """
    import torch

    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model
    from tests.engine.plain import plain_optimizer

    sizes = {"model.num_layers": layers, "train.micro_batch": str(SAMPLES), **dict(more)}
    run = Layout(kind).run(**sizes)
    model = build_model(run, Groups(Grid(), 0))
    optimizer = plain_optimizer(model, run)
    losses, norms = [], []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr(step)
        (batch,) = batches(run, step, 0)
        loss = plain_loss(model, run, batch, masked)
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), run.optim.clip_grad)))
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms, dict(model.named_parameters())


def train_on(engine: Any, run: RunConfig, groups: Any, steps: range, lr: Callable[[int], float] = rate) -> list[Any]:
    """Do ``steps``; return every step's result."""
    return [engine.train_step(batches(run, step, groups.data_rank), lr(step)) for step in steps]


def train(layout: Layout, steps: int = STEPS, **changes: str) -> list[Any]:
    """Train this rank's part of ``layout``; return every step's result."""
    engine, run, groups = engine_of(layout, **changes)
    return train_on(engine, run, groups, range(steps))


def engine_of(layout: Layout, **changes: str) -> tuple[Any, RunConfig, Any]:
    """Return this rank's engine, the settings and the groups."""
    let_fp16_run()
    import torch

    from megads.engine.build import make_engine

    run, groups, device = layout.run(**changes), groups_of(**layout.degrees), torch.device("cpu")
    return make_engine(run, groups, device, eod_of(run)), run, groups
