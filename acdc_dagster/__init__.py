"""Offline LLM batch inference as Dagster assets.

A job declared in `assets/<job>/defs.yaml` becomes five chained, partitioned assets: raw requests,
sorted requests, profile, inference, outputs. Each is a Delta table.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acdc_dagster.lineage.component import BatchInferenceComponent

__version__ = "0.1.0"
__all__ = ["BatchInferenceComponent"]


def __getattr__(name: str) -> Any:
    """Import the component when it is asked for: workers and the core run without Dagster."""
    if name == "BatchInferenceComponent":
        from acdc_dagster.lineage.component import BatchInferenceComponent

        return BatchInferenceComponent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
