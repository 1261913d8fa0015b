"""What a run needs and computes: parameters, memory, FLOPs. Arithmetic; never imports torch."""
