"""What a model is, as numbers: for drawn settings, everything that is derived from its parameters.

``golden.json`` was written by ``python -m tests.families.golden`` before models were described in
``megads.families``, by the seven formulas that said each a part of it.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

from megads.checkpoint.convert.huggingface.config import architecture_of
from megads.checkpoint.convert.huggingface.names import tensors_of
from megads.checkpoint.convert.reshard import shares_of
from megads.checkpoint.format.shard_layout import parameters_of
from megads.config.rules.optimizer import smallest_side
from megads.config.schema import ModelConfig, RunConfig
from megads.config.stages import stage_steps, step_parameters
from megads.errors import CheckpointError
from megads.plan.flops import flops_per_token, products, train_flops_per_token
from megads.plan.memory import count_parameters, estimate, stages
from megads.plan.parts.activations import layer_bytes, recomputing_bytes, saved_bytes
from megads.plan.parts.whole_parameters import whole_state_bytes, whole_work_bytes

FILE = Path(__file__).with_name("golden.json")
CASES = 60
OPTIMIZERS = ["adamw", "muon", "sgd", "galoreadamw8bitperlayer", "shampoo", "sophiag"]
PLAIN: dict[str, dict[str, Any]] = {
    "llama": {"normalization": "rmsnorm", "activation": "swiglu"},
    "gpt": {"normalization": "layernorm", "activation": "gelu_tanh", "bias": True},
}


def draw_run(number: int) -> RunConfig:
    """Return the derived settings of case ``number``."""
    pick = random.Random(number)
    tensor, sequence = pick.choice([1, 1, 2, 4]), pick.choice([1, 1, 2])
    keys, uses = tensor * pick.choice([1, 1, 2, 3]), pick.choice([1, 1, 2, 4])
    layers = pick.randint(1, 9)
    stages = pick.randint(1, min(layers, 4))
    rope = pick.random() < 0.6
    seq = 16 * pick.randint(1, 8)
    model: dict[str, Any] = {
        "family": "llama" if rope else "gpt",
        "num_layers": layers,
        "hidden_size": 4 * tensor * pick.randint(2, 40),
        "num_heads": keys * uses,
        "num_kv_heads": keys,
        "head_dim": 2 * pick.randint(1, 20),
        "ffn_hidden_size": tensor * pick.randint(5, 90),
        "seq_length": seq,
        "max_positions": seq + pick.choice([0, 0, 7]),
        "vocab_size": pick.randint(100, 3000),
        "vocab_multiple": tensor * pick.choice([1, 8, 64, 128]),
        "normalization": pick.choice(["rmsnorm", "layernorm"]),
        "activation": pick.choice(["swiglu", "swiglu", "gelu", "gelu_tanh"]),
        "position_embedding": "rope" if rope else "learned",
        "bias": pick.random() < 0.4,
        "tied_embeddings": pick.random() < 0.4,
        "hidden_dropout": pick.choice([0.0, 0.1]),
        "attention_dropout": pick.choice([0.0, 0.1]),
        "init_std": 0.02,
    }
    if pick.random() < 0.6:  # what a class of transformers has
        model |= PLAIN[str(model["family"])]
        if not rope:
            model |= {"num_kv_heads": keys * uses, "hidden_size": keys * uses * model["head_dim"]}
    granularity = pick.choice(["none", "none", "selective", "full"])
    return RunConfig.model_validate(
        {
            "machine": pick.choice(["cpu", "generic"]),
            "model": model,
            "parallel": {
                "tensor": tensor,
                "pipeline": stages,
                "sequence": sequence,
                "data": 2,
                "zero_stage": pick.choice([0, 1, 2, 3]) if stages == 1 else pick.choice([0, 1]),
                "pipeline_split": pick.choice(["layers", "ends", "parameters"]),
                "scatter_norms": tensor > 1 and pick.random() < 0.5,
            },
            "train": {
                "micro_batch": pick.randint(1, 3),
                "grad_acc_steps": pick.randint(1, 5),
                "dtype": pick.choice(["fp32", "bf16"]),
            },
            "optim": {
                "optimizer": pick.choice(["adamw", "muon", "sgd", "galoreadamw8bitperlayer", "shampoo", "sophiag"])
            },
            "recompute": {
                "granularity": granularity,
                "method": pick.choice(["uniform", "block"]),
                "num_layers": pick.randint(1, 3),
            },
            "profile": {"flops_causal": pick.random() < 0.5},
        }
    )


def facts_of(run: RunConfig) -> dict[str, Any]:
    """Return everything that follows from the description of the model of ``run``."""
    model, grid = run.model, run.parallel
    ranks = 2 * grid.sequence * grid.tensor * grid.pipeline
    parts = products(model, model.seq_length, causal=run.profile.flops_causal)
    flops = flops_per_token(run)
    memory = estimate(run, ranks)
    return {
        "parameters": count_parameters(model),
        "tensors": _digest([(name, cut.shape, cut.dim, cut.parts) for name, cut in parameters_of(model).items()]),
        "steps": {str(degree): _digest(step_parameters(model, degree)) for degree in (1, 2, 4)},
        "stages": [steps.start for steps in stage_steps(run)],
        "products": [parts.projections, parts.core, parts.mlp, parts.logits, parts.layer],
        "flops": [train_flops_per_token(model, model.seq_length), flops.model, flops.recomputed],
        "smallest_side": smallest_side(model),
        "optimizer": [[whole_state_bytes(run, each, 4), whole_work_bytes(run, each, 4)] for each in stages(run)],
        "activations": [layer_bytes(run), *([saved_bytes(run, e), recomputing_bytes(run, e)] for e in stages(run))],
        "memory": [memory.weights, memory.gradients, memory.optimizer, memory.buffers, memory.activations],
        "files": _digest([[(s.name, s.first, s.count) for s in file] for file in shares_of(run)]),
        "hf": _hugging_face(model),
        "megatron": {style: _megatron(model, style) for style in ("legacy", "core", "core-te")},
    }


def _hugging_face(model: ModelConfig) -> str:
    try:
        architecture = architecture_of(model)
    except CheckpointError as error:
        return str(error)
    theirs = tensors_of(model, architecture)
    return architecture + _digest([(t.name, t.ours, t.first, t.rows, t.shape, t.transposed) for t in theirs])


def _megatron(model: ModelConfig, style: Any) -> str:
    from megads.checkpoint.convert.megatron.export import _stage
    from megads.checkpoint.convert.megatron.target import Target

    pipe = next(degree for degree in (3, 2, 1) if model.num_layers % degree == 0)
    stages = [_stage(model, Target(pipe=pipe, style=style), number) for number in range(pipe)]
    return _digest([[(w.theirs, w.ours, w.cut.shape, w.cut.dim, w.cut.parts) for w in s] for s in stages])


def _digest(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


if __name__ == "__main__":
    found = {str(number): facts_of(draw_run(number)) for number in range(CASES)}
    FILE.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "\n}\n")
