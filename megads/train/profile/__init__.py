"""Profiles of single steps: operations, FLOPs, memory."""
