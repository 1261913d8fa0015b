"""Cleaning: text repair, languages, the rules of Megatron-LM's OpenWebText tools."""
