"""The optimizers: libraries' classes on what the engine gives them, or on whole parameters."""
