"""Which run of stage 1 wrote the tables of a partition, so that those of two runs are never mixed.

Each table is replaced in a commit of its own. Each commit carries the number of its run, and
whoever relies on the tables sees that it is the same in all of them.
"""

import secrets
from dataclasses import dataclass

from acdc_dagster.errors import IncompleteError
from acdc_dagster.schemas import TableName
from acdc_dagster.tables import TableError, Tables

# Bits of a run's number: Delta keeps a signed 64-bit integer.
_BITS = 63


@dataclass(frozen=True)
class TakingIn:
    """One run of stage 1 over one partition.

    Attributes:
        number: No other run's.
    """

    partition: str
    number: int

    @staticmethod
    def begun(partition: str) -> "TakingIn":
        """A run that has written nothing yet."""
        return TakingIn(partition, secrets.randbits(_BITS))

    @property
    def marks(self) -> dict[str, int]:
        """To be committed with the rows of each table."""
        return {_app_id(self.partition): self.number}

    def check(self, tables: Tables, *written: TableName) -> None:
        """See that the tables that this run wrote are still its own.

        Raises:
            TableError: Another run has replaced one of them.
        """
        for name in written:
            if tables.mark(name, _app_id(self.partition)) != self.number:
                raise another_run(tables, self.partition)


def taken_in_by(tables: Tables, partition: str) -> int | None:
    """The number of the run whose rows `raw_requests` and `rejected` hold.

    Returns:
        None if nothing was taken in, or by an earlier version of this package.

    Raises:
        IncompleteError: They are of two runs: one was stopped between the two, or two ran at once.
    """
    app_id = _app_id(partition)
    number = tables.mark("raw_requests", app_id)
    if tables.mark("rejected", app_id) != number:
        raise IncompleteError(
            f"raw_requests and rejected of {tables.job} are of different runs for partition "
            f"{partition!r}: the last run stopped before its end, or two ran at once.",
            f"Materialise {tables.job}/raw_requests and what follows it for this partition.",
        )
    return number


def another_run(tables: Tables, partition: str) -> TableError:
    """The fault that tables of a partition were replaced by another run meanwhile."""
    return TableError(
        f"Another run of {tables.job} took in partition {partition!r} meanwhile, so its tables "
        "would be of two runs.",
        "Let the other run finish, or cancel it; then run this partition again.",
    )


def _app_id(partition: str) -> str:
    return f"taken-in/{partition}"
