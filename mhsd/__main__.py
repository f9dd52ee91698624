"""`python -m mhsd` is `mhsctl`."""

import sys

from mhsd.cli.main import mhsctl

if __name__ == "__main__":
    sys.exit(mhsctl())
