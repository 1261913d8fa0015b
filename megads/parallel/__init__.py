"""Layers and losses that are split over ranks."""
