"""Text of a model that looks at neighbours of its chunks."""
