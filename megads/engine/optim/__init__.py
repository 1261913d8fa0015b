"""The optimizers: libraries' classes on what DeepSpeed gives them, or on whole parameters."""
