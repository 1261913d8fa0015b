"""What a rank holds and computes, part by part: weights, optimizer, activations, experts."""
