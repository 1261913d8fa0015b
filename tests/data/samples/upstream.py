"""Megatron-core's data classes, where the package is installed and imports."""

from __future__ import annotations

import functools
import importlib
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

NAMES = {
    "helpers": ("build_blending_indices", "build_exhaustive_blending_indices", "build_mapping"),
    "blended_dataset": ("BlendedDataset",),
    "blended_megatron_dataset_builder": ("BlendedMegatronDatasetBuilder",),
    "blended_megatron_dataset_config": ("convert_split_vector_to_split_matrix", "parse_and_normalize_split"),
    "gpt_dataset": ("GPTDataset", "GPTDatasetConfig"),
    "bert_dataset": ("BERTMaskedWordPieceDataset", "BERTMaskedWordPieceDatasetConfig"),
    "t5_dataset": ("T5MaskedWordPieceDataset", "T5MaskedWordPieceDatasetConfig"),
    "indexed_dataset": ("IndexedDataset",),
    "utils": ("Split", "get_blend_from_list"),
}


@functools.cache
def megatron_core() -> Any:
    """Return what the tests use of megatron-core by name; without the package, skip."""
    with warnings.catch_warnings():
        # It says of each of its parts that two packages of its own are not there.
        warnings.filterwarnings("ignore", "Transformer Engine and Apex are not installed", UserWarning)
        pytest.importorskip("megatron.core.datasets.gpt_dataset")
        found = SimpleNamespace()
        for module, names in NAMES.items():
            loaded = importlib.import_module(f"megatron.core.datasets.{module}")
            for name in names:
                setattr(found, name, getattr(loaded, name))
    return found
