"""BERT (arXiv 1810.04805): encoder, hidden tokens and the order of two halves of a text.

As Megatron-LM trains it (arXiv 1909.08053), with norms before attention and MLP, and the original, with norms behind
each sum. Of either transformers has a class with the binary head and one without. Megatron's layers have the
tanh approximation of gelu where its fused kernel computes them (``ACTIVATION=gelu_tanh``), and the exact one otherwise.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import partial
from typing import Any

from megads.families.config_json import ConfigJson
from megads.families.family import Family, HuggingFace, Names

_GELUS = {"gelu": "gelu"} | dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh")
"""Name of an activation -> ours that computes the same."""


def _read(config: ConfigJson, *, is_original: bool, binary_head: bool) -> dict[str, Any]:
    config.refuse("is_decoder", "causal attention of an encoder's layers, which megads does not do")
    config.refuse("add_cross_attention", "the model reads another one's output, which megads does not do")
    config.expect("position_embedding_type", ("absolute",), "absolute")
    config.expect("tie_word_embeddings", (True,), True)
    accepted = _GELUS if is_original else {"gelu": "gelu"}
    activation = config.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in accepted:
        raise config.error(f"hidden_act={activation!r} is not supported; {', '.join(accepted)} are")
    heads, hidden = config.size("num_attention_heads", 12), config.size("hidden_size", 768)
    if hidden % heads:
        raise config.error(f"hidden_size={hidden} is not a multiple of num_attention_heads={heads}")
    positions = config.size("max_position_embeddings", 512)
    return {
        "num_layers": config.size("num_hidden_layers", 12),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": hidden // heads,
        "ffn_hidden_size": config.size("intermediate_size", 3072),
        "max_positions": positions,
        "seq_length": positions,
        "vocab_size": config.size("vocab_size", 30522 if is_original else 29056),
        "token_types": config.size("type_vocab_size", 2),
        "binary_head": binary_head,
        "normalization": "layernorm",
        "norm_position": "behind_sum" if is_original else "before",
        "norm_epsilon": config.number("layer_norm_eps", 1e-12),
        "activation": _GELUS[activation],
        "position_embedding": "learned",
        "bias": True,
        "tied_embeddings": True,
        "hidden_dropout": config.number("hidden_dropout_prob", 0.1),
        "attention_dropout": config.number("attention_probs_dropout_prob", 0.1),
        "init_std": config.number("initializer_range", 0.02),
    }


def _write(model: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "max_position_embeddings": model.max_positions,
        "type_vocab_size": model.token_types,
        "position_embedding_type": "absolute",
        "hidden_act": {"gelu": "gelu", "gelu_tanh": "gelu_new"}[model.activation],
        "layer_norm_eps": model.norm_epsilon,
        "hidden_dropout_prob": model.hidden_dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
    }


def _misfit(model: Any) -> str:
    if not model.token_types:
        return "token_types=0, it has 1 or more"
    if model.num_kv_heads != model.num_heads:
        return f"num_kv_heads={model.num_kv_heads}, it has as many as num_heads"
    if model.num_heads * model.head_dim != model.hidden_size:
        return f"head_dim={model.head_dim}, it has hidden_size / num_heads"
    return ""


_OUTSIDE = {
    "embedding": "bert.embeddings.word_embeddings",
    "positions": "bert.embeddings.position_embeddings",
    "token_types": "bert.embeddings.token_type_embeddings",
    "embedding_norm": "bert.embeddings.LayerNorm",
    "final_norm": "bert.encoder.ln",
    "lm_head": "cls.predictions",
    "lm_head.dense": "cls.predictions.transform.dense",
    "lm_head.norm": "cls.predictions.transform.LayerNorm",
    "pooler.dense": "bert.pooler.dense",
    "binary_head": "cls.seq_relationship",
}
_INSIDE: Names = (
    ("attention.self.query", "attention.qkv", 0),
    ("attention.self.key", "attention.qkv", 1),
    ("attention.self.value", "attention.qkv", 2),
    ("attention.output.dense", "attention.out", None),
    ("intermediate.dense", "mlp.up", None),
    ("output.dense", "mlp.down", None),
)
_BEFORE: Names = (("attention.ln", "input_norm", None), ("ln", "post_norm", None))
_BEHIND: Names = (("attention.output.LayerNorm", "attention_norm", None), ("output.LayerNorm", "mlp_norm", None))


def _head_differs(model: Any) -> str:
    if model.activation == "gelu" or model.norm_position == "behind_sum":
        return ""
    return (
        "the masked-LM head has the exact gelu, as Megatron's, and transformers' the tanh form of the layers: logits "
        "there differ in the third decimal; ACTIVATION=gelu trains a model that is the same in both"
    )


def _has_form(model: Any, *, is_original: bool, binary_head: bool) -> bool:
    return bool((model.norm_position == "behind_sum") == is_original and model.binary_head == binary_head)


def _class(name: str, *, is_original: bool, binary_head: bool) -> HuggingFace:
    return HuggingFace(
        name,
        "bert" if is_original else "megatron-bert",
        suits=partial(_has_form, is_original=is_original, binary_head=binary_head),
        needs={
            "normalization": ("layernorm",),
            "position_embedding": ("learned",),
            "bias": (True,),
            "tied_embeddings": (True,),
            "activation": ("gelu", "gelu_tanh"),
            "norm_position": ("behind_sum",) if is_original else ("before",),
            "qk_norm": ("none",),
        },
        read=partial(_read, is_original=is_original, binary_head=binary_head),
        write=_write,
        outside=_OUTSIDE,
        layers="bert.encoder.layer",
        inside=(*_INSIDE, *(_BEHIND if is_original else _BEFORE)),
        misfit=_misfit,
        differs=_head_differs,
        is_encoder=True,
        prefix=PREFIX,
    )


PREFIX = "bert."
"""Of the names of all that is not a head."""

BARE = {"BertModel": "BertForPreTraining", "MegatronBertModel": "MegatronBertForPreTraining"}
"""Classes of transformers without the heads of pretraining -> those with them."""

HEADS = "cls."
"""What the names of heads begin with."""

POOLER, BINARY_HEAD = "bert.pooler.dense", "cls.seq_relationship"
_OTHER = {"PreTraining": "MaskedLM", "MaskedLM": "PreTraining"}


def class_with_heads(name: str, tensors: Container[str]) -> str:
    """Return the class of transformers that has the heads in a folder, whose ``config.json`` names the class ``name``.

    bert-base-uncased holds the pooler and the binary head, and says BertForMaskedLM.
    """
    base, found, form = name.partition("BertFor")
    if form not in _OTHER:
        return name
    has_head = f"{BINARY_HEAD}.weight" in tensors
    is_whole = has_head and f"{POOLER}.weight" in tensors
    differs = not has_head if form == "PreTraining" else is_whole
    return f"{base}{found}{_OTHER[form]}" if differs else name


BERT = Family(
    "encoder, masked tokens and sentence order",
    (
        _class("MegatronBertForPreTraining", is_original=False, binary_head=True),
        _class("MegatronBertForMaskedLM", is_original=False, binary_head=False),
        _class("BertForPreTraining", is_original=True, binary_head=True),
        _class("BertForMaskedLM", is_original=True, binary_head=False),
    ),
    {
        "model.normalization": "layernorm",
        "model.activation": "gelu_tanh",
        "model.position_embedding": "learned",
        "model.bias": True,
        "model.tied_embeddings": True,
        "model.hidden_dropout": 0.1,
        "model.attention_dropout": 0.1,
        "model.token_types": 2,
        "data.tokenizer_type": "BertWordPieceLowerCase",
    },
    init_std=0.02,
    samples="bert",
)
