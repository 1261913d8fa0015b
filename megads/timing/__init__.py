"""What the time of a step is spent on: sections, timed collectives, step times, stragglers."""
