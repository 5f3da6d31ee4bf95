"""Stage 4, `inference`: the worker answers its shard, every request exactly once."""
