"""What is in a checkpoint: drawn from the manifest of a tiny one, which is written for it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from docs.site.svg import PALE, Canvas
from megads.checkpoint.convert.reshard import layout_text, reshape, target_of
from megads.checkpoint.convert.writer import new_writer
from megads.checkpoint.format.manifest import MANIFEST, Manifest, read_manifest
from megads.checkpoint.format.shard_layout import parameters_of
from megads.checkpoint.resume.compatibility import shape_of
from megads.config.schema import ModelConfig
from megads.monitor.plots.style import COLOURS

MODEL = {"num_layers": 1, "hidden_size": 16, "num_heads": 4, "num_kv_heads": 2, "head_dim": 4, "ffn_hidden_size": 32}
MODEL |= {"vocab_size": 64, "vocab_multiple": 1, "seq_length": 32, "max_positions": 32}
LAYOUT = {"tensor": 2, "data": 2, "zero_stage": 3}
SHOWN = ("layers.0.attention.qkv.weight", "layers.0.input_norm.weight")
MEANS = {
    "iteration": "the step after which it was saved",
    "layout": "the grid that wrote it",
    "model": "settings that decide the weights' shapes",
    "settings": "of the whole run",
    "progress": "samples, tokens, data position",
    "scalars": "optimizer step, loss scale",
    "kinds": "weight, then the optimizer's moments",
    "tensors": "name: shape, split dimension, fused parts",
    "runs": "name: which elements are in which file",
    "files": "name: bytes, checksum, slice",
    "about": "versions that wrote it",
}
"""Key of the manifest -> its meaning. A test compares the keys with those that are written."""


def manifest_of_tiny() -> Manifest:
    """Return the manifest of a checkpoint of a tiny Llama in :data:`LAYOUT`."""
    model = ModelConfig.model_validate(MODEL)
    tensors = parameters_of(model)
    with tempfile.TemporaryDirectory() as work:
        with new_writer(Path(work) / "one", tensors, shape_of(model), {}) as writer:
            for name, cut in tensors.items():
                writer.add(name, np.zeros(cut.shape, np.float32))
        source = Path(work) / "one" / "iter_0000000"
        manifest = read_manifest(source)
        return reshape(source, manifest, Path(work) / "four", target_of(manifest, **LAYOUT)).manifest


def draw() -> str:
    """Return the picture: the files of the folder, the keys of the manifest, where the elements of two tensors are."""
    manifest = manifest_of_tiny()
    colours = {name: COLOURS[number] for number, name in enumerate(manifest.files)}
    canvas = Canvas(760, 540, f"A checkpoint of {layout_text(manifest.layout)}: its files and what they hold")
    canvas.text(
        20, 30, f"iter_{manifest.iteration:07d}/  written by {layout_text(manifest.layout)}", size=16, bold=True
    )
    canvas.box(20, 48, 400, 44 + 24 * len(MEANS), fill="#f6f7f9")
    canvas.text(36, 74, MANIFEST, bold=True)
    for line, (key, means) in enumerate(MEANS.items()):
        canvas.text(36, 102 + 24 * line, key)
        canvas.text(118, 102 + 24 * line, means, ink=PALE)
    for line, (name, facts) in enumerate(manifest.files.items()):
        top = 48 + 80 * line
        count = sum(count for _, _, count in manifest.contents(name))
        canvas.box(440, top, 300, 68, fill=colours[name], edge=colours[name])
        canvas.text(456, top + 29, name, ink="#ffffff", bold=True)
        canvas.text(456, top + 51, f"slice {facts.tensor}: {count} elements of each kind", ink="#ffffff")
    for line, name in enumerate(SHOWN):
        _elements(canvas, manifest, name, 392 + 84 * line, colours)
    return canvas.dump()


def _elements(canvas: Canvas, manifest: Manifest, name: str, top: float, colours: dict[str, str]) -> None:
    """Draw the elements of a tensor, slice by slice, in the colours of the files that hold them."""
    cut = manifest.tensors[name]
    slices = 1 if cut.dim is None else manifest.layout["tensor"]
    split = (
        "on every tensor rank, stored once"
        if cut.dim is None
        else f"split along dimension {cut.dim}, parts {list(cut.parts)}"
    )
    canvas.text(20, top, name, bold=True)
    canvas.text(20 + 8.2 * len(name) + 14, top, f"{list(cut.shape)}, {split}", ink=PALE)
    each = cut.of(0, slices).count if slices > 1 else int(np.prod(cut.shape))
    width = (720 - 12 * (slices - 1)) / slices
    for number in range(slices):
        left = 20 + number * (width + 12)
        for file, facts in manifest.files.items():
            for found, first, count in manifest.contents(file):
                if found != name or (slices > 1 and facts.tensor != number):
                    continue
                x, wide = left + width * first / each, width * count / each
                canvas.box(x, top + 12, wide, 32, fill=colours[file], edge="#ffffff", round_=3)
                canvas.text(
                    x + wide / 2, top + 33, f"{first}..{first + count - 1}", size=12, at="middle", ink="#ffffff"
                )
        if slices > 1:
            canvas.text(left, top + 60, f"slice {number}", size=12, ink=PALE)
