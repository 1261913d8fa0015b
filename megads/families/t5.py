"""T5 (arXiv 1910.10683), as Megatron-LM trains it: encoder and decoder, spans of a text that are cut out."""

from __future__ import annotations

from megads.families.family import Family

T5 = Family(
    "encoder and decoder, spans that are cut out",
    (),
    {
        "model.normalization": "layernorm",
        "model.activation": "gelu_tanh",
        "model.position_embedding": "learned",
        "model.bias": True,
        "model.tied_embeddings": True,
        "model.hidden_dropout": 0.1,
        "model.attention_dropout": 0.1,
        "data.tokenizer_type": "BertWordPieceLowerCase",
        "data.vocab_extra_ids": 100,
    },
    init_std=0.02,
    samples="t5",
    is_trained=False,
)
