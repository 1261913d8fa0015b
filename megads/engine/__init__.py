"""What turns batches into parameter updates."""
