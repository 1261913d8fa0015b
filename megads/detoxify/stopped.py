"""The end of a wait that the user interrupts. Imports nothing of the package."""


class Stopped(Exception):
    """A scorer was asked to end while it waited."""
