"""Tiny models of every kind, with their derived sizes filled in."""

from __future__ import annotations

from typing import Any

from megads.config.schema import ModelConfig, RunConfig, TrainConfig

_SIZES: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_heads": 8,
    "num_kv_heads": 8,
    "head_dim": 4,
    "ffn_hidden_size": 48,
    "seq_length": 12,
    "max_positions": 12,
    "vocab_size": 53,
    "vocab_multiple": 8,
    "init_std": 0.3,
}

LLAMA = ModelConfig(**_SIZES)
LLAMA_GQA = LLAMA.model_copy(update={"num_kv_heads": 4})
GPT = ModelConfig(
    **_SIZES,
    family="gpt",
    normalization="layernorm",
    activation="gelu_tanh",
    position_embedding="learned",
    bias=True,
    tied_embeddings=True,
)
# The corners the two families skip: erf GELU with GQA, tied without biases, a wide head.
MIXED = GPT.model_copy(
    update={"activation": "gelu", "num_kv_heads": 4, "bias": False, "head_dim": 6, "position_embedding": "rope"}
)
# Families whose modules differ from Llama's; widths of heads that are not hidden / heads where the family can.
QWEN3 = LLAMA_GQA.model_copy(update={"family": "qwen3", "qk_norm": "head", "head_dim": 6, "norm_epsilon": 1e-6})
OLMO2 = LLAMA_GQA.model_copy(update={"family": "olmo2", "qk_norm": "all", "norm_position": "after"})
FAMILIES = {"qwen3": QWEN3, "olmo2": OLMO2}
KINDS = {"llama": LLAMA, "llama-gqa": LLAMA_GQA, "gpt": GPT, "mixed": MIXED}

# Megatron's form, and the original.
BERT = GPT.model_copy(update={"family": "bert", "activation": "gelu", "token_types": 2})
BERT_ORIGINAL = BERT.model_copy(update={"norm_position": "behind_sum", "norm_epsilon": 1e-12})
BERTS = {
    "bert": BERT,
    "bert-original": BERT_ORIGINAL,
    "bert-tokens": BERT.model_copy(update={"binary_head": False}),
    "bert-gqa": BERT.model_copy(update={"num_kv_heads": 4, "activation": "gelu_tanh"}),
}
# Megatron's T5, and transformers' in both versions; more layers in the encoder than in the decoder, and the reverse.
T5 = GPT.model_copy(
    update={"family": "t5", "decoder_layers": 3, "seq_length": 16, "decoder_seq_length": 8, "max_positions": 16}
)
T5_V11 = T5.model_copy(
    update={
        "normalization": "rmsnorm",
        "activation": "geglu_tanh",
        "position_embedding": "relative",
        "relative_buckets": 8,
        "relative_distance": 10,
        "bias": False,
        "tied_embeddings": False,
        "num_layers": 3,
        "decoder_layers": 2,
        "head_dim": 6,
    }
)
T5_V10 = T5_V11.model_copy(update={"activation": "relu", "tied_embeddings": True, "num_layers": 1})
T5S = {"t5": T5, "t5-v1.1": T5_V11, "t5-v1.0": T5_V10}

# The first layer that looks at neighbours, and one behind it; three chunks of four tokens, neighbours of eight.
RETRO = GPT.model_copy(
    update={
        "family": "retro",
        "num_layers": 7,
        "retro_chunk_length": 4,
        "retro_num_neighbors": 2,
        "retro_retrieved_chunks": 2,
        "retro_encoder_hidden_dropout": 0.0,
        "retro_encoder_attention_dropout": 0.0,
    }
)
# Rotary positions also in the encoder, keys that heads share; layers 6 and 9 look.
RETRO_LLAMA = LLAMA_GQA.model_copy(
    update={
        "family": "retro",
        "num_layers": 9,
        "head_dim": 6,
        "retro_chunk_length": 4,
        "retro_num_neighbors": 1,
        "retro_retrieved_chunks": 2,
        "retro_encoder_hidden_dropout": 0.0,
        "retro_encoder_attention_dropout": 0.0,
        "retro_encoder_layers": 1,
    }
)
RETROS = {"retro": RETRO, "retro-llama": RETRO_LLAMA}

# Sixteen tokens can be cut over sequence and tensor ranks; a longer table shows a wrong row.
_CUT = {"seq_length": 16, "max_positions": 20}
SEQUENCE_KINDS = {
    "llama": LLAMA.model_copy(update=_CUT),
    "gqa": LLAMA_GQA.model_copy(update=_CUT),
    # more sequence ranks than key/value heads
    "repeated": LLAMA.model_copy(update={**_CUT, "num_kv_heads": 2}),
    "mqa": LLAMA.model_copy(update={**_CUT, "num_kv_heads": 1}),
    # shares that cut through the queries of a key/value head
    "uneven": LLAMA.model_copy(update={**_CUT, "num_heads": 6, "num_kv_heads": 3}),
    "uneven-12": LLAMA.model_copy(update={**_CUT, "num_heads": 12, "num_kv_heads": 6, "head_dim": 2}),
    "gpt": GPT.model_copy(update=_CUT),
    "gpt-odd": GPT.model_copy(update={**_CUT, "num_heads": 6, "num_kv_heads": 6, "head_dim": 5}),
    "mixed": MIXED.model_copy(update={**_CUT, "bias": True}),
}


def make_run(model: ModelConfig, seed: int = 1234) -> RunConfig:
    """Return a run of ``model`` that is otherwise default."""
    return RunConfig(model=model, train=TrainConfig(seed=seed))
