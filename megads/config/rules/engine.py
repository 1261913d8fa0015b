"""Rules of the engine, of DeepSpeed and of recomputation."""

from __future__ import annotations

from collections.abc import Iterator

from megads.config.engine_choice import ENGINE, Kind, choose, missing, needed, shown
from megads.config.rules.advice import Change, Problem, divisors, each_of, nearest
from megads.config.schema import RunConfig
from megads.config.sizes import data_degree
from megads.config.stages import chunk_steps
from megads.config.tree import env_name, fields, value_of
from megads.families.decoder import spec_of
from megads.text.plural import listed

ZERO, PP, TP = "parallel.zero_stage", "parallel.pipeline", "parallel.tensor"
HPZ = "deepspeed.hpz_partition_size"
OPTIMIZER, PARAMS = "deepspeed.offload_optimizer", "deepspeed.offload_params"
KIND, METHOD, LAYERS, WITH = "recompute.granularity", "recompute.method", "recompute.num_layers", "recompute.engine"
PARTITION, CONTIGUOUS = "recompute.partition_activations", "recompute.contiguous_memory"
ON_HOST, CHUNK, LONG = "recompute.cpu_checkpointing", "recompute.loss_chunk", "recompute.long_context"
OF_LAYERS = (PARTITION, CONTIGUOUS, ON_HOST)
DEEPSPEED_ONLY = (PARTITION, CONTIGUOUS, "recompute.synchronize", "recompute.profile")


def choice(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that the engine of the run does all that the settings ask for."""
    kind = choose(run, world_size).kind
    for row, names in missing(run, kind):
        given = listed([shown(run, name) for name in names])
        off = {name: fields()[name].default for name in names}
        if run.engine.kind == "auto":
            text = f"{needed(run, 'deepspeed')} needs ENGINE=deepspeed, and {needed(run, 'native')} ENGINE=native"
            others = {name: fields()[name].default for _, names in missing(run, _other(kind)) for name in names}
            yield Problem(text, [off, others])
        else:
            yield Problem(f"ENGINE={kind} does not do {given} ({row.what})", [{ENGINE: _other(kind)}, off])


def _other(kind: Kind) -> Kind:
    return "native" if kind == "deepspeed" else "deepspeed"


def hpz(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check ZeRO++'s second copy of the weights (arXiv 2306.10209)."""
    size, grid = run.deepspeed.hpz_partition_size, run.parallel
    if size == 1:
        return
    given = f"ZERO_HPZ_PARTITION_SIZE={size}"
    sharers = data_degree(run, world_size) * grid.sequence
    if grid.zero_stage != 3:
        text = f"{given} needs ZeRO 3, and ZERO_STAGE={grid.zero_stage}"
        yield Problem(text, [{ZERO: 3}, {HPZ: 1}, {ZERO: 3, PP: 1}])
    elif sharers % size:
        yield Problem(
            f"{given} does not divide the {sharers} ranks (DP x SP) that share the weights",
            each_of(HPZ, nearest(size, divisors(sharers))),
        )
    elif run.deepspeed.offload_params != "none":
        text = f"{given} keeps weights on the device that OFFLOAD_PARAMS={run.deepspeed.offload_params} takes from it"
        yield Problem(text, [{HPZ: 1}, {PARAMS: "none"}])


def offload(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that what is offloaded is a partition, and has a place to go to."""
    deepspeed, stage = run.deepspeed, run.parallel.zero_stage
    if deepspeed.offload_params != "none" and stage != 3:
        yield Problem(
            f"OFFLOAD_PARAMS={deepspeed.offload_params} moves the partitions of ZeRO 3, and ZERO_STAGE={stage}",
            [{ZERO: 3}, {PARAMS: "none"}],
        )
    if deepspeed.offload_optimizer != "none" and stage == 0:
        yield Problem(
            f"OFFLOAD_OPTIMIZER={deepspeed.offload_optimizer} moves the partitions of ZeRO, and ZERO_STAGE=0",
            [{ZERO: 1}, {OPTIMIZER: "none"}],
        )
    if deepspeed.offload_optimizer == "nvme" and stage != 3:
        text = f"OFFLOAD_OPTIMIZER=nvme needs ZeRO 3, and ZERO_STAGE={stage}"
        yield Problem(text, [{OPTIMIZER: "cpu"}, {ZERO: 3}])
    for setting in (OPTIMIZER, PARAMS):
        if value_of(run, setting) == "nvme" and not deepspeed.nvme_path:
            text = f"{env_name(setting)}=nvme has no NVME_PATH"
            yield Problem(text, [{setting: "cpu"}], "set NVME_PATH, a folder on a local NVMe disk")
    if deepspeed.offload_optimizer != "none" and deepspeed.zero_force_ds_cpu_optimizer:
        yield Problem(
            "ZERO_FORCE_DS_CPU_OPTIMIZER=1 demands an optimizer that DeepSpeed compiles on every host",
            [{"deepspeed.zero_force_ds_cpu_optimizer": False}, {OPTIMIZER: "none"}],
        )


def precision(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that gradients are summed and sent in a type that can hold them."""
    dtype, deepspeed = run.train.dtype, run.deepspeed
    name = "deepspeed.grad_accum_dtype"
    if deepspeed.grad_accum_dtype not in ("fp32", dtype):
        yield Problem(
            f"GRAD_ACCUM_DTYPE={deepspeed.grad_accum_dtype} cannot sum gradients of DTYPE={dtype}",
            [{name: "fp32"}, {name: dtype}],
        )
    if deepspeed.communication_data_type == "fp16" and dtype != "fp16":
        yield Problem(
            f"COMMUNICATION_DATA_TYPE=fp16 loses gradients of DTYPE={dtype}, which have no loss scale",
            [{"deepspeed.communication_data_type": "fp32"}, {"deepspeed.communication_data_type": "bf16"}],
        )


def recompute(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that every option of recomputation has something to act on."""
    given = run.recompute
    yield from _without_effect(run)
    if given.granularity == "full" and given.method == "block":
        sizes = [_layers(run, steps) for chunks in chunk_steps(run) for steps in chunks]
        part = "a stage" if len(sizes) == run.parallel.pipeline else "a virtual stage"
        where = f"the {max(sizes)} layers of {part}" if len(sizes) > 1 else f"NLAYERS={max(sizes)}"
        largest = max(sizes)
    else:
        largest = spec_of(run.model).num_layers
        where = f"NLAYERS={largest}"
    if given.num_layers > largest:
        yield Problem(
            f"RECOMPUTE_NUM_LAYERS={given.num_layers} is more than {where}",
            [{LAYERS: largest}, {LAYERS: 1}],
            overridable=(LAYERS,),
        )
    yield from _partition(run)
    yield from _parts(run)


def _without_effect(run: RunConfig) -> Iterator[Problem]:
    """Refuse options of a recomputation that is not done."""
    given, kind = run.recompute, f"RECOMPUTE={run.recompute.granularity}"
    full: Change = {KIND: "full"}
    if given.num_layers != 1 and given.granularity != "full":
        text = f"RECOMPUTE_NUM_LAYERS={given.num_layers} needs RECOMPUTE=full, and {kind}"
        yield Problem(text, [full, {LAYERS: 1}])
    if given.method != "uniform" and given.granularity != "full":
        text = f"RECOMPUTE_METHOD={given.method} needs RECOMPUTE=full, and {kind}"
        yield Problem(text, [full], "leave RECOMPUTE_METHOD unset")
    wanted = [name for name in (*DEEPSPEED_ONLY, ON_HOST) if value_of(run, name)]
    off = dict.fromkeys(wanted, False)
    for name in wanted:
        # The inputs of an attention core are neither split nor moved.
        of_layers = given.granularity == "selective" and name in OF_LAYERS
        if given.granularity == "none" or of_layers:
            only_deepspeed = name in DEEPSPEED_ONLY and given.engine != "deepspeed"
            text = f"{env_name(name)}=1 needs RECOMPUTE=full, and {kind}"
            # One option may have asked for both.
            both: list[Change] = [{**off, WITH: "torch"}] if given.engine == "deepspeed" else []
            yield Problem(text, [{**full, **({WITH: "deepspeed"} if only_deepspeed else {})}, off, *both])
    foreign = [name for name in wanted if name in DEEPSPEED_ONLY]
    if foreign and given.engine != "deepspeed":
        text = f"{env_name(foreign[0])}=1 needs DeepSpeed's checkpoint function, and RECOMPUTE_WITH={given.engine}"
        yield Problem(text, [{WITH: "deepspeed"}, dict.fromkeys(foreign, False)])
    if given.engine == "deepspeed" and given.granularity == "none":
        text = f"RECOMPUTE_WITH=deepspeed has nothing to recompute, and {kind}"
        yield Problem(text, [full, {KIND: "selective"}, {WITH: "torch"}])


def _parts(run: RunConfig) -> Iterator[Problem]:
    """Check what never stands whole, and the plan for it."""
    given = run.recompute
    if given.long_context and given.engine == "deepspeed":
        text = "LONG_CONTEXT=1 plans with torch's recomputation, and RECOMPUTE_WITH=deepspeed"
        yield Problem(text, [{WITH: "torch"}, {LONG: False}])
    if given.long_context and given.granularity == "selective":
        text = "LONG_CONTEXT=1 recomputes whole layers where memory is short, and RECOMPUTE=selective"
        yield Problem(text, [{KIND: "full"}, {LONG: False}])
    if given.loss_chunk and run.model.num_classes:
        text = f"LOSS_CHUNK={given.loss_chunk} cuts the logits of a vocabulary, and a classifier has none"
        yield Problem(text, [{CHUNK: 0}])


def _partition(run: RunConfig) -> Iterator[Problem]:
    given, grid = run.recompute, run.parallel
    off: Change = {PARTITION: False, **({CONTIGUOUS: False} if given.contiguous_memory else {})}
    if given.contiguous_memory and not given.partition_activations:
        ways = [{PARTITION: True}, {CONTIGUOUS: False}]
        yield Problem("CONTIGUOUS_CHECKPOINTING=1 is a buffer for PARTITION_ACTIVATIONS=1, which is off", ways)
    if given.partition_activations and grid.tensor == 1:
        degrees = nearest(1, divisors(run.model.num_heads))
        text = "PARTITION_ACTIVATIONS=1 splits kept inputs over the TP ranks, and TP=1"
        yield Problem(text, [off, *each_of(TP, degrees)])
    if given.partition_activations and grid.tensor > 1 and grid.scatter_norms:
        text = "PARTITION_ACTIVATIONS=1 splits what SCATTER_NORMS=1 has split already"
        yield Problem(text, [off, {"parallel.scatter_norms": False}])
    elements = run.train.micro_batch * run.model.seq_length // grid.sequence * run.model.hidden_size
    if given.partition_activations and elements % grid.tensor:
        yield Problem(f"PARTITION_ACTIVATIONS=1 cannot split {elements} elements over TP={grid.tensor} ranks", [off])


def _layers(run: RunConfig, steps: range) -> int:
    return sum(0 < step <= spec_of(run.model).num_layers for step in steps)


RULES = (choice, hpz, offload, precision, recompute)
