"""Runs and scripts as batch jobs of PBS and SLURM. Never imports torch."""
