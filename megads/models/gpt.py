"""The decoder: GPT and Llama are two configurations of it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from megads.config.derive import padded_vocab_size
from megads.config.schema import ModelConfig
from megads.dist.groups import Groups
from megads.dist.rng import RngStreams
from megads.errors import ConfigError
from megads.models.attention import Attention
from megads.models.layers import dropout, make_mlp, make_norm
from megads.models.rope import Rotary
from megads.parallel.loss import vocab_parallel_cross_entropy
from megads.parallel.tensor import ColumnParallelLinear, VocabParallelEmbedding, column_parallel_linear, parameter


class Positions(nn.Module):
    """A learned vector for every position, whole on every rank."""

    def __init__(self, num_positions: int, width: int):
        super().__init__()
        self.weight = parameter((num_positions, width), None)

    def forward(self, length: int) -> Tensor:
        """Return the first ``length`` rows, ``[length, width]``."""
        if length > self.weight.shape[0]:
            raise ConfigError(
                f"a sequence of {length} tokens does not fit MAX_POSITIONS={self.weight.shape[0]}; "
                "raise MAX_POSITIONS or lower SEQ"
            )
        return self.weight[:length]


class Block(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(self, model: ModelConfig, groups: Groups, rotary: Rotary | None, rng: RngStreams | None):
        super().__init__()
        self.dropout = model.hidden_dropout
        self.input_norm = make_norm(model)
        self.attention = Attention(model, groups, rotary, rng)
        self.post_norm = make_norm(model)
        self.mlp = make_mlp(model, groups)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, S, H]`` to ``[B, S, H]``."""
        x = x + dropout(self.attention(self.input_norm(x)), self.dropout, self.training)
        return x + dropout(self.mlp(self.post_norm(x)), self.dropout, self.training)


class GPT(nn.Module):
    """A causal language model over a vocabulary that is padded and split over tensor-parallel ranks.

    Parameter names and full shapes do not depend on the layout; every parameter carries
    ``shard``, which says how it is cut (None: whole on every rank). Built with
    uninitialised float32 weights on the CPU; see ``megads.models.build``.

    Args:
        model: sizes; derived values must be filled in.
        groups: for the tensor-parallel group.
        rng: the stream for dropout inside split regions; None: the default generator.

    Raises:
        ConfigError: a size can not be split over the tensor-parallel ranks.
        DependencyError: an optional package that ``model`` asks for is missing.
    """

    def __init__(self, model: ModelConfig, groups: Groups, *, rng: RngStreams | None = None):
        super().__init__()
        self.config, self.group = model, groups.tensor
        rows = padded_vocab_size(model)
        rotary = Rotary(model.head_dim, model.rope_theta) if model.position_embedding == "rope" else None
        self.embedding = VocabParallelEmbedding(rows, model.hidden_size, groups.tensor)
        self.positions = Positions(model.max_positions, model.hidden_size) if rotary is None else None
        self.layers = nn.ModuleList(Block(model, groups, rotary, rng) for _ in range(model.num_layers))
        self.final_norm = make_norm(model)
        tied = model.tied_embeddings
        self.head = None if tied else ColumnParallelLinear(model.hidden_size, rows, groups.tensor, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the mean loss, or without labels this rank's columns of the logits.

        Args:
            tokens: ``[B, S]`` int64.
            labels: ``[B, S]`` int64 below ``vocab_size``: the token that follows each.

        Returns:
            ``[]`` float32 (float64 in a float64 model), or ``[B, S, V/t]`` with V the
            padded vocabulary; columns of padding carry no meaning.
        """
        x = tokens
        for step in self.steps():
            x = step(x)
        return x if labels is None else self.loss(x, labels)

    def steps(self) -> list[Callable[[Tensor], Tensor]]:
        """Return what the model does, in order; each step's output is the next one's input.

        A pipeline is cut between two of them.
        """
        return [self.embed, *self.layers, self.logits]

    def embed(self, tokens: Tensor) -> Tensor:
        """Map ``[B, S]`` tokens to ``[B, S, H]``."""
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(tokens.shape[1])
        return dropout(x, self.config.hidden_dropout, self.training)

    def logits(self, x: Tensor) -> Tensor:
        """Map ``[B, S, H]`` to this rank's columns ``[B, S, V/t]`` of the logits."""
        x = self.final_norm(x)
        if self.head is not None:
            return self.head(x)
        return column_parallel_linear(x, self.embedding.weight, None, self.group)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over all tokens of the cross entropy."""
        return vocab_parallel_cross_entropy(logits, labels, self.group, self.config.vocab_size).mean()
