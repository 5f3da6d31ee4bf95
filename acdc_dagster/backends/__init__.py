"""Who runs a plan. Here: the embedded default, child processes of this machine."""
