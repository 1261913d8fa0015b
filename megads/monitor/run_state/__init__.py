"""What a run folder says of its run: outcome, heartbeat, rows. Never imports torch."""
