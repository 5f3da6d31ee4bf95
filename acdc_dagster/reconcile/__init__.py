"""Stage 5, `outputs`: one row per custom_id, and `dead_letter` for what got no usable answer."""
