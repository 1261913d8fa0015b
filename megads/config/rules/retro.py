"""What a model that looks at neighbours cannot be combined with."""

from __future__ import annotations

from collections.abc import Iterator

from megads.config.engine_choice import ENGINE, choose
from megads.config.rules.advice import Change, Problem, each_of, multiples, nearest
from megads.config.schema import RunConfig
from megads.families.retro import first_layer
from megads.families.table import FAMILIES


def looks_at_neighbors(run: RunConfig) -> bool:
    """Return whether the model of ``run`` looks at neighbours."""
    return FAMILIES[run.model.family].samples == "retro"


def neighbors(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that samples are whole chunks, of which every rank gets as many, and that some layer looks at them."""
    model, grid = run.model, run.parallel
    if not looks_at_neighbors(run):
        return
    needed = first_layer(model.num_layers) + 1
    if model.num_layers < needed:
        text = f"NLAYERS={model.num_layers}: the first layer of retro that looks at neighbours is number {needed}"
        yield Problem(text, [{"model.num_layers": needed}, {"model.family": "gpt"}])
    chunk, whole = model.retro_chunk_length, model.retro_chunk_length * grid.sequence
    if model.seq_length % whole:
        over = f", which SP={grid.sequence} ranks share" if grid.sequence > 1 else ""
        text = f"SEQ={model.seq_length} is not a whole number of chunks of RETRO_CHUNK_LENGTH={chunk} tokens{over}"
        yield Problem(text, each_of("model.seq_length", nearest(model.seq_length, multiples(model.seq_length, whole))))
    retrieved = chunk * model.retro_retrieved_chunks
    if model.position_embedding == "learned" and retrieved > model.max_positions:
        text = (
            f"RETRO_CHUNK_LENGTH={chunk} x RETRO_RETRIEVED_CHUNKS={model.retro_retrieved_chunks} tokens of a neighbour "
            f"are more than the table of MAX_POSITIONS={model.max_positions} learned positions"
        )
        yield Problem(text, [{"model.max_positions": retrieved}], overridable=("model.max_positions",))
    if grid.scatter_norms and retrieved % grid.tensor:
        text = f"SCATTER_NORMS=1: {retrieved} tokens of a neighbour cannot be split over TP={grid.tensor} ranks"
        yield Problem(text, [{"parallel.scatter_norms": False}])


def others(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check what else the model has no form for."""
    model, data = run.model, run.data
    if not looks_at_neighbors(run):
        return
    if run.parallel.pipeline > 1:
        text = f"PP={run.parallel.pipeline}: layers of retro share the encoder of one of them, on one stage"
        yield Problem(text, [{"parallel.pipeline": 1}])
    again = run.recompute
    by_deepspeed = choose(run, world_size).kind == "deepspeed"
    if again.granularity == "full" and by_deepspeed and (run.parallel.zero_stage == 3 or again.engine == "deepspeed"):
        text = "RECOMPUTE=full with ZERO_STAGE=3 or RECOMPUTE_WITH=deepspeed keeps one input of a layer, and layers "
        ways: list[Change] = [{ENGINE: "native", "recompute.engine": "torch"}, {"recompute.granularity": "selective"}]
        yield Problem(f"{text}of retro have neighbours too", ways)
    if model.norm_position != "before":
        text = f"NORM_POSITION={model.norm_position} is not for retro, whose norms are before attention and MLP"
        yield Problem(text, [{"model.norm_position": "before"}])
    if run.finetune.is_chat and model.retro_attention_gate:
        text = f"RETRO_ATTENTION_GATE={model.retro_attention_gate:g}: chats have no neighbours, TASK=chat"
        name = "model.retro_attention_gate"
        yield Problem(text, [{name: 0.0}], overridable=(name,))
    if not run.finetune.is_chat and (data.reset_attention_mask or data.reset_position_ids):
        off: Change = {"data.reset_attention_mask": False, "data.reset_position_ids": False}
        text = "RESET_ATTENTION_MASK and RESET_POSITION_IDS are not for retro, whose chunks may hold ends of documents"
        yield Problem(text, [off])


RULES = (neighbors, others)
