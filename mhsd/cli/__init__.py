"""The programs `mhsd` and `mhsctl` (also `mhs`, `openmhs` and `python -m mhsd`): thin clients, and the daemon's
start.

`table.py` lists the commands, `exits.py` is the one table of exit codes, `fast.py` answers `estop` and
`status` before typer is imported.
"""
