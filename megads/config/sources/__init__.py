"""Where settings come from: presets, machines, environment, options, files. Never imports torch."""
