"""Hypothesis profiles for all tests: bounded and repeatable, or long and random (HYPOTHESIS_PROFILE=soak).

And directories for the local sockets of the daemons that tests start and for what a user's programs note: the
machine's own belong to its real ones.
"""

import atexit
import os
import re
import shutil
import signal
import tempfile
import tracemalloc  # noqa: F401 - pytest's hook imports it half-way through a collection otherwise, and trips

import pytest
from hypothesis import HealthCheck, settings

# Other work on the machine makes single examples slow at times: the number of examples bounds the time.
_SLOW_IS_FINE = [HealthCheck.too_slow]

settings.register_profile(
    "default",
    derandomize=True,
    max_examples=100,
    deadline=None,
    database=None,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.register_profile(
    "soak",
    derandomize=False,
    max_examples=5_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_RUNTIME_DIR = tempfile.mkdtemp(prefix="mhsd-tests-")
os.environ["MHSD_RUNTIME_DIR"] = _RUNTIME_DIR
# Where `mhsctl` notes the sessions that it leaves open: the user's own record stays as it is.
os.environ["XDG_STATE_HOME"] = os.path.join(_RUNTIME_DIR, "user-state")
atexit.register(shutil.rmtree, _RUNTIME_DIR, ignore_errors=True)

# A shell without job control starts its background jobs with these ignored, and every child would inherit that: the
# tests that stop a daemon by a signal need the usual meaning, whatever started them.
for signum in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(signum) is signal.SIG_IGN:
        signal.signal(signum, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    """Temporary directories with short names: the path of a Unix socket has 107 bytes, and tests serve at many."""
    if config.option.basetemp is None and not hasattr(config, "workerinput"):
        config.option.basetemp = tempfile.mkdtemp(prefix="mhsd-")
        atexit.register(shutil.rmtree, config.option.basetemp, ignore_errors=True)


_FRESH_ULID = re.compile("[0-7][0-9A-HJKMNP-TV-Z]{20,}")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names that are the same in every process, so that several can share the tests: sets sorted, new ULIDs masked."""
    if isinstance(val, set | frozenset):
        return repr(sorted(val, key=repr))
    if isinstance(val, str) and _FRESH_ULID.search(val):
        return _FRESH_ULID.sub("ULID", val)
    return None
