"""What ``megads data merge``, ``info`` and ``check`` do. Never imports torch."""
