"""The settings of the model's shape; families, in ``megads.families``, are bundles of their defaults."""

from __future__ import annotations

from typing import Literal

from megads.config.setting import Section, Weak, Word, setting
from megads.config.settings.option_units import with_end_of_document
from megads.families.table import FAMILIES, FamilyName


class ModelConfig(Section):
    """The shape of the decoder."""

    family: FamilyName = setting(
        "llama",
        env="MODEL_FAMILY",
        switches={"NO_LLAMA": "gpt"},
        help="bundle of defaults: " + " or ".join(f"{name} ({each.summary})" for name, each in FAMILIES.items()),
    )
    num_layers: int = setting(
        32,
        env="NLAYERS",
        flags={"--num-layers": None, "--encoder-num-layers": None},
        aliases=("NUM_LAYERS",),
        help="decoder layers",
        gt=0,
        le=100_000,
    )
    hidden_size: int = setting(
        4096,
        env="HIDDEN",
        flags={"--hidden-size": None},
        aliases=("HIDDEN_SIZE",),
        help="width of the residual stream",
        gt=0,
        le=2**24,
    )
    num_heads: int = setting(
        32,
        env="HEADS",
        flags={"--num-attention-heads": None},
        aliases=("NHEADS", "NUM_HEADS"),
        help="query heads",
        gt=0,
        le=2**20,
    )
    num_kv_heads: int = setting(
        0,
        env="NUM_KV_HEAD",
        flags={"--num-key-value-heads": None, "--num-query-groups": None, "--group-query-attention": Weak(1)},
        aliases=("NUM_KV_HEADS",),
        help="key/value heads (GQA); 0: as many as HEADS",
        ge=0,
    )
    head_dim: int = setting(
        0,
        env="HEAD_DIM",
        flags={"--kv-channels": None},
        aliases=("KV_CHANNELS",),
        help="width of a head; 0: HIDDEN / HEADS",
        ge=0,
    )
    ffn_hidden_size: int = setting(
        0,
        env="FFN_HIDDEN_SIZE",
        flags={"--ffn-hidden-size": None},
        help="inner width of the MLP; 0: 4 HIDDEN, or with swiglu 8/3 HIDDEN, a multiple of 64",
        ge=0,
    )
    seq_length: int = setting(
        4096,
        env="SEQ",
        flags={"--seq-length": None, "--encoder-seq-length": None},
        aliases=("SEQ_LEN", "SEQ_LENGTH"),
        help="tokens per sample",
        unit="tokens",
        gt=0,
    )
    max_positions: int = setting(
        0,
        env="MAX_POSITIONS",
        flags={"--max-position-embeddings": None},
        help="rows of a learned position table; 0: SEQ",
        ge=0,
    )
    vocab_size: int = setting(
        0,
        env="VOCAB_SIZE",
        flags={"--vocab-size": Word(convert=with_end_of_document), "--pad-vocab-size-to": None},
        help="vocabulary size; 0: the tokenizer's",
        ge=0,
        le=2**31 - 1,
    )
    vocab_multiple: int = setting(
        128,
        env="VOCAB_MULTIPLE",
        flags={"--make-vocab-size-divisible-by": None},
        aliases=("MAKE_VOCAB_SIZE_DIVISIBLE_BY",),
        help="the embedding is padded to a multiple of this; it does not depend on TP",
        gt=0,
    )
    normalization: Literal["rmsnorm", "layernorm"] = setting(
        "rmsnorm", env="NORMALIZATION", flags={"--normalization": None}, help="kind of norm"
    )
    norm_epsilon: float = setting(
        1e-5,
        env="NORM_EPSILON",
        flags={"--norm-epsilon": None, "--layernorm-epsilon": None},
        help="epsilon of the norms",
        gt=0,
    )
    norm_position: Literal["before", "after"] = setting(
        "before",
        env="NORM_POSITION",
        help="norms of a layer are before attention and MLP, or after each and before the sum (OLMo 2)",
    )
    qk_norm: Literal["none", "head", "all"] = setting(
        "none",
        env="QK_NORM",
        help="RMSNorm of queries and keys: of each head (Qwen 3), or of all heads together (OLMo 2)",
    )
    activation: Literal["swiglu", "gelu", "gelu_tanh"] = setting(
        "swiglu",
        env="ACTIVATION",
        flags={"--swiglu": "swiglu", "--openai-gelu": "gelu_tanh", "--no-bias-gelu-fusion": Weak("gelu")},
        help="activation of the MLP; gelu is the exact erf form",
    )
    position_embedding: Literal["rope", "learned"] = setting(
        "rope",
        env="POSITION_EMBEDDING",
        flags={
            "--position-embedding-type": Word({"learned_absolute": "learned", "absolute": "learned", "rotary": "rope"}),
            "--use-rotary-position-embeddings": "rope",
        },
        help="kind of positions",
    )
    rope_theta: float = setting(
        50000.0,
        env="ROPE_THETA",
        flags={"--rotary-base": None, "--rotary-position-embeddings-theta": None},
        help="base of the rotary frequencies",
        gt=0,
    )
    rope_scaling: Literal["none", "linear", "llama3"] = setting(
        "none",
        env="ROPE_SCALING",
        flags={"--rotary-seq-len-interpolation-factor": "linear"},
        help="how rotary frequencies are scaled for contexts longer than the original",
    )
    rope_scaling_factor: float = setting(
        1.0,
        env="ROPE_SCALING_FACTOR",
        flags={"--rotary-seq-len-interpolation-factor": None},
        help="factor of the scaling: positions are divided by it",
        ge=1,
    )
    rope_low_freq_factor: float = setting(
        1.0,
        env="ROPE_LOW_FREQ_FACTOR",
        help="llama3: fewer rotations than this in the original context: fully scaled",
        gt=0,
    )
    rope_high_freq_factor: float = setting(
        4.0, env="ROPE_HIGH_FREQ_FACTOR", help="llama3: more rotations than this: not scaled", gt=0
    )
    rope_original_positions: int = setting(
        8192, env="ROPE_ORIGINAL_POSITIONS", help="llama3: length of the original context", unit="tokens", gt=0
    )
    bias: bool = setting(
        False, env="ADD_BIAS", flags={"--disable-bias-linear": False}, help="biases in the linear layers"
    )
    tied_embeddings: bool = setting(
        False,
        env="TIED_EMBEDDINGS",
        flags={"--untie-embeddings-and-output-weights": False},
        help="share the embedding with the output layer",
    )
    hidden_dropout: float = setting(
        0.0,
        env="HIDDEN_DROPOUT",
        flags={"--hidden-dropout": None},
        help="dropout after embedding, attention and MLP",
        ge=0,
        lt=1,
    )
    attention_dropout: float = setting(
        0.0, env="ATTENTION_DROPOUT", flags={"--attention-dropout": None}, help="on attention weights", ge=0, lt=1
    )
    init_std: float = setting(
        0.0,
        env="INIT_METHOD_STD",
        flags={"--init-method-std": None},
        help="standard deviation of initial weights; 0: sqrt(2 / (5 HIDDEN)), for gpt 0.02",
        ge=0,
    )
    attention: Literal["sdpa", "flash"] = setting(
        "sdpa",
        env="ATTENTION",
        switches={"NO_FLASH_ATTN": "sdpa"},
        help="torch's scaled_dot_product_attention, or the flash-attn package",
    )
