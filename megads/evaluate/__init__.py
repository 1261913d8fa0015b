"""Numbers of a trained model on texts: perplexity, bits per byte, accuracy of the last word."""
