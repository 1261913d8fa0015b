"""How a run is started: plans, starters, signals. Never imports torch."""
