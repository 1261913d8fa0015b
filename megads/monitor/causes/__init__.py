"""Why a start of a run ended: a class, one line, and whether the host where it failed is suspect."""
