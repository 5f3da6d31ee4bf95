"""A deployment for GPUs that need not be there, with a job whose requests are sorted."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from model_configs import CONFIGS
from support import MODEL, Declare

from acdc_dagster.deployment import Deployment
from acdc_dagster.job import Job
from acdc_dagster.planning.choice import Choice
from acdc_dagster.planning.planner import Planned, plan_partition
from acdc_dagster.tables import Tables

TablesOf = Callable[[Job], Tables]
LARGE = "Qwen3-30B-A3B"


def deployed(
    root: Path, local: Mapping[str, Any], config: Mapping[str, Any] = CONFIGS[LARGE]
) -> Deployment:
    """A deployment with these settings of its local backend, and a model that is described only."""
    folder = root / "large"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    environment = {
        "tables": "tables",
        "models": {MODEL: {"path": str(folder)}},
        "backends": {"local": dict(local)},
    }
    (root / "resources" / "local.yaml").write_text(yaml.safe_dump(environment))
    return Deployment.load(root, "local")


def declared(declare: Declare, **attributes: Any) -> Job:
    """A job over a table."""
    given = {"source": {"table": "rows", "id_column": "id"}, "model": MODEL, **attributes}
    return declare("long", given, prompt_dot_md="{{ id }}")


def fill(tables: Tables, rows: int = 20_000, prompt: int = 200, most: int = 400) -> None:
    """Sorted requests of one size."""
    tables.replace(
        "sorted_requests",
        "all",
        pl.DataFrame(
            {
                "position": range(rows),
                "request_hash": [str(row) for row in range(rows)],
                "token_ids": [b""] * rows,
                "prompt_tokens": [prompt] * rows,
                "lcp": [0] * rows,
                "max_tokens": [most] * rows,
                "sampling": ["{}"] * rows,
                "images": [[]] * rows,
                "image_tokens": [0] * rows,
            }
        ).cast({"prompt_tokens": pl.Int32, "lcp": pl.Int32, "max_tokens": pl.Int32}),
    )


def planned(job: Job, deployment: Deployment, tables: Tables) -> Planned:
    """The plan for the deployment's own devices."""
    return plan_partition(job, deployment, deployment.model(MODEL), tables, "all")


def best_of(found: Planned) -> Choice:
    """What was chosen, which there is."""
    assert isinstance(found.choice, Choice)
    return found.choice
