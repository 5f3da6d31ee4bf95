"""Stage 1, `raw_requests`: what is a valid request, and what is not and why."""
