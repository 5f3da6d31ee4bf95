"""Rows on their way into `raw_requests`: collected one by one, judged as a whole at the end."""

from dataclasses import dataclass, field

import polars as pl

from acdc_dagster.requests.body import Body, Refused
from acdc_dagster.requests.rejected import Rejection
from acdc_dagster.tables import row_schema

_Row = tuple[str, str, str, str, str, int, bytes]
_REQUEST = row_schema("raw_requests")


@dataclass(frozen=True)
class Taken:
    """What one partition of the source holds.

    Attributes:
        input_rows: Rows seen, blank lines not counted; equals the sum of `input_rows` over
            `requests` and `rejections`.
        requests: Valid requests, one a custom_id, in input order; `raw_requests` without its key.
        rejections: The rest.
        warnings: What is allowed but worth knowing.
    """

    input_rows: int
    requests: pl.DataFrame
    rejections: list[Rejection]
    warnings: list[str]


@dataclass
class Intake:
    """Collects rows, then settles what only the whole shows: repeated ids, mixed models.

    Args:
        model: The model that every request must name; the first one's if None.
    """

    model: str | None
    input_rows: int = 0
    _requests: list[_Row] = field(default_factory=list[_Row])
    _rejected: list[Rejection] = field(default_factory=list[Rejection])

    def accept(
        self,
        custom_id: str,
        endpoint: str,
        raw_body: str,
        body: Body,
        source: str,
        line: int,
        original: bytes,
    ) -> None:
        """Count a row that is a valid request by itself; `original` is the row as it stands."""
        self.input_rows += 1
        self._requests.append((custom_id, endpoint, body.model, raw_body, source, line, original))

    def refuse(self, refused: Refused, source: str, line: int, original: bytes) -> None:
        """Count a row that is none."""
        self.input_rows += 1
        self._rejected.append(Rejection.of(refused, source, line, original))

    def settle(self) -> Taken:
        """The partition as a whole."""
        columns = [name for name in _REQUEST if name != "input_rows"]
        rows = pl.DataFrame(
            self._requests,
            schema={**{name: _REQUEST[name] for name in columns}, "original": pl.Binary},
            orient="row",
        )
        late: list[Rejection] = []
        first = rows.row(0, named=True) if rows.height else {"endpoint": "", "model": ""}
        rows = _set_aside(
            rows,
            pl.col("endpoint") != first["endpoint"],
            "url_mismatch",
            pl.format(
                "url {} differs from the batch's, {}; put it into a file of its own.",
                pl.col("endpoint"),
                pl.lit(first["endpoint"]),
            ),
            late,
        )
        model = self.model or first["model"]
        rows = _set_aside(
            rows,
            pl.col("model") != model,
            "model_mismatch",
            pl.format(
                "model {} differs from the job's, {}; put it into a job of its own.",
                pl.col("model"),
                pl.lit(model),
            ),
            late,
        )
        rows = rows.with_columns(
            bodies=pl.col("body").n_unique().over("custom_id"),
            input_rows=pl.len().over("custom_id").cast(pl.Int64),
        ).join(
            rows.group_by("custom_id").agg(
                lines=pl.when(pl.col("source").n_unique() > 1)
                .then(pl.format("{}:{}", "source", "line").head(5).str.join(", "))
                .otherwise(pl.col("line").cast(pl.String).head(5).str.join(", "))
            ),
            on="custom_id",
            how="left",
            maintain_order="left",
        )
        rows = _set_aside(
            rows,
            pl.col("bodies") > 1,
            "duplicate_custom_id",
            pl.format(
                "custom_id {} stands on lines {} with different bodies, so no answer could be "
                "told from another; give each its own id.",
                pl.col("custom_id"),
                pl.col("lines"),
            ),
            late,
        )
        warnings = _repeated(rows)
        rows = rows.unique("custom_id", keep="first", maintain_order=True)
        requests = rows.select(_REQUEST.names())
        return Taken(self.input_rows, requests, [*self._rejected, *late], warnings)


def _set_aside(
    rows: pl.DataFrame,
    wrong: pl.Expr,
    code: str,
    message: pl.Expr,
    rejected: list[Rejection],
) -> pl.DataFrame:
    """Move the rows that are `wrong` to `rejected`; returns the others."""
    bad = rows.filter(wrong).with_columns(message=message)
    for row in bad.iter_rows(named=True):
        refused = Refused(code, row["message"], row["custom_id"])
        rejected.append(Rejection.of(refused, row["source"], row["line"], row["original"]))
    return rows.filter(~wrong)


def _repeated(rows: pl.DataFrame) -> list[str]:
    again = rows.filter(pl.col("input_rows") > 1).unique(
        "custom_id", keep="first", maintain_order=True
    )
    shown = [
        f"custom_id {row['custom_id']!r} stands on lines {row['lines']} with the same body; "
        "it is answered once."
        for row in again.head(5).iter_rows(named=True)
    ]
    if again.height > 5:
        shown.append(f"{again.height - 5} more custom_ids are repeated with the same body.")
    return shown
