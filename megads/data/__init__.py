"""From text to the right token at the right step."""
