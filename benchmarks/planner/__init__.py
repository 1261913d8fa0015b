"""The planner's predictions next to published measurements: ``python -m benchmarks.planner``."""
