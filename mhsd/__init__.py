"""mhsd serves laboratory instruments over MHS/1.0."""

__version__ = "0.1.0"

SPEC_VERSION = "0.9"
"""The OpenMHS specification line."""

MHS_VERSION = "1.0"
"""The revision of the wire protocol."""
