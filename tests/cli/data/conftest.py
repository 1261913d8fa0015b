"""The corpus of the tests of tokenizers."""

from tests.data.tokenizers.conftest import corpus

__all__ = ["corpus"]
