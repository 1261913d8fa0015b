"""Every error that megads raises on purpose.

The command line prints one of these as a single line on stderr and exits with 2;
any other exception is a bug and keeps its traceback. A message says what was given,
where it came from, and what would work.
"""

EXIT_DONE, EXIT_FAILED, EXIT_WRONG, EXIT_STOPPED = 0, 1, 2, 75
"""Exit codes of a run: complete, a failure, a wrong setting or input, stopped on purpose with a checkpoint."""


def plain(text: str, keep: str = "") -> str:
    """Return ``text`` with whatever does not print, line breaks too, written as escapes, but for ``keep``."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)


class MegadsError(Exception):
    """A wrong setting or input, as opposed to a bug."""

    def __str__(self) -> str:
        """Return the message on one line: line breaks and bytes that do not print are escaped."""
        return plain(super().__str__())


class ConfigError(MegadsError):
    """A setting that is unknown, has a wrong value, or contradicts another one."""


class DataError(MegadsError):
    """Training data that is missing, broken, or does not fit the model."""


class LaunchError(MegadsError):
    """A run that cannot be started on this host or allocation."""


class DeviceError(MegadsError):
    """A device or communication backend that is not there."""


class CheckpointError(MegadsError):
    """A checkpoint that is missing, incomplete, or belongs to another model."""


class TrainingError(MegadsError):
    """A run that cannot continue: its numbers are no longer finite."""


class ReplicaError(Exception):
    """A rank whose copy of weights differs from the others': no wrong setting, but a damaged device, memory or network.

    Attributes:
        rank: whose copy is wrong; -1: not known.
        host: its host; empty: not known, or several.
    """

    def __init__(self, text: str, rank: int = -1, host: str = ""):
        super().__init__(text)
        self.rank, self.host = rank, host


class DependencyError(MegadsError):
    """An optional package that is missing, or a version known to be wrong."""
