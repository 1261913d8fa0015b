"""What a model is: its parameters, a family's defaults, and its names elsewhere. No torch."""
