"""The settings, section by section, each declared once. Never imports torch."""
