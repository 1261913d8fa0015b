"""How long the stages of a run's pipeline wait, by the work of each. Arithmetic, no torch."""

from __future__ import annotations

from fractions import Fraction

from megads.config.engine_choice import needed
from megads.config.pipeline.clock import Costs
from megads.config.pipeline.drawing import drawing_of
from megads.config.pipeline.idle import idle_share
from megads.config.pipeline.repeating import ends_of
from megads.config.schema import RunConfig
from megads.config.stages import SPLITS, chunk_steps, schedule_of, virtual_stages
from megads.families.decoder import spec_of
from megads.families.encoder_decoder import has_decoder
from megads.plan.flops import products
from megads.plan.parts.encoder_decoder import again_products, layer_products, logit_products

LEAST_TO_SHORTEN = 0.05
"""Idle share of a step below which nothing shorter is named."""

MOST_CLOCKED = 20_000
"""Forward passes of a step that are simulated, where its rounds do not repeat exactly."""


def idle_of(run: RunConfig) -> float:
    """Return the share of a step in which each stage of a derived ``run`` waits, if all take the same time."""
    sizes = (run.parallel.pipeline, virtual_stages(run), run.train.grad_acc_steps)
    return float(idle_share(schedule_of(run), *sizes, _costs(run)))


def uneven_idle(run: RunConfig) -> float:
    """Return the mean share of a step in which the stages of a derived ``run`` wait, with the work that each has.

    Counted are the matrix products of its layers and of the logits.
    """
    stages, chunks, batches = run.parallel.pipeline, virtual_stages(run), run.train.grad_acc_steps
    work = work_shares(run)
    forward, backward, weight = (float(each) for each in _each(run))
    costs = Costs(forward, backward, weight, work=work)
    ends = ends_of(schedule_of(run), stages, chunks, batches, costs, MOST_CLOCKED)
    return float(1 - sum(each.busy for each in ends) / (stages * max(each.end for each in ends)))


def shorter(run: RunConfig) -> str:
    """Return a setting that shortens the idle time of ``run``, and to what; empty: nothing to gain, or it cannot."""
    grid = run.parallel
    is_free = grid.pipeline_split in SPLITS and spec_of(run.model).num_layers >= 2 * grid.pipeline
    is_taken = run.engine.kind == "deepspeed" or needed(run, "deepspeed")
    if schedule_of(run) != "1f1b" or not is_free or is_taken or idle_of(run) < LEAST_TO_SHORTEN:
        return ""
    share = float(idle_share("interleaved", grid.pipeline, 2, run.train.grad_acc_steps))
    return f"{share:.0%} with VIRTUAL_STAGES=2" if share < idle_of(run) else ""


def pipeline_lines(run: RunConfig) -> list[str]:
    """Return the drawing of a run's schedule; empty without a pipeline, or where it does not fit a screen."""
    stages = run.parallel.pipeline
    return drawing_of(schedule_of(run), stages, virtual_stages(run), run.train.grad_acc_steps) if stages > 1 else []


def pass_shares(run: RunConfig) -> tuple[float, float, float]:
    """Return which shares of a micro-batch are forward, backward of the inputs and weight gradients."""
    forward, backward, weight = _each(run)
    whole = forward + backward + weight
    return forward / whole, backward / whole, weight / whole


def _costs(run: RunConfig) -> Costs:
    forward, backward, weight = _each(run)
    return Costs(Fraction(forward), Fraction(backward), Fraction(weight))


def _each(run: RunConfig) -> tuple[int, int, int]:
    """Return the multiply-adds of a micro-batch: forward, backward of the inputs, weight gradients.

    Attention's core has no weights; what is computed again belongs to the backward pass.
    """
    model, given = run.model, run.recompute
    if has_decoder(model):
        layers = layer_products(model, causal=True)
        rest, core = sum(each.rest for each in layers) + logit_products(model), sum(each.core for each in layers)
        return rest + core, rest + 2 * core + again_products(run, layers), rest
    parts = products(model, model.seq_length, causal=True)
    rest, core = model.num_layers * (parts.projections + parts.mlp) + parts.logits, model.num_layers * parts.core
    again = {"none": 0, "selective": core, "full": model.num_layers * parts.layer}[given.granularity]
    return rest + core, rest + 2 * core + again, rest


def work_shares(run: RunConfig) -> tuple[tuple[float, ...], ...]:
    """Return the work of every chunk of every stage, as a share of the mean."""
    model = run.model
    if has_decoder(model):
        layers = [each.whole for each in layer_products(model, causal=True)]
        logits = logit_products(model)
    else:
        parts = products(model, model.seq_length, causal=True)
        layers, logits = [parts.layer] * model.num_layers, parts.logits
    weights = [0, *layers, logits]  # of the steps
    found = [[sum(weights[step] for step in steps) for steps in chunks] for chunks in chunk_steps(run)]
    mean = sum(map(sum, found)) / sum(map(len, found))
    return tuple(tuple(each / mean for each in chunks) for chunks in found)
