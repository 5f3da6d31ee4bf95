"""What a layout of GPUs does with a job: memory, time of a step, time of the whole."""
