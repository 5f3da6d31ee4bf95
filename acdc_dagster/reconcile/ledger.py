"""Where the rows of a source went, counted in the tables."""

from dataclasses import dataclass

import polars as pl

from acdc_dagster.schemas import TableName
from acdc_dagster.tables import Tables


@dataclass(frozen=True)
class Ledger:
    """Where the rows of the source went; counts are rows of the source.

    Attributes:
        repeated: custom_ids that stand more than once in `outputs` and `dead_letter` together.
        unknown: custom_ids there that no request has.
        balanced: Every row ended in exactly one place.
    """

    input_rows: int
    outputs: int
    rejected: int
    dead_letter: int
    repeated: int
    unknown: int

    @property
    def balanced(self) -> bool:
        """Whether input rows = outputs + rejected + dead letter, and each id is there once."""
        ended = self.outputs + self.rejected + self.dead_letter
        return self.input_rows == ended and not self.repeated and not self.unknown


def ledger(tables: Tables, partition: str, *, split: bool = False) -> Ledger:
    """Count a partition's rows in its tables.

    The input is what stage 1 read; the other counts are of what the last stages wrote.

    Args:
        tables: The job's tables.
        partition: The partition key.
        split: Rows are split: `dead_letter` has ids of chunks, and `outputs` those of rows.
    """

    def count(name: TableName, *predicates: pl.Expr) -> int:
        rows = tables.scan(name, partition).filter(*predicates)
        return tables.collect(rows.select(pl.col("input_rows").sum())).item() or 0

    rejected_at_once = count("rejected", pl.col("stage") == "raw_requests")
    repeated, unknown = _strangers(tables, partition, split=split)
    return Ledger(
        input_rows=count("raw_requests") + rejected_at_once,
        outputs=count("outputs"),
        rejected=count("rejected"),
        dead_letter=count("dead_letter"),
        repeated=repeated,
        unknown=unknown,
    )


def _strangers(tables: Tables, partition: str, *, split: bool) -> tuple[int, int]:
    """How many custom_ids stand more than once, and how many no request has.

    Ids are compared by a hash of 64 bits: a collision hides one fault in 10^7 such tables.
    """

    def ids(name: TableName) -> pl.Series:
        hashed = pl.col("custom_id").hash(0)
        return tables.collect(tables.scan(name, partition).select(hashed)).to_series()

    asked = tables.scan("request_map", partition).select("custom_id")
    of_rows = asked.select(pl.col("custom_id").str.replace(r":\d+$", "")) if split else asked
    known_rows = tables.collect(of_rows.select(pl.col("custom_id").hash(0)).unique()).to_series()
    known = ids("request_map") if split else known_rows
    answered, dead = ids("outputs"), ids("dead_letter")
    ended = [answered, dead] if split else [pl.concat([answered, dead])]
    repeated = sum(len(some) - some.n_unique() for some in ended)
    unknown = sum(
        int((~some.is_in(those.implode())).sum())
        for some, those in ((answered, known_rows), (dead, known))
    )
    return repeated, unknown
