"""Recognise folders that other programs wrote, to say how they are imported. Names only, no torch."""

from __future__ import annotations

from pathlib import Path

from megads.checkpoint.format.folders import list_checkpoints
from megads.checkpoint.format.manifest import MANIFEST

_MEGATRON = ("mp_rank_*/model_optim_rng.pt", "mp_rank_*/model_rng.pt", "mp_rank_*/distrib_optim.pt")
_DEEPSPEED = ("mp_rank_*_model_states.pt", "layer_*-model_*states.pt", "*zero_pp_rank_*_optim_states.pt")
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


def foreign_kind(place: Path) -> str:
    """Return whose checkpoint ``place`` is and how it is imported, empty when it is nobody's that is known."""
    if not place.is_dir() or (place / MANIFEST).exists():
        return ""
    if (place / "config.json").is_file() and _any(place, _WEIGHTS):
        return f"a Hugging Face folder; `megads checkpoint import-hf {place} DST` makes a checkpoint of it"
    inside = [place, place / "release", *reversed(list_checkpoints(place)[-1:])]
    deepspeed = [place, *sorted(place.glob("global_step*"))[-1:]]
    tracked = (place / "latest_checkpointed_iteration.txt").is_file() or (place / "latest").is_file()
    if any(_any(each, (".metadata", "*.distcp")) for each in inside):
        return "a torch.distributed checkpoint; convert it to Megatron's torch format, which import-megatron reads"
    if any(_any(each, _MEGATRON) for each in inside):
        return f"a Megatron-LM checkpoint; `megads checkpoint import-megatron {place} DST` makes one of megads of it"
    if any(_any(each, _DEEPSPEED) for each in deepspeed) or tracked:
        return f"a Megatron-DeepSpeed folder; `megads checkpoint import-megatron {place} DST` makes a checkpoint of it"
    return ""


def _any(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)
