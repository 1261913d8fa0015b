"""The parameters of a model as checkpoints see them: names, and how they are cut."""

from __future__ import annotations

from megads.checkpoint.format.shard_layout import ShardLayout
from megads.config.schema import ModelConfig
from megads.families.decoder import spec_of


def parameters_of(model: ModelConfig) -> dict[str, ShardLayout]:
    """Return every parameter of a derived ``model`` by its name in ``megads.models.gpt.GPT``, layer by layer."""
    return {each.name: ShardLayout(each.shape, each.dim, each.parts) for each in spec_of(model).parameters()}
