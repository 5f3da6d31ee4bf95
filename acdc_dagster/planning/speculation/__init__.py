"""Speculation: whether a replica drafts tokens, with what, and how many at a time."""
