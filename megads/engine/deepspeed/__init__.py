"""All that knows DeepSpeed: ZeRO 0 to 3 and its pipeline."""
