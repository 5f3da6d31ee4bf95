"""One run of measures: how much is measured, the data that they share, and what they found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import Step, Taken, alternate, run, summary

MODEL = Path(__file__).parents[1] / "data" / "models" / "smollm2-135m-instruct"


class Skipped(Exception):
    """A measure cannot be taken here; the text says why and what would help."""


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        rows: Of the set `three`; the others are as large as their share.
        naive_rows: What the straightforward way is given, and is scaled from.
        bounded_rows: The two sizes between which bounded memory must not grow,
        bounded_gib: and the memory that is then given to sort in.
        rounds: Times that each side is run.
    """

    rows: int
    naive_rows: int
    bounded_rows: tuple[int, int]
    bounded_gib: float
    rounds: int

    def rows_of(self, name: str) -> int:
        """Rows of a set."""
        return self.rows // 2 if name in ("seed", "half") else self.rows


FULL = Scale(100_000, 2_000, (100_000, 1_000_000), 0.25, 5)
QUICK = Scale(2_000, 200, (2_000, 8_000), 0.002, 3)


@dataclass
class Bench:
    """One run: where its files are, and what was found.

    Attributes:
        found: The measures by name.
        skipped: The measures that could not be taken, with the reason.
        record: What the sides of each ratio took, and how large the data is.
    """

    folder: Path
    scale: Scale
    model: str
    found: dict[str, float] = field(default_factory=dict[str, float])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    record: dict[str, Any] = field(default_factory=dict[str, Any])

    def requests(self, name: str, rows: int | None = None) -> str:
        """The request file of a set; made when first asked for."""
        wanted = rows or self.scale.rows_of(name)
        file = self._file(name, "jsonl", wanted)
        if not file.exists():
            arguments = {"name": name, "rows": wanted, "file": str(file)}
            run(Step("benchmarks.data", "request_file", arguments))
        return str(file)

    def texts(self, name: str) -> str:
        """The rendered prompts of a set as Parquet; made when first asked for."""
        file = self._file(name, "parquet")
        if not file.exists():
            arguments = {"file": self.requests(name), "model": self.model, "out": str(file)}
            run(Step("benchmarks.peers", "texts", arguments))
        return str(file)

    def tokens(self, name: str) -> str:
        """The tokenised prompts of a set; made when first asked for."""
        file = self._file(name, "npz")
        if not file.exists():
            arguments = {"texts": self.texts(name), "model": self.model, "out": str(file)}
            made = run(Step("benchmarks.ours", "tokens_of", arguments)).result
            self.record[f"data_{name}"] = made
        return str(file)

    def _file(self, name: str, kind: str, rows: int | None = None) -> Path:
        return self.folder / f"{name}_{rows or self.scale.rows_of(name)}.{kind}"

    def prepared(
        self, file: str, folder: str = "prepared", environment: Mapping[str, str] | None = None
    ) -> Step:
        """Prepare a request file with this package."""
        arguments = {"file": file, "folder": str(self.folder / folder), "model": self.model}
        return Step("benchmarks.ours", "prepare", arguments, environment)

    def compare(self, **steps: Step) -> dict[str, list[Taken]]:
        """Run steps in turn; what each took is put on record under its name."""
        taken = dict(zip(steps, alternate(list(steps.values()), self.scale.rounds), strict=True))
        self.record |= {name: summary(some) for name, some in taken.items()}
        return taken
