"""What a run is: settings, presets, and the rules they keep. Never imports torch."""
