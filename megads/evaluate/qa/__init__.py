"""Answers of a model to questions: their scores."""
