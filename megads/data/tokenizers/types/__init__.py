"""The types of tokenizers, one file each. Never imports torch."""
