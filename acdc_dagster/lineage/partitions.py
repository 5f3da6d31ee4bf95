"""The job's declared partitions in Dagster's terms."""

from datetime import UTC, date, datetime

import dagster as dg

from acdc_dagster.job import WHOLE, BatchJob


def partitions_of(job: BatchJob) -> dg.PartitionsDefinition[str] | None:
    """Dagster's definition of the job's partitions; None for a job without."""
    declared = job.partitions
    if declared.cadence == "none" or declared.cadence == "static":
        return dg.StaticPartitionsDefinition(declared.keys) if declared.keys else None
    assert declared.start is not None  # noqa: S101 - the declaration was checked
    start = _moment(declared.start)
    end = None if declared.end is None else _moment(declared.end)
    zone, day = job.timezone, declared.begins_on
    match declared.cadence:
        case "hourly":
            return dg.HourlyPartitionsDefinition(start, end_date=end, timezone=zone)
        case "daily":
            return dg.DailyPartitionsDefinition(start, end_date=end, timezone=zone)
        case "weekly":
            return dg.WeeklyPartitionsDefinition(start, end_date=end, timezone=zone, day_offset=day)
        case "monthly":
            return dg.MonthlyPartitionsDefinition(
                start, end_date=end, timezone=zone, day_offset=day
            )


def _moment(day: date) -> datetime:
    return day if isinstance(day, datetime) else datetime(day.year, day.month, day.day, tzinfo=UTC)


def partition_of(context: dg.AssetExecutionContext) -> str:
    """The partition_key that a run is for."""
    return context.partition_key if context.has_partition_key else WHOLE
