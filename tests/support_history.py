"""Rows of `history` for tests, as workers write them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from acdc_dagster.deployment import Deployment
from acdc_dagster.planning.history.runs import Run
from acdc_dagster.planning.plan import EngineSettings
from acdc_dagster.schemas import row_schema
from acdc_dagster.tables import Tables

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def settings(**given: Any) -> EngineSettings:
    """Those of an engine on one GPU."""
    usual: dict[str, Any] = {
        "model_path": "m",
        "max_model_len": 4096,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8192,
        "block_size": 32,
        "kv_cache_gib": None,
        "dtype": "auto",
        "tensor_parallel": 1,
        "expert_parallel": 1,
        "extra": {},
    }
    return EngineSettings(**(usual | given))


def a_run(seconds: float, *, days: float = 0.0, engine: str = "vllm 1", **given: Any) -> Run:
    """A run of 1,000 requests of 500 and 100 tokens; `given` are settings of its engine."""
    return Run(
        gpu=given.pop("gpu", "H100"),
        engine=engine,
        replicas=given.pop("replicas", 1),
        settings=settings(**given),
        requests=1000,
        prompt_tokens=500_000,
        cached_tokens=0,
        completion_tokens=100_000,
        seconds=seconds,
        finished_at=NOW - timedelta(days=days),
    )


def write_runs(
    deployment: Deployment, job: str, runs: list[Run], model: str, **marks: object
) -> None:
    """Add rows to the history of a job; `marks` are columns that they have beside."""
    devices = {"H100": "NVIDIA H100 80GB HBM3", "CPU": "cpu"}
    rows = [
        {
            **{name: value for name, value in vars(run).items() if name not in ("gpu", "settings")},
            "device": devices.get(run.gpu, run.gpu),
            "settings": run.settings.model_dump_json(),
            "model": model,
            "failed": 0,
            **marks,
        }
        for run in runs
    ]
    frame = pl.DataFrame(rows, schema=row_schema("history"))
    tables = Tables(deployment.tables_root, job)
    tables.replace("history", f"{job}{marks}", frame)
