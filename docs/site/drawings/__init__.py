"""What each diagram shows, drawn from the code's own data."""
