"""The grid of ranks, its process groups, differentiable collectives and RNG streams."""
