"""From ``config.json`` to our settings. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from megads.checkpoint.convert.huggingface.read_tensors import read_json
from megads.checkpoint.convert.huggingface.write_config import TYPES
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError

CONFIG = "config.json"
_LARGEST = 2**31 - 1  # size of anything in a model

KEPT = ("family", "seq_length", "init_std", "hidden_dropout", "attention_dropout")
"""Settings of the model that do not decide what its weights mean."""

_GELUS = {"gelu": "gelu"} | dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh")
"""Name of an activation -> ours that computes the same."""


@dataclass(frozen=True)
class Described:
    """A folder's model in our settings, and what else its ``config.json`` says.

    Attributes:
        architecture: class of transformers.
        model: derived.
        more: what only an export needs.
        longest: tokens of a sample that attention without a window computes alike; 0: any.
    """

    architecture: str
    model: ModelConfig
    more: Mapping[str, Any]
    longest: int = 0

    @property
    def model_type(self) -> str:
        """llama, mistral or gpt2."""
        return TYPES[self.architecture]


def describe(folder: Path, vocab_multiple: int) -> Described:
    """Return what the ``config.json`` of ``folder`` describes.

    Args:
        folder: of Hugging Face.
        vocab_multiple: to which our vocabulary is padded.

    Raises:
        CheckpointError: it is no such folder, or of a model that ours cannot compute; the message names what.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(_no_config(folder))
    config = _Config(path, read_json(path))
    architecture = _architecture(config)
    config.refuse("quantization_config", "quantised weights; import the model it was made from")
    settings = _gpt2(config) if architecture == "GPT2LMHeadModel" else _llama(config, architecture)
    try:
        model = ModelConfig(vocab_multiple=vocab_multiple, **settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"{path}: {first['loc'][0]} = {first['input']!r:.40}: {first['msg'].lower()}") from None
    if model.num_heads % model.num_kv_heads:
        raise config.error(f"{model.num_heads} heads cannot share {model.num_kv_heads} key/value heads")
    window = _window(config) if architecture == "MistralForCausalLM" else None
    more = {"max_position_embeddings": model.seq_length, "sliding_window": window}
    kept = {name: getattr(model, name) for name in KEPT}
    return Described(architecture, model, {**more, "settings": kept}, window or 0)


def _no_config(folder: Path) -> str:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "no such folder"
        return f"{folder}: {what}; pass the local folder of a model, nothing is downloaded"
    if (folder / "params.json").is_file() or any(folder.glob("consolidated.*")):
        return (
            f"{folder}: is Meta's own form of the weights; fetch the model's config.json and *.safetensors, "
            "or convert it with transformers' convert_llama_weights_to_hf.py"
        )
    if (folder / "adapter_config.json").is_file():
        return f"{folder}: is an adapter, not a model; merge it into its model first (peft: merge_and_unload)"
    return f"{folder}: has no {CONFIG}; it is not a folder of a Hugging Face model"


class _Config:
    """A ``config.json``; says what is wrong with it."""

    def __init__(self, path: Path, content: dict[str, Any]):
        self.path, self.content = path, content

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what}")

    def get(self, name: str, default: Any) -> Any:
        """Return a value; null counts as none."""
        value = self.content.get(name)
        return default if value is None else value

    def size(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if type(value) is not int or not 0 < value <= _LARGEST:
            raise self.error(f"{name} is {value!r:.40}, expected an integer from 1 to {_LARGEST}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e300 < value < 1e300:
            raise self.error(f"{name} is {value!r}, expected a number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
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
        if self.get(name, False):
            raise self.error(f"{name} is set: {what}")

    def expect(self, name: str, accepted: tuple[Any, ...], default: Any) -> None:
        value = self.get(name, default)
        if value not in accepted:
            raise self.error(f"{name}={value!r} is not supported; {' or '.join(map(repr, accepted))} is")


def _architecture(config: _Config) -> str:
    named = config.words("architectures")
    if not named:
        named = [name for name, kind in TYPES.items() if kind == config.get("model_type", "")]
    for name in named:
        if name in TYPES:
            return name
    what = ", ".join(named) or f"model_type {config.get('model_type', 'none')}"
    raise config.error(f"the architecture {what} is not supported; {', '.join(TYPES)} are")


def _llama(config: _Config, architecture: str) -> dict[str, Any]:
    config.expect("hidden_act", ("silu", "swish"), "silu")
    config.expect("partial_rotary_factor", (1.0,), 1.0)
    layers = set(config.words("layer_types"))
    if layers - {"full_attention", "sliding_attention"} or len(layers) > 1:
        raise config.error(f"layer_types mixes {', '.join(sorted(layers))}; all layers must have the same type")
    bias = config.flag("attention_bias", False)
    if bias != config.flag("mlp_bias", False) and architecture == "LlamaForCausalLM":
        raise config.error(
            f"attention_bias={bias} and mlp_bias={not bias}; megads has biases in all linear layers or in none"
        )
    heads, hidden = config.size("num_attention_heads"), config.size("hidden_size")
    positions = config.size("max_position_embeddings", 2048 if architecture == "LlamaForCausalLM" else 131072)
    return {
        "num_layers": config.size("num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": config.size("num_key_value_heads", _unsaid_kv_heads(config, architecture, heads)),
        "head_dim": config.size("head_dim", hidden // heads),
        "ffn_hidden_size": config.size("intermediate_size"),
        "max_positions": positions,
        "seq_length": positions,
        "vocab_size": config.size("vocab_size"),
        "normalization": "rmsnorm",
        "norm_epsilon": config.number("rms_norm_eps", 1e-6),
        "activation": "swiglu",
        "position_embedding": "rope",
        "bias": bias,
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "init_std": config.number("initializer_range", 0.02),
        **_rope(config, positions),
    }


def _unsaid_kv_heads(config: _Config, architecture: str, heads: int) -> int:
    """Return the key/value heads that transformers takes where none are given: MistralConfig has 8, null means all."""
    is_left_out = "num_key_value_heads" not in config.content
    return 8 if architecture == "MistralForCausalLM" and is_left_out else heads


def _window(config: _Config) -> int | None:
    """Return how many tokens Mistral's attention sees: MistralConfig has 4096, null means all."""
    if "sliding_window" in config.content and config.content["sliding_window"] is None:
        return None
    return config.size("sliding_window", 4096)


def _rope(config: _Config, positions: int) -> dict[str, Any]:
    """Read ``rope_parameters`` of transformers 5, or ``rope_theta`` and ``rope_scaling`` of 4."""
    inner = config.get("rope_scaling", None) or config.get("rope_parameters", {})
    if not isinstance(inner, dict):
        raise config.error(f"rope_scaling is {inner!r}, expected an object")
    scaling = _Config(config.path, inner)
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


def _gpt2(config: _Config) -> dict[str, Any]:
    config.expect("scale_attn_weights", (True,), True)
    config.refuse("scale_attn_by_inverse_layer_idx", "attention is scaled by the layer, which megads does not do")
    config.refuse("add_cross_attention", "the model reads another one's output, which megads does not do")
    activation = config.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in _GELUS:
        raise config.error(f"activation_function={activation!r} is not supported; {', '.join(_GELUS)} are")
    heads, hidden = config.size("n_head"), config.size("n_embd")
    if hidden % heads:
        raise config.error(f"n_embd={hidden} is not a multiple of n_head={heads}")
    positions = config.size("n_positions", 1024)
    return {
        "family": "gpt",
        "num_layers": config.size("n_layer"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": hidden // heads,
        "ffn_hidden_size": config.size("n_inner", 4 * hidden),
        "max_positions": positions,
        "seq_length": positions,
        "vocab_size": config.size("vocab_size"),
        "normalization": "layernorm",
        "norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        "activation": _GELUS[activation],
        "position_embedding": "learned",
        "bias": True,
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "hidden_dropout": config.number("resid_pdrop", 0.1),
        "attention_dropout": config.number("attn_pdrop", 0.1),
        "init_std": config.number("initializer_range", 0.02),
    }
