"""What a driver cannot do: end the program, and with it every other device.

Vendors' libraries call `sys.exit` where they should raise. Around a driver's code this is a failure of that code.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class DriverExit(Exception):
    """A driver, or something that it uses, tried to end the program."""


@contextmanager
def contained() -> Iterator[None]:
    """For a block that runs a driver's code: SystemExit, alone or out of a nursery of the driver, is DriverExit."""
    try:
        yield
    except SystemExit as error:
        raise DriverExit("the driver tried to end the program") from error
    except BaseExceptionGroup as group:
        if group.subgroup(SystemExit) is None:
            raise
        raise DriverExit("a task of the driver tried to end the program") from group
