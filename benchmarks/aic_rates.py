"""Rates that NVIDIA AIConfigurator predicts, for `benchmarks.regret`; run by a Python that has it.

    python benchmarks/aic_rates.py < QUERIES > RATES

A query is a line of JSON: what is passed to `cli_estimate`, and `replicas`. A line of the answer is
requests/s of all replicas and GB on each GPU, or null where the tables hold nothing for it.
"""

import functools
import json
import logging
import sys


def main() -> None:
    """Answer each line of standard input."""
    logging.disable(logging.CRITICAL)
    from aiconfigurator.cli.api import cli_estimate
    from aiconfigurator_core.sdk import perf_database

    # It reads the versions of all tables again with each call, which takes seconds.
    versions = functools.cache(perf_database.get_supported_databases)
    perf_database.get_supported_databases = lambda *args, **named: versions(*args, **named)
    for line in sys.stdin:
        query = json.loads(line)
        replicas = query.pop("replicas")
        try:
            raw = cli_estimate(backend_name="vllm", mode="agg", **query).raw
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}), flush=True)
            continue
        rate = {"rate": float(raw["seq/s"]) * replicas, "memory": float(raw["memory"])}
        print(json.dumps(rate), flush=True)


if __name__ == "__main__":
    main()
