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
from megads.parallel.recompute import Recompute
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

    One object is one pipeline stage. Names and full shapes do not depend on the layout; every parameter carries
    ``shard``, which says how it is cut (None: whole on every rank). Built with
    uninitialised float32 weights on the CPU; see ``megads.models.build``.

    Args:
        model: sizes; derived values must be filled in.
        groups: for the tensor-parallel and the sequence-parallel group.
        rng: the stream for dropout inside split regions; None: the default generator.
        steps: what this pipeline stage holds, see ``megads.config.stages``; None: everything.
        scatter_norms: Megatron's sequence parallelism (arXiv 2205.05198, section 4.2.2).
        recompute: what is computed again in the backward pass; None: nothing.

    Raises:
        ConfigError: a size can not be split over the tensor-parallel ranks.
        DependencyError: an optional package that ``model`` asks for is missing.
    """

    def __init__(
        self,
        model: ModelConfig,
        groups: Groups,
        *,
        rng: RngStreams | None = None,
        steps: range | None = None,
        scatter_norms: bool = False,
        recompute: Recompute | None = None,
    ):
        super().__init__()
        self.config, self.group, self.recompute = model, groups.tensor, recompute or Recompute()
        last = model.num_layers + 1
        mine = range(last + 1) if steps is None else steps
        self.has_embedding, self.has_head = 0 in mine, last in mine
        rows = padded_vocab_size(model)
        rotary = Rotary(model.head_dim, model.rope_theta) if model.position_embedding == "rope" else None
        tied = model.tied_embeddings
        if self.has_embedding or (self.has_head and tied):
            self.embedding = VocabParallelEmbedding(rows, model.hidden_size, groups.tensor)
        if self.has_embedding and rotary is None:
            self.positions = Positions(model.max_positions, model.hidden_size)
        layers = [step - 1 for step in mine if 0 < step < last]
        # A dictionary, because a stage holds the layers of its numbers and none below.
        self.layers = nn.ModuleDict({str(layer): Block(model, groups, rotary, rng) for layer in layers})
        if self.has_head:
            self.final_norm = make_norm(model)
            self.head = None if tied else ColumnParallelLinear(model.hidden_size, rows, groups.tensor, bias=False)

    def forward(self, x: Tensor, labels: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        """Return the loss, or without labels what this stage's last step gives.

        Args:
            x: ``[B, S]`` int64 tokens, this sequence rank's; behind the first pipeline stage
                the output of the stage before.
            labels: ``[B, S]`` int64: the token that follows each, or a negative number where
                none counts.
            weight: [] float32, see :meth:`loss`.

        Returns:
            ``[]`` float32 (float64 in a float64 model), or ``[B, S, V/t]`` with V the
            padded vocabulary; columns of padding carry no meaning.
        """
        for step in self.steps():
            x = step(x)
        return x if labels is None else self.loss(x, labels, weight)

    def steps(self) -> list[Callable[[Tensor], Tensor]]:
        """Return what this stage does, in order; each step's output is the next one's input."""
        return [
            *([self.embed] if self.has_embedding else []),
            *self.recompute.layers(list(self.layers.values())),
            *([self.logits] if self.has_head else []),
        ]

    def embed(self, tokens: Tensor) -> Tensor:
        """Map ``[B, S]`` tokens to ``[B, S, H]``."""
        x = self.embedding(tokens)
        if self.config.position_embedding == "learned":
            x = x + self.positions(tokens.shape[1])
        return dropout(x, self.config.hidden_dropout, self.training)

    def logits(self, x: Tensor) -> Tensor:
        """Map ``[B, S, H]`` to this rank's columns ``[B, S, V/t]`` of the logits."""
        x = self.final_norm(x)
        if self.head is not None:
            return self.head(x)
        return column_parallel_linear(x, self.embedding.weight, None, self.group)

    def loss(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the cross entropy, summed over the counted tokens and multiplied by ``weight``.

        A token counts unless its label is negative. Without a weight: their mean.
        """
        counted = labels >= 0
        losses = vocab_parallel_cross_entropy(logits, labels.clamp(min=0), self.group, self.config.vocab_size)
        total = (losses * counted).sum()
        return total * weight if weight is not None else total / counted.sum()
