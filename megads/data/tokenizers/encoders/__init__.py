"""Libraries that encode many texts at once, and the proof that their ids are exact."""
