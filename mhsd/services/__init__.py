"""Hosts that own lifetimes: devices, sessions, the e-stop. They ask `core` what to do and do the I/O."""
