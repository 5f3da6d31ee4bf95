"""Drift: whether answers still are as the profile says, and whether another plan then pays."""
