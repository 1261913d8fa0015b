"""Labelled examples to finetune on: RACE, MNLI, QQP and a user's own JSON lines. No torch."""
