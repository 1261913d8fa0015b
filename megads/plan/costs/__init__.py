"""What a whole run takes: jobs, saves, failures, energy, CO2."""
