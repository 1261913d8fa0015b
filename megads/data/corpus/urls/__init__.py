"""Lists of URLs: which are not worth a download."""
