"""Engines, each in a process of its own: what is asked of one, and how a worker talks to it."""
