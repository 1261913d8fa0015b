"""Ranks that the user started, with mpiexec, srun or torchrun. Never imports torch."""
