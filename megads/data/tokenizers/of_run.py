"""The tokenizer of a run; without torch, and quick where only the size of the vocabulary is asked for."""

from __future__ import annotations

import dataclasses

from megads.config.schema import RunConfig
from megads.data.sources import demo
from megads.data.tokenizers import build
from megads.data.tokenizers.base import Tokenizer
from megads.data.tokenizers.types.huggingface import HFTokenizer


def vocab_size_of(run: RunConfig) -> int:
    """Return the size of the run's vocabulary, without loading the tokenizer itself where that takes longer.

    For the demo corpus that is ``run.data.demo_vocab_size``, whether or not the corpus is made yet.

    Raises:
        ConfigError: the settings name no tokenizer, or no vocabulary size where one is needed.
        DataError: the tokenizer is not there or is broken.
        DependencyError: its library is not installed.
    """
    if build.uses_demo(run):
        build.check_spec(build.spec_of(run))
        return run.data.demo_vocab_size
    return build.vocab_size(build.spec_of(run))


def load_tokenizer(run: RunConfig) -> Tokenizer:
    """Return the run's tokenizer; errors as in :func:`vocab_size_of`."""
    if not build.uses_demo(run):
        return build.make_tokenizer(build.spec_of(run))
    demo.read_demo(run)
    tokenizer = build.make_tokenizer(build.spec_of(run))
    # A small corpus may yield fewer tokens than were asked for.
    assert isinstance(tokenizer, HFTokenizer)
    return dataclasses.replace(tokenizer, vocab_size=run.data.demo_vocab_size)
