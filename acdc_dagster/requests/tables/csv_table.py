"""CSV files as a table: polars parses the records, and a line that is none is told by itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import polars as pl
from polars.exceptions import ColumnNotFoundError, ComputeError, DuplicateError, NoDataError

from acdc_dagster.requests.lines import read_lines
from acdc_dagster.requests.refused import Refused
from acdc_dagster.requests.tables.csv_records import CODE, Records, records
from acdc_dagster.requests.tables.membership import Membership
from acdc_dagster.requests.tables.slices import BadLine, Slice


@dataclass(frozen=True)
class CsvTable:
    """CSV files with a header line each; every column is text, so an id like 007 stays as it is.

    Args:
        place: Path, glob or URI.
        storage_options: For a URI.
    """

    place: str
    storage_options: dict[str, str]

    def columns(self, names: set[str]) -> list[str]:
        """The columns of the first file's header."""
        for part in self._parts():
            return part.header
        raise NoDataError("it is empty")

    def slices(self, columns: list[str], membership: Membership | None) -> Iterator[Slice]:
        """As `Table` has it.

        Raises:
            ColumnNotFoundError: A file of a glob lacks a column.
        """
        read = [*columns, *({membership.column} - {*columns} if membership is not None else ())]
        for part in self._parts():
            rows, lines = part.parse(read), part.records.lines
            if membership is not None:
                member = membership.keep(rows[membership.column])
                rows, lines = rows.filter(member), lines.filter(member)
            if rows.height or part.records.bad:
                yield Slice.merged(rows.select(columns), lines, part.records.bad)

    def _parts(self) -> Iterator["_Part"]:
        lines = read_lines(self.place, self.storage_options)
        for file, blocks in groupby(lines, key=lambda block: block.file):
            header: list[str] | None = None
            for found in records(blocks):
                if header is None:
                    header = _header(file, found)
                    found = Records(found.text[1:], found.lines[1:], found.bad)
                yield _Part(file, header, _with_as_many_fields(file, len(header), found))


@dataclass(frozen=True)
class _Part:
    """Some records of one file, each with as many fields as its header."""

    file: str
    header: list[str]
    records: Records

    def parse(self, columns: list[str]) -> pl.DataFrame:
        """Those columns of the records."""
        for name in columns:
            if name not in self.header:
                raise ColumnNotFoundError(f"{self.file} has no column {name!r}")
        # By number: polars does not take the doubled quotes out of a column's name.
        numbers = [str(number) for number in range(len(self.header))]
        text = "\n".join([",".join(numbers), *self.records.text])
        rows = pl.read_csv(text.encode(), schema=dict.fromkeys(numbers, pl.String))
        rows = rows.rename(dict(zip(numbers, self.header, strict=True))).select(columns)
        if rows.height != self.records.text.len():  # ids would meet the wrong rows
            raise ComputeError(f"{self.file} was read as other rows than it has")
        return rows


def _header(file: str, found: Records) -> list[str]:
    if found.text.len() == 0 or any(line.number < found.lines[0] for line in found.bad):
        raise NoDataError(f"{file} does not begin with a header line")
    line = f"{found.text[0]}\n".encode()
    names = pl.read_csv(line, has_header=False, infer_schema=False).row(0)
    for name in names:
        if name and names.count(name) > 1:
            raise DuplicateError(f"{file} has two columns {name!r}; rename one of them")
    # Columns without a name, as a spreadsheet leaves behind, get one each.
    blank = pl.read_csv(line, infer_schema=False).columns
    return [name or other for name, other in zip(names, blank, strict=True)]


def _with_as_many_fields(file: str, wanted: int, found: Records) -> Records:
    """The records with the wanted number of fields; the others are bad lines."""
    text = pl.col("text")
    unquoted = (
        pl.when(text.str.contains('"', literal=True))
        .then(text.str.replace_all(r'"[^"]*"', ""))
        .otherwise(text)
    )
    frame = pl.DataFrame({"text": found.text, "line": found.lines}).with_columns(
        fields=unquoted.str.count_matches(",", literal=True) + 1
    )
    ragged = frame.filter(pl.col("fields") != wanted)
    if ragged.height == 0:
        return found
    bad = [
        BadLine(
            line,
            Refused(
                CODE,
                f"Line {line} of {file} has {fields} field(s) and the header {wanted}; a field "
                "with a comma in it must stand in quotes.",
            ),
            text.encode(),
        )
        for text, line, fields in ragged.iter_rows()
    ]
    frame = frame.filter(pl.col("fields") == wanted)
    return Records(frame["text"], frame["line"], [*found.bad, *bad])
