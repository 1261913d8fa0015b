"""What a person sees of a run: log lines, metrics, throughput, progress."""
