"""Corpus tools: clean, count, order and deduplicate documents before they become tokens. Never imports torch."""
