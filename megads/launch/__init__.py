"""How a run is started: plans, launchers, signals. Never imports torch."""
