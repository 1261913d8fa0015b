"""Read and write ``config.json`` of Hugging Face: what several classes of transformers share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megads.errors import CheckpointError

_LARGEST = 2**31 - 1  # size of anything in a model


class ConfigJson:
    """A ``config.json``; says what is wrong with it."""

    def __init__(self, path: Path, content: dict[str, Any]):
        self.path, self.content = path, content

    def error(self, what: str) -> CheckpointError:
        """Return an error about this file."""
        return CheckpointError(f"{self.path}: {what}")

    def get(self, name: str, default: Any) -> Any:
        """Return a value; null counts as none."""
        value = self.content.get(name)
        return default if value is None else value

    def size(self, name: str, default: int | None = None) -> int:
        """Return a whole number above 0."""
        value = self.get(name, default)
        if type(value) is not int or not 0 < value <= _LARGEST:
            raise self.error(f"{name} is {value!r:.40}, expected an integer from 1 to {_LARGEST}")
        return value

    def number(self, name: str, default: float) -> float:
        """Return a finite number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e300 < value < 1e300:
            raise self.error(f"{name} is {value!r}, expected a number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{name} is {value!r}, expected true or false")
        return value

    def words(self, name: str) -> list[str]:
        """Return a list of names; empty where there is none, and of one where it is not in a list."""
        value = self.get(name, [])
        found = value if isinstance(value, list) else [value]
        if not all(isinstance(each, str) for each in found):
            raise self.error(f"{name} is {value!r}, expected a list of names")
        return found

    def refuse(self, name: str, what: str) -> None:
        """Raise if ``name`` is set."""
        if self.get(name, False):
            raise self.error(f"{name} is set: {what}")

    def expect(self, name: str, accepted: tuple[Any, ...], default: Any) -> None:
        """Raise unless ``name`` has one of the accepted values."""
        value = self.get(name, default)
        if value not in accepted:
            raise self.error(f"{name}={value!r} is not supported; {' or '.join(map(repr, accepted))} is")


def read_decoder(config: ConfigJson, *, positions: int = 2048, kv_heads: int = 0, head_dim: int = 0) -> dict[str, Any]:
    """Return the settings of a decoder with RMSNorm, SwiGLU and rotary positions.

    Args:
        config: names its sizes as Llama's does.
        positions: that its class takes where the file has none.
        kv_heads: likewise; 0: as many as heads.
        head_dim: likewise; 0: hidden size / heads.

    Raises:
        CheckpointError: a value is wrong, or not supported.
    """
    config.expect("hidden_act", ("silu", "swish"), "silu")
    config.expect("partial_rotary_factor", (1.0,), 1.0)
    layers = set(config.words("layer_types"))
    if layers - {"full_attention", "sliding_attention"} or len(layers) > 1:
        raise config.error(f"layer_types mixes {', '.join(sorted(layers))}; all layers must have the same type")
    heads, hidden = config.size("num_attention_heads"), config.size("hidden_size")
    length = config.size("max_position_embeddings", positions)
    # A class's own default stands for a name that is left out; null means as many as heads.
    unsaid = heads if "num_key_value_heads" in config.content else kv_heads or heads
    return {
        "num_layers": config.size("num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": config.size("num_key_value_heads", unsaid),
        "head_dim": config.size("head_dim", head_dim or hidden // heads),
        "ffn_hidden_size": config.size("intermediate_size"),
        "max_positions": length,
        "seq_length": length,
        "vocab_size": config.size("vocab_size"),
        "normalization": "rmsnorm",
        "norm_epsilon": config.number("rms_norm_eps", 1e-6),
        "activation": "swiglu",
        "position_embedding": "rope",
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "init_std": config.number("initializer_range", 0.02),
        **_read_rope(config, length),
    }


def _read_rope(config: ConfigJson, positions: int) -> dict[str, Any]:
    """Read ``rope_parameters`` of transformers 5, or ``rope_theta`` and ``rope_scaling`` of 4."""
    inner = config.get("rope_scaling", None) or config.get("rope_parameters", {})
    if not isinstance(inner, dict):
        raise config.error(f"rope_scaling is {inner!r}, expected an object")
    scaling = ConfigJson(config.path, inner)
    scaling.expect("partial_rotary_factor", (1.0,), 1.0)
    theta = scaling.number("rope_theta", config.number("rope_theta", 10000.0))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return {"rope_theta": theta, "rope_scaling": "none"}
    if kind not in ("linear", "llama3"):
        raise config.error(f"rope_scaling of type {kind!r} is not supported; default, linear and llama3 are")
    found = {"rope_theta": theta, "rope_scaling": kind, "rope_scaling_factor": scaling.number("factor", 0.0)}
    if kind == "linear":
        return found
    low, high = scaling.number("low_freq_factor", 0.0), scaling.number("high_freq_factor", 0.0)
    if not 0 < low < high:
        raise config.error(
            f"rope_scaling has low_freq_factor {low:g} and high_freq_factor {high:g}; expected 0 < low < high"
        )
    original = scaling.size("original_max_position_embeddings", positions)
    return {**found, "rope_low_freq_factor": low, "rope_high_freq_factor": high, "rope_original_positions": original}


def write_decoder(model: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return what :func:`read_decoder` reads, for transformers 4 and 5 alike."""
    scaling = _write_scaling(model)
    return {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon,
        "max_position_embeddings": more.get("max_position_embeddings", model.seq_length),
        "attention_dropout": model.attention_dropout,
        # transformers 4 reads the first two, transformers 5 the third.
        "rope_theta": model.rope_theta,
        "rope_scaling": scaling or None,
        "rope_parameters": {"rope_type": "default", **scaling, "rope_theta": model.rope_theta},
    }


def _write_scaling(model: Any) -> dict[str, Any]:
    if model.rope_scaling == "none":
        return {}
    scaling: dict[str, Any] = {"rope_type": model.rope_scaling, "factor": model.rope_scaling_factor}
    if model.rope_scaling == "llama3":
        scaling |= {
            "low_freq_factor": model.rope_low_freq_factor,
            "high_freq_factor": model.rope_high_freq_factor,
            "original_max_position_embeddings": model.rope_original_positions,
        }
    return scaling
