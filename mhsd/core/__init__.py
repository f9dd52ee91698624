"""The rules of the protocol as values and plain functions: no I/O, no clock, no randomness."""
