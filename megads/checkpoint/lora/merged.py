"""A base and its adapters, read as the plain checkpoint that both make: ``W + scale * B A``. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.format.folders import CheckpointRef
from megads.checkpoint.format.manifest import Manifest
from megads.checkpoint.format.reader import BAND, Reader, Want
from megads.checkpoint.format.shard_layout import Box, boxes
from megads.checkpoint.function.record import KEY as FUNCTION
from megads.checkpoint.lora.base import NOTE, base_of, is_adapters
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.families.lora import A, B, adapter_of, scale_of

SETTINGS = ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets")
"""Of the model; a merged one has none of them."""


def open_for_use(found: CheckpointRef, base: str = "") -> Reader:
    """Return the weights of a checkpoint as they are for use; of adapters merged with their base.

    ``base``: another place where that may be.

    Raises:
        CheckpointError: they cannot be read, or the base is not what it was.
    """
    if not is_adapters(found.manifest):
        return Reader(found.path, found.manifest, in_use=True)
    return MergedReader(found, base_of(found.path, found.manifest, base))


def merged_manifest(adapters: Manifest, base: Manifest) -> Manifest:
    """Return the manifest of a base as the adapters have changed it: where it is stored does not change."""
    model = {key: value for key, value in base.model.items() if key not in SETTINGS}
    settings = dict(adapters.settings)
    trained = {key: value for key, value in settings.get("model", {}).items() if key not in SETTINGS}
    # The losses of the base are not those of the two together.
    about = {key: value for key, value in base.about.items() if key != FUNCTION}
    return replace(
        base,
        iteration=adapters.iteration,
        model=model,
        settings={**settings, "model": trained},
        progress=adapters.progress,
        scalars={},
        about={key: value for key, value in {**about, **adapters.about}.items() if key != NOTE},
        states={},
    )


class MergedReader(Reader):
    """Reads the weights of ``base`` with those of the adapters ``found`` added; float32, summed in float64.

    Args:
        found: a checkpoint of adapters.
        base: the one that it names.
        threads: see :class:`Reader`.
    """

    def __init__(self, found: CheckpointRef, base: CheckpointRef, threads: int = 0):
        super().__init__(base.path, base.manifest, threads, in_use=True)
        self.manifest = merged_manifest(found.manifest, base.manifest)
        self.adapters = Reader(found.path, found.manifest, threads, in_use=True)
        fields = ModelConfig.model_fields
        given: dict[str, Any] = {key: value for key, value in found.manifest.model.items() if key in fields}
        self.model = ModelConfig(**given)
        self._factors = lru_cache(maxsize=2)(self._read_factors)

    def close(self) -> None:
        """Close the files of both."""
        super().close()
        self.adapters.close()

    def fill(self, wants: Iterable[Want]) -> None:
        """Read all of ``wants``; see :meth:`Reader.fill`."""
        wants = list(wants)
        super().fill(wants)
        for want in wants:
            projection = want.name.removesuffix(".weight")
            if want.kind == "weight" and f"{projection}.{A}" in self.adapters.manifest.tensors:
                for box in boxes(want.cut, want.first, want.out.size):
                    self._add(projection, box, want)

    def _add(self, projection: str, box: Box, want: Want) -> None:
        """Add what the adapters change of a rectangle of a matrix, some rows at a time."""
        adapter = adapter_of(self.model, projection.partition(".")[2].partition(".")[2])
        if adapter is None:
            raise CheckpointError(f"{self.adapters.path}: has adapters of {projection}, which its settings do not name")
        a, b = self._factors(projection)
        whole, rank, first = self.cut(want.name), self.model.lora_rank, 0
        starts = np.cumsum((0, *whole.parts)) if whole.dim == 0 else np.array([0, whole.shape[0]])
        for place, part in enumerate(adapter.parts):
            rows = range(int(starts[part]), int(starts[part + 1]))
            factor = a[:rank] if adapter.is_shared else a[place * rank : (place + 1) * rank]
            step = max(1, BAND // (box.right - box.left))
            for top in range(max(rows.start, box.top), min(rows.stop, box.bottom), step):
                bottom = min(top + step, rows.stop, box.bottom)
                mine = b[first + top - rows.start : first + bottom - rows.start]
                target = _rows(want.out[box.at(top, box.left) - want.first :], bottom - top, box)
                target += mine @ factor[:, box.left : box.right]
            first += len(rows)

    def _read_factors(self, projection: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        a, b = (self.adapters.whole(f"{projection}.{which}").astype(np.float64) for which in (A, B))
        return a, b * scale_of(self.model)


def _rows(out: NDArray[np.float32], rows: int, box: Box) -> NDArray[np.float32]:
    strides = (box.stride * out.itemsize, out.itemsize)
    return np.lib.stride_tricks.as_strided(out, (rows, box.right - box.left), strides)


def merged_of(found: CheckpointRef, base: str = "") -> tuple[Manifest, CheckpointRef]:
    """Return the manifest of the merged weights, and the base.

    Raises:
        CheckpointError: ``found`` holds no adapters, or its base is not what it was.
    """
    if not is_adapters(found.manifest):
        raise CheckpointError(f"{found.path}: holds no adapters; it is a plain checkpoint already")
    ref = base_of(found.path, found.manifest, base)
    return merged_manifest(found.manifest, ref.manifest), ref
