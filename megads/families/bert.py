"""BERT (arXiv 1810.04805), as Megatron-LM trains it: encoder, hidden tokens and the order of two halves of a text."""

from __future__ import annotations

from megads.families.family import Family

BERT = Family(
    "encoder, masked tokens and sentence order",
    (),
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
    is_trained=False,
)
