"""How ranks are started: each starter is a row of data and a function that builds its command."""
