"""The training loop, where model, data, engine and checkpoints meet."""
