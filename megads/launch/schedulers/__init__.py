"""What a job gives: hosts, ranks, time. Never imports torch."""
