"""``megads doctor``: checks of a machine and its versions."""
