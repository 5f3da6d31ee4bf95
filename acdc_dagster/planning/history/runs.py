"""The measured runs of a model: rows of `history` of all jobs, each with what it says of speed."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from acdc_dagster.deployment import Deployment
from acdc_dagster.gpus import Gpu, known_gpus
from acdc_dagster.planning.cost.makespan import EngineLimits
from acdc_dagster.planning.plan import EngineSettings
from acdc_dagster.tables import Tables

# The folder of tables that `acdc calibrate` writes; no job can have this name.
CALIBRATION = "_calibration"
_MOST = 300  # the newest runs say what older ones would
_COLUMNS = (
    "engine",
    "device",
    "replicas",
    "settings",
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "seconds",
    "finished_at",
)


@dataclass(frozen=True)
class Run:
    """What one worker did, and for how long its engine was up.

    Attributes:
        gpu: By the planner's name.
        engine: Name and version.
        replicas: Workers that ran beside one another, this one included.
        prompt_tokens: Of all its requests, as are the next two.
        cached_tokens: Those of them that the prefix cache held.
    """

    gpu: str
    engine: str
    replicas: int
    settings: EngineSettings
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    seconds: float
    finished_at: datetime

    @property
    def limits(self) -> EngineLimits:
        """What its scheduler was told."""
        return EngineLimits(self.settings.max_num_seqs, self.settings.max_num_batched_tokens)


def measured_runs(deployment: Deployment, model: str) -> list[Run]:
    """The newest runs of a model in all jobs of a deployment and in its calibration, newest first.

    Left out are runs that are marked as outliers (preempted, contended, restarted), that answered
    nothing or failed requests, that speculated (the roofline has no drafts), and those on devices
    that the planner has no name for.

    Raises:
        DeclarationError: A job of the deployment is declared wrongly.
        TableError: The storage refused.
    """
    names = _names_of(known_gpus(deployment.environment.gpus))
    frames = [_rows(deployment, job, model) for job in (*deployment.jobs(), CALIBRATION)]
    newest = pl.concat(frames).sort("finished_at", descending=True).head(_MOST)
    return list(_runs(newest.iter_rows(named=True), names))


def _rows(deployment: Deployment, job: str, model: str) -> pl.DataFrame:
    tables = Tables(deployment.tables_root, job, deployment.environment.storage_options)
    healthy = (
        (pl.col("model") == model)
        & pl.col("outlier").is_null()
        & pl.col("settings").str.json_path_match("$.speculation.method").is_null()
        & (pl.col("failed") == 0)
        & (pl.col("requests") > 0)
        & (pl.col("seconds") > 0)
    )
    rows = tables.scan("history").filter(healthy).select(_COLUMNS)
    return tables.collect(rows.sort("finished_at", descending=True).head(_MOST))


def _names_of(gpus: dict[str, Gpu]) -> dict[str, str]:
    """The planner's name of a device by the name that its maker gives it."""
    return {device: name for name, gpu in gpus.items() for device in gpu.devices}


def _runs(rows: Iterable[dict[str, Any]], names: dict[str, str]) -> Iterable[Run]:
    for row in rows:
        gpu = names.get(row.pop("device"))
        if gpu is not None:
            settings = EngineSettings.model_validate_json(row.pop("settings"))
            yield Run(gpu=gpu, settings=settings, **row)
