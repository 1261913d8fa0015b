"""Where a run is: machines, hosts and ranks. Never imports torch."""
