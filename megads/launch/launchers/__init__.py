"""How ranks are started: each launcher is a row of data and a function that builds its command."""
