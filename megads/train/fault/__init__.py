"""What goes wrong in a run, and leaving in time: watchdog, anomalies, rollback, stop."""
