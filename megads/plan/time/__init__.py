"""How long a step takes: one estimator for launch, ``megads plan``, ``megads bench --roofline`` and the benchmarks."""
