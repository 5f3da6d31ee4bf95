"""Which answers that are there already may serve a partition."""

from acdc_dagster.job import Job
from acdc_dagster.tables import Tables


def apart(job: Job, tables: Tables, partition: str) -> str:
    """What tells the requests of a partition apart from all that were answered before.

    Nothing does unless the job declares `reuse: off`. Then each run begins anew: it is the number
    of runs that the partition has had, so that a run that broke off is still resumed.

    Raises:
        TableError: The storage refused.
    """
    return "" if job.declared.reuse else f"{partition}/{tables.count('runs', partition)}"
