"""Text out of a trained model: sampling, a key/value cache, continuous batching, and a server."""
