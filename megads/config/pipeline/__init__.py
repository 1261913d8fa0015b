"""Pipeline schedules: what every stage does and when, without torch."""
