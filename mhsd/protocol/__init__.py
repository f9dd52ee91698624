"""The one door: methods, dispatch, identities."""
