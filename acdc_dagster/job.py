"""What a user declares: one batch job, in `assets/<job>/defs.yaml` with its prompt beside it.

`BatchJob` is the declaration as written. `Job` is the declaration with its name and the files it
points to (prompt, answer schema) read and checked, so that a wrong file stops everything before
anything runs.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator

from acdc_dagster.answer_schema import AnswerColumn, answer_columns, read_answer_schema
from acdc_dagster.checks import Checks
from acdc_dagster.cron import check_cron
from acdc_dagster.declared import Declared, declaration, line_of
from acdc_dagster.engine import Engine
from acdc_dagster.errors import DeclarationError
from acdc_dagster.evaluation_set import FILE, EvaluationItem, read_evaluation_set
from acdc_dagster.partitions import Partitions
from acdc_dagster.retries import Retries
from acdc_dagster.source import Source

BackendName = Literal["local"]

WHOLE = "all"  # the partition_key of a job that has no partitions
# As Dagster has it.
_OWNER = re.compile(r"^(team:[A-Za-z0-9_-]+|[^@\s]+@[^@\s]+\.[^@\s]+)$")
JOB_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_]*$")


class Sampling(Declared):
    """Sampling of the answers, in the words of the OpenAI API.

    The temperature is 0 if not given: a batch job is expected to give the same table twice, and
    only deterministic requests can be deduplicated and reused.
    """

    temperature: float = Field(default=0.0, ge=0, le=2)
    max_tokens: int = Field(default=256, ge=1, le=10_000_000)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**63 - 1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stop: list[Annotated[str, Field(min_length=1)]] | None = None

    def as_body(self) -> dict[str, Any]:
        """The fields of a request body that say the same."""
        return self.model_dump(exclude_none=True)


class Split(Declared):
    """How a column's text is cut into chunks, each a request of its own."""

    column: str = Field(description="The column that holds the text.")
    tokens: int = Field(ge=16, description="Most tokens of a chunk.")
    overlap: int = Field(default=0, ge=0, description="Tokens of a chunk that the next repeats.")

    @model_validator(mode="after")
    def _chunks_get_on(self) -> Self:
        if 2 * self.overlap > self.tokens:
            raise ValueError("overlap must be at most half of tokens")
        return self


class TooLong(Declared):
    """What becomes of a row whose prompt does not fit the model's context."""

    split: Split | None = Field(default=None, description="Rejected if not given.")

    @model_validator(mode="before")
    @classmethod
    def _is_a_policy(cls, value: object) -> object:
        if isinstance(value, str) and value != "reject":
            raise ValueError(f"{value!r} is neither reject nor split with column and tokens")
        return {} if value == "reject" else value


class BatchJob(Declared):
    """One batch job as declared: what to compute, over which rows, with which model."""

    description: str | None = None
    source: Source
    prompt: str | None = Field(
        default=None, description="Prompt file beside defs.yaml; prompt.md for a table source."
    )
    column_order: list[str] = Field(
        default_factory=list,
        description="Columns whose lines of the prompt go before those of the others.",
    )
    model: str = Field(description="A name under models: of resources/<env>.yaml.")
    sampling: Sampling = Sampling()
    answer_schema: str | dict[str, Any] | None = Field(
        default=None,
        description="JSON schema of the answer: inline, a file beside defs.yaml, or "
        "package.module:Model of pydantic.",
    )
    too_long: TooLong = Field(
        default=TooLong(), description="reject, or split with column, tokens and overlap."
    )
    partitions: Partitions = Partitions()
    max_rejected: int | float | None = Field(
        default=None,
        description="Rows that may be no valid request: a count (20) or a share (0.05) of them; "
        "more than 10 and more than 5 % stop the run if not given.",
    )
    retries: Retries = Field(default=Retries(), description="How often a failure is asked again.")
    checks: Checks = Field(default=Checks(), description="What is healthy; what is not warns.")
    reuse: bool = Field(
        default=True,
        description="Whether answers of other partitions and earlier runs are taken over.",
    )
    schedule: str | None = Field(default=None, description="Cron line; runs the newest partition.")
    timezone: str = "UTC"

    backend: BackendName = "local"
    replicas: int | None = Field(
        default=None, ge=1, description="Workers; those of the environment or plan if not given."
    )
    engine: Engine = Field(
        default=Engine(), description="Settings of the engine, over those of the environment."
    )
    owners: list[str] = Field(default_factory=list, description="team:name or an e-mail address.")

    @field_validator("max_rejected", mode="before")
    @classmethod
    def _max_rejected_is_a_count_or_a_share(cls, limit: object) -> object:
        if limit is None or (type(limit) is int and limit >= 0):
            return limit
        if type(limit) is float and 0 <= limit <= 1:
            return limit
        raise ValueError("give a count from 0, like 20, or a share from 0.0 to 1.0, like 0.05")

    @field_validator("timezone")
    @classmethod
    def _timezone_is_known(cls, timezone: str) -> str:
        try:
            ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"{timezone!r} is no time zone, like Europe/Berlin") from None
        return timezone

    @field_validator("owners")
    @classmethod
    def _owners_are_teams_or_addresses(cls, owners: list[str]) -> list[str]:
        for owner in owners:
            if not _OWNER.match(owner):
                raise ValueError(f"{owner!r} is neither team:name nor an e-mail address")
        return owners

    @field_validator("schedule")
    @classmethod
    def _schedule_is_a_cron_line(cls, schedule: str | None) -> str | None:
        if schedule is not None:
            check_cron(schedule)
        return schedule

    @model_validator(mode="after")
    def _partitions_reach_the_source(self) -> Self:
        place = self.source.table or self.source.requests or ""
        cut = self.source.partition_column is not None or "{partition}" in place
        if cut != (self.partitions.cadence != "none"):
            raise ValueError(
                "partitions and source must agree: a partitioned job needs source.partition_column "
                "or {partition} in the source's path, and only a partitioned job may have them"
            )
        return self

    @model_validator(mode="after")
    def _sampling_belongs_to_a_table(self) -> Self:
        if self.source.requests is not None:
            given = {"prompt", "answer_schema", "sampling", "column_order"} & self.model_fields_set
            if given:
                raise ValueError(
                    f"{', '.join(sorted(given))}: request files carry their own prompts and "
                    "sampling; these fields belong to a table source"
                )
        return self

    @model_validator(mode="after")
    def _a_larger_cap_is_larger(self) -> Self:
        larger = self.retries.truncated
        if larger is not None and self.source.table is not None:
            given = self.sampling.max_tokens
            if larger.max_tokens <= given:
                raise ValueError(
                    f"retries.truncated.max_tokens must be more than sampling.max_tokens, {given}"
                )
        return self

    @model_validator(mode="after")
    def _free_text_of_a_table_is_split(self) -> Self:
        if self.too_long.split is None:
            return self
        if self.source.requests is not None:
            raise ValueError("too_long.split: request files have no column to split; use reject")
        if self.source.incremental:
            raise ValueError(
                "too_long.split: source.incremental cannot tell the chunks of a row; leave one out"
            )
        if self.answer_schema is not None:
            raise ValueError(
                "too_long.split needs free text for now, since the answers to a row's chunks are "
                "joined as text; leave answer_schema out, or use reject"
            )
        return self


class JobFile(Declared):
    """All of a job's `defs.yaml`, as Dagster's component tree reads it."""

    type: Literal["acdc_dagster.BatchInferenceComponent"]
    attributes: BatchJob


@dataclass(frozen=True)
class Job:
    """A declared job with its name (its folder's), and the content of the files it points to.

    Attributes:
        prompt: The text of the prompt file; None for request files.
        answer_schema: The JSON schema of the answer; None for free text.
        evaluation: The evaluation set; empty if the job has none.
    """

    name: str
    folder: Path
    declared: BatchJob
    prompt: str | None
    answer_schema: dict[str, Any] | None
    evaluation: tuple[EvaluationItem, ...] = ()

    @staticmethod
    def load(folder: Path) -> "Job":
        """The job declared in `folder/defs.yaml`.

        Raises:
            DeclarationError: The YAML, prompt or schema is missing or wrong.
        """
        return Job.of(folder, declaration(JobFile, folder / "defs.yaml").attributes)

    @staticmethod
    def of(folder: Path, declared: BatchJob) -> "Job":
        """The job that `declared`, found in `folder`, describes. Raises as `load` does."""
        if not JOB_NAME.match(folder.name):
            raise DeclarationError(
                f"{folder / 'defs.yaml'}: the folder's name, {folder.name!r}, cannot name a job.",
                "Rename the folder: a letter, then letters, digits or _.",
            )
        asset = declared.source.asset
        if asset is not None and asset.split("/")[0] == folder.name:
            file = folder / "defs.yaml"
            raise DeclarationError(
                f"{file}:{line_of(file, ('attributes', 'source', 'asset'))}: source.asset is "
                f"{asset}, which this job makes itself.",
                "Name the asset of another job or table that makes the source, or leave it out.",
            )
        prompt = None
        if declared.source.table is not None:
            prompt = _text(folder / (declared.prompt or "prompt.md"), "prompt")
        schema = read_answer_schema(folder, declared.answer_schema)
        evaluation = read_evaluation_set(folder, of_table=prompt is not None)
        if evaluation and declared.too_long.split is not None:
            raise DeclarationError(
                f"{folder / FILE}: the answers of a job that splits texts cannot be scored.",
                "Take the file away, or leave too_long.split out.",
            )
        return Job(folder.name, folder, declared, prompt, schema, evaluation)

    @property
    def prompt_path(self) -> Path:
        """Where the prompt file of a table source is."""
        return self.folder / (self.declared.prompt or "prompt.md")

    @cached_property
    def prompt_version(self) -> str:
        """Twelve hexadecimal digits that change when what is asked changes."""
        declared = self.declared
        return version_of(
            self.prompt,
            self.answer_schema,
            declared.sampling.as_body(),
            declared.model,
            declared.too_long.model_dump(),
            *([declared.column_order] if declared.column_order else ()),
        )

    @cached_property
    def answer_columns(self) -> list[AnswerColumn]:
        """The columns of `outputs` that the answer schema makes; none of free text."""
        return answer_columns(self.answer_schema or {})


def version_of(*parts: object) -> str:
    """Twelve hexadecimal digits over the JSON of `parts`, equal wherever and whenever made."""
    text = json.dumps(parts, sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _text(path: Path, what: str) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DeclarationError(
            f"The {what} file {path} does not exist.",
            f"Create it beside defs.yaml, or name another with {what}:.",
        ) from None
    except UnicodeDecodeError as error:
        raise DeclarationError(f"{path} cannot be read: {error}", "Save it as UTF-8.") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise DeclarationError(
            f"The {what} file {path} cannot be read: {error}", f"Correct {what}: in defs.yaml."
        ) from error
    if not text.strip():
        raise DeclarationError(f"The {what} file {path} is empty.", "Write the prompt into it.")
    return text
