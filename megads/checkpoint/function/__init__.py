"""What function a checkpoint's weights are: conventions by name, and a stored batch with its loss."""
