"""What this copy of megads is: version, commit, and the formats that it reads and writes. Needs nothing else."""
