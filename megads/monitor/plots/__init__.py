"""A run's numbers as pictures: PNG, one page of HTML, and sketches for the terminal. No torch."""
