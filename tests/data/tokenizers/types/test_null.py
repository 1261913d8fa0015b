"""No tokenizer: text is ids."""

from __future__ import annotations

import pytest

from megads.data.tokenizers.build import load_tokenizer, vocab_size_of
from megads.errors import ConfigError, DataError
from tests.data.factory import make_run


def test_null_tokenizer_ends_documents_with_its_last_id():
    tokenizer = load_tokenizer(make_run())
    assert (tokenizer.vocab_size, tokenizer.eod) == (100, 99), "Megatron's --vocab-size 99"
    assert tokenizer.encode("3 1 99") == [3, 1, 99]
    assert tokenizer.decode([3, 1]) == "3 1"
    with pytest.raises(DataError, match=r"ids must be 0..99, got 3..100"):
        tokenizer.encode("3 100")
    with pytest.raises(DataError, match="'x' is not a row of token ids"):
        tokenizer.encode("x")
    with pytest.raises(ConfigError, match="set VOCAB_SIZE"):
        vocab_size_of(make_run(model={"vocab_size": 0}))
