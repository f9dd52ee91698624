"""A synchronous MHS client on the standard library alone.

`mhsctl` starts in a few milliseconds because nothing here imports trio, cattrs, attrs or typer; an e-stop
from a shell depends on that.
"""
