"""What is checked and shown before a rank starts. Never imports torch."""
