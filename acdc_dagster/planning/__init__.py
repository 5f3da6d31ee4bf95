"""Stage 3, `profile`: what the job looks like, and the plan to run it."""
