"""What a run needs and how fast it will be: parameters, memory, FLOPs, traffic, time. Arithmetic without torch."""
