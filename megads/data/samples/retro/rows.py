"""A sample of Retro as one row of integers, so that its batch is one int64 tensor [micro_batch, width]."""

from __future__ import annotations

from dataclasses import dataclass

from megads.config.settings.model import ModelConfig


@dataclass(frozen=True)
class RetroRow:
    """The parts of a row: ``seq_length`` tokens S and the one behind them, then the neighbours of every chunk.

    ``batch[:, row.neighbors]`` is ``[L, k, r]`` in one line: of every chunk ``num_neighbors`` texts k
    of ``retrieved_length`` tokens r.
    """

    seq_length: int  # a multiple of chunk_length
    chunk_length: int
    num_neighbors: int
    retrieved_length: int  # tokens of a neighbour and of what continues it

    @classmethod
    def of(cls, model: ModelConfig) -> RetroRow:
        """Return the parts of the rows of a derived ``model``."""
        retrieved = model.retro_chunk_length * model.retro_retrieved_chunks
        return cls(model.seq_length, model.retro_chunk_length, model.retro_num_neighbors, retrieved)

    @property
    def chunks(self) -> int:
        """L, chunks of a sample."""
        return self.seq_length // self.chunk_length

    @property
    def of_chunk(self) -> int:
        """Tokens of the neighbours of one chunk."""
        return self.num_neighbors * self.retrieved_length

    @property
    def text(self) -> slice:
        """Tokens, and the one behind them."""
        return slice(0, self.seq_length + 1)

    @property
    def neighbors(self) -> slice:
        """Tokens of the neighbours, of chunk after chunk."""
        return slice(self.seq_length + 1, self.width)

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.seq_length + 1 + self.chunks * self.of_chunk
