"""The client for Trio: the same calls, receipts and errors as `mhsd.client`, as async functions."""
