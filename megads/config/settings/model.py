"""The settings of the model's shape; families, in ``megads.families``, are bundles of their defaults."""

from __future__ import annotations

from typing import Literal

from megads.config.setting import Section, Weak, Word, fraction, setting, with_end_of_document
from megads.families.table import FAMILIES, FamilyName


class ModelConfig(Section):
    """The shape of the model."""

    family: FamilyName = setting(
        "llama",
        "MODEL_FAMILY",
        "bundle of defaults: " + " or ".join(f"{name} ({each.summary})" for name, each in FAMILIES.items()),
        switches={"NO_LLAMA": "gpt"},
        flags={
            "--model-family": None,
            "--model-type": Word({"GPT": "gpt", "BERT": "bert", "T5": "t5"}),
            "--bert-no-binary-head": Weak("bert"),
            "--decoder-seq-length": Weak("t5"),
            "--retro-add-retriever": "retro",
        },
    )
    num_layers: int = setting(
        32, "NLAYERS NUM_LAYERS --num-layers --encoder-num-layers", "layers; of t5, of its encoder", gt=0, le=100_000
    )
    decoder_layers: int = setting(
        0, "DECODER_LAYERS --decoder-num-layers", "layers of t5's decoder; 0: NLAYERS", ge=0, le=100_000
    )
    hidden_size: int = setting(4096, "HIDDEN HIDDEN_SIZE --hidden-size", "width of the residual stream", gt=0, le=2**24)
    num_heads: int = setting(32, "HEADS NHEADS NUM_HEADS --num-attention-heads", "query heads", gt=0, le=2**20)
    num_kv_heads: int = setting(
        0,
        "NUM_KV_HEAD NUM_KV_HEADS --num-key-value-heads --num-query-groups",
        "key/value heads (GQA); 0: as many as HEADS",
        flags={"--group-query-attention": Weak(1)},
        ge=0,
    )
    head_dim: int = setting(0, "HEAD_DIM KV_CHANNELS --kv-channels", "width of a head; 0: HIDDEN / HEADS", ge=0)
    ffn_hidden_size: int = setting(
        0,
        "FFN_HIDDEN_SIZE --ffn-hidden-size",
        "inner width of the MLP; 0: 4 HIDDEN, or with swiglu 8/3 HIDDEN, a multiple of 64",
        ge=0,
    )
    seq_length: int = setting(
        4096,
        "SEQ SEQ_LEN SEQ_LENGTH --seq-length --encoder-seq-length",
        "tokens per sample; of t5, of its encoder",
        unit="tokens",
        gt=0,
    )
    decoder_seq_length: int = setting(
        0,
        "DECODER_SEQ DECODER_SEQ_LENGTH --decoder-seq-length",
        "tokens per sample of t5's decoder; 0: SEQ / 2, which always holds what MASK_PROB=0.15 hides",
        unit="tokens",
        ge=0,
    )
    max_positions: int = setting(
        0, "MAX_POSITIONS --max-position-embeddings", "rows of a learned position table; 0: SEQ", ge=0
    )
    vocab_size: int = setting(
        0,
        "VOCAB_SIZE",
        "vocabulary size; 0: the tokenizer's",
        flags={"--vocab-size": Word(convert=with_end_of_document), "--pad-vocab-size-to": None},
        ge=0,
        le=2**31 - 1,
    )
    vocab_multiple: int = setting(
        128,
        "VOCAB_MULTIPLE MAKE_VOCAB_SIZE_DIVISIBLE_BY --make-vocab-size-divisible-by",
        "the embedding is padded to a multiple of this; it does not depend on TP",
        gt=0,
    )
    normalization: Literal["rmsnorm", "layernorm"] = setting("rmsnorm", "NORMALIZATION --normalization", "kind of norm")
    norm_epsilon: float = setting(1e-5, "NORM_EPSILON --norm-epsilon --layernorm-epsilon", "epsilon of the norms", gt=0)
    norm_position: Literal["before", "after", "behind_sum"] = setting(
        "before",
        "NORM_POSITION",
        "norms of a layer are before attention and MLP, after each and before the sum (OLMo 2), or behind the sum "
        "(the original BERT, which normalises its embedding as well)",
    )
    qk_norm: Literal["none", "head", "all"] = setting(
        "none", "QK_NORM", "RMSNorm of queries and keys: of each head (Qwen 3), or of all heads together (OLMo 2)"
    )
    activation: Literal["swiglu", "gelu", "gelu_tanh", "geglu_tanh", "relu"] = setting(
        "swiglu",
        "ACTIVATION",
        "activation of the MLP; gelu is the exact erf form; swiglu and geglu_tanh (T5 v1.1) have a gate",
        flags={"--swiglu": "swiglu", "--openai-gelu": "gelu_tanh", "--no-bias-gelu-fusion": Weak("gelu")},
    )
    position_embedding: Literal["rope", "learned", "relative"] = setting(
        "rope",
        "POSITION_EMBEDDING",
        "kind of positions; relative: T5's biases, shared by the layers of encoder and of decoder",
        flags={
            "--position-embedding-type": Word({"learned_absolute": "learned", "absolute": "learned", "rotary": "rope"}),
            "--use-rotary-position-embeddings": "rope",
        },
    )
    token_types: int = setting(
        0,
        "TOKEN_TYPES",
        "kinds of tokens with an embedding each; 2 for bert's two halves of a text, 0: none",
        ge=0,
        le=64,
    )
    binary_head: bool = setting(
        True,
        "BINARY_HEAD",
        "bert: pooler and head that say whether the halves of a text are exchanged",
        flags={"--bert-no-binary-head": False},
    )
    relative_buckets: int = setting(
        32,
        "RELATIVE_BUCKETS --relative-attention-num-buckets",
        "relative positions: entries of the table of biases",
        ge=4,
        le=65536,
    )
    relative_distance: int = setting(
        128,
        "RELATIVE_DISTANCE --relative-attention-max-distance",
        "relative positions: from this distance on all share a bucket",
        unit="tokens",
        gt=0,
    )
    rope_theta: float = setting(
        50000.0, "ROPE_THETA --rotary-base --rotary-position-embeddings-theta", "base of the rotary frequencies", gt=0
    )
    rope_scaling: Literal["none", "linear", "llama3"] = setting(
        "none",
        "ROPE_SCALING",
        "how rotary frequencies are scaled for contexts longer than the original",
        flags={"--rotary-seq-len-interpolation-factor": "linear"},
    )
    rope_scaling_factor: float = setting(
        1.0,
        "ROPE_SCALING_FACTOR --rotary-seq-len-interpolation-factor",
        "factor of the scaling: positions are divided by it",
        ge=1,
    )
    rope_low_freq_factor: float = setting(
        1.0, "ROPE_LOW_FREQ_FACTOR", "llama3: fewer rotations than this in the original context: fully scaled", gt=0
    )
    rope_high_freq_factor: float = setting(
        4.0, "ROPE_HIGH_FREQ_FACTOR", "llama3: more rotations than this: not scaled", gt=0
    )
    rope_original_positions: int = setting(
        8192, "ROPE_ORIGINAL_POSITIONS", "llama3: length of the original context", unit="tokens", gt=0
    )
    bias: bool = setting(False, "ADD_BIAS", "biases in the linear layers", flags={"--disable-bias-linear": False})
    tied_embeddings: bool = setting(
        False,
        "TIED_EMBEDDINGS",
        "share the embedding with the output layer",
        flags={"--untie-embeddings-and-output-weights": False},
    )
    num_classes: int = setting(
        0,
        "NUM_CLASSES",
        "outputs of a classification head in place of the output layer, by megads finetune; 0: a language model",
        ge=0,
        le=100_000,
    )
    lora_rank: int = setting(
        0,
        "LORA_RANK --lora-rank",
        "rank of the adapters that are trained in place of the weights of LOAD, which are frozen (LoRA); 0: none",
        ge=0,
        le=65536,
    )
    lora_alpha: float = setting(
        16.0, "LORA_ALPHA --lora-alpha", "the adapters' output is multiplied by LORA_ALPHA / LORA_RANK", gt=0
    )
    lora_dropout: float = fraction(0.0, "LORA_DROPOUT --lora-dropout", "dropout of the adapters' input")
    lora_targets: str = setting(
        "all",
        "LORA_TARGETS --lora-targets --lora-target-modules",
        "what gets adapters: q, k, v (together qkv), out, gate, up (gate_up), down, or all",
        words=True,
    )
    retro_encoder_layers: int = setting(
        2, "RETRO_ENCODER_LAYERS --retro-encoder-layers", "retro: layers of the encoder of neighbours", gt=0, le=1000
    )
    retro_encoder_hidden_dropout: float = fraction(
        0.1,
        "RETRO_ENCODER_HIDDEN_DROPOUT --retro-encoder-hidden-dropout",
        "retro: dropout after attention and MLP of the encoder",
    )
    retro_encoder_attention_dropout: float = fraction(
        0.1,
        "RETRO_ENCODER_ATTENTION_DROPOUT --retro-encoder-attention-dropout",
        "retro: on weights of the attention among a neighbour's tokens",
    )
    retro_num_neighbors: int = setting(
        2, "RETRO_NUM_NEIGHBORS --retro-num-neighbors", "retro: neighbours of a chunk", gt=0, le=1000
    )
    retro_chunk_length: int = setting(
        64,
        "RETRO_CHUNK_LENGTH",
        "retro: a sample is cut into chunks of this length, and so are the texts of the database",
        unit="tokens",
        gt=1,
        le=2**20,
    )
    retro_retrieved_chunks: int = setting(
        2,
        "RETRO_RETRIEVED_CHUNKS --retro-num-retrieved-chunks",
        "retro: chunks of a neighbour, itself and what continues it",
        gt=0,
        le=100,
    )
    retro_attention_gate: float = setting(
        1.0,
        "RETRO_ATTENTION_GATE --retro-attention-gate",
        "retro: what attention to neighbours gives is multiplied by this; 0: they are not looked at",
        ge=0,
        le=1,
    )
    hidden_dropout: float = fraction(
        0.0, "HIDDEN_DROPOUT --hidden-dropout", "dropout after embedding, attention and MLP"
    )
    attention_dropout: float = fraction(0.0, "ATTENTION_DROPOUT --attention-dropout", "on attention weights")
    init_std: float = setting(
        0.0,
        "INIT_METHOD_STD --init-method-std",
        "standard deviation of initial weights; 0: sqrt(2 / (5 HIDDEN)), for gpt 0.02",
        ge=0,
    )
    attention: Literal["sdpa", "flash"] = setting(
        "sdpa",
        "ATTENTION",
        "torch's scaled_dot_product_attention, or the flash-attn package",
        switches={"NO_FLASH_ATTN": "sdpa"},
    )
