"""Hundreds of faults in small runs: which cause each gets, whether the run recovers, whether a healthy host is blamed.

python -m benchmarks.faults --count 500 --seed 22
"""
