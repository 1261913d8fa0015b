"""Where the parts of a sample of Retro are."""

from __future__ import annotations

import numpy as np

from megads.config.settings.model import ModelConfig
from megads.data.samples.retro.rows import RetroRow


def test_the_parts_of_a_row_lie_end_to_end_and_fill_it():
    row = RetroRow(seq_length=12, chunk_length=4, num_neighbors=3, retrieved_length=8)
    numbers = np.arange(row.width)
    assert numbers[row.text].tolist() == list(range(13))
    of_chunks = numbers[row.neighbors].reshape(row.chunks, 3, 8)
    assert of_chunks[0, 0, 0] == 13
    assert of_chunks[1, 0, 0] == 13 + row.of_chunk == 13 + 24
    assert of_chunks[-1, -1, -1] == row.width - 1 == 13 + 3 * 24 - 1


def test_a_model_says_what_its_rows_are():
    model = ModelConfig(seq_length=2048, retro_num_neighbors=3)
    assert RetroRow.of(model) == RetroRow(2048, 64, 3, 128)
    assert RetroRow.of(model).width == 2049 + 32 * 3 * 128
