"""`acdc calibrate`: how fast an engine is, by lengths and requests at once, as rows of `history`.

One engine runs a small grid of jobs of equal requests that share nothing, each so many at once, and
each leaves the row that a worker with that `max_num_seqs` would have left.
"""

import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Event as Flag
from typing import cast
from uuid import uuid4

import numpy as np
import polars as pl
from msgspec import structs

from acdc_dagster.deployment import Commit, Limits
from acdc_dagster.errors import BackendError
from acdc_dagster.inference.contention import CoreWatch
from acdc_dagster.inference.engines.process import VLLM, EngineDied, EngineProcess
from acdc_dagster.inference.engines.protocol import Answer, EngineState, Request
from acdc_dagster.inference.engines.wire import Stepped
from acdc_dagster.inference.history import history_row
from acdc_dagster.inference.meter import Meter
from acdc_dagster.models import Model
from acdc_dagster.planning.plan import EngineSettings, Plan, Shard
from acdc_dagster.tables import Tables

_WAIT = 0.5  # seconds between looks at the time while the engine says nothing
_WAVES = 2  # requests of a job for each that runs at once
_TOKENS = 1000  # ids that prompts are made of; every vocabulary has as many


@dataclass(frozen=True)
class Cell:
    """A job of equal requests.

    Attributes:
        prompt: Tokens of each prompt.
        answer: Tokens of each answer.
        at_once: Requests that run at once.
    """

    prompt: int
    answer: int
    at_once: int

    def __str__(self) -> str:
        return f"prompt {self.prompt:,}, answer {self.answer:,}, {self.at_once} at once"

    @property
    def requests(self) -> int:
        """Of the job."""
        return _WAVES * self.at_once

    @property
    def work(self) -> int:
        """About what it takes, in prompt tokens."""
        return self.requests * (self.prompt + 8 * self.answer)


_PREFILL = [Cell(prompt, 1, at_once) for prompt in (64, 256, 1024) for at_once in (1, 8)]
_DECODE = [Cell(prompt, 32, at_once) for prompt in (64, 512) for at_once in (1, 4, 16)]
GRID = tuple(sorted([*_PREFILL, *_DECODE, Cell(64, 32, 64)], key=lambda cell: cell.work))


@dataclass(frozen=True)
class Calibrated:
    """How far a calibration is.

    Attributes:
        measured: Cells of the grid that this call measured.
        before: Those that were measured before.
        left: Those that are left, the next first.
    """

    measured: list[Cell]
    before: list[Cell]
    left: list[Cell]


def calibrate(
    model: Model,
    settings: EngineSettings,
    limits: Limits,
    tables: Tables,
    seconds: float,
    tell: Callable[[str], None],
    adapter: str = VLLM,
    grid: Sequence[Cell] = GRID,
) -> Calibrated:
    """Measure what is left of a grid, for about so long.

    A cell counts as measured if there is a row of it with this model, engine and configuration that
    is no outlier. A cell that is running when the time is over leaves no row and is the next call's
    first.

    Args:
        model: Whose engine it is.
        settings: Of the engine; a cell's `at_once` takes the place of `max_num_seqs`.
        limits: How long the engine may take to start, and to make a step.
        tables: Those of the calibration.
        seconds: For all cells; starting the engine comes on top.
        tell: Gets a line a cell.
        adapter: `module:class` of the engine.
        grid: The cells, the cheapest first; those longer than the context are left out.

    Raises:
        BackendError: The engine does not start, or dies.
        TableError: The storage refused.
    """
    cells = [cell for cell in grid if cell.prompt + cell.answer <= settings.max_model_len]
    settings = settings.model_copy(update={"max_num_seqs": max(cell.at_once for cell in cells)})
    with _engine_of(settings, limits, adapter) as engine:
        lab = _Lab(model, settings, limits, tables, engine)
        before = lab.known(cells)
        left = [cell for cell in cells if cell not in before]
        measured: list[Cell] = []
        if left:
            lab.run(Cell(16, 2, 1), None)  # what an engine makes at its first request
        end = time.monotonic() + seconds
        while left and (row := lab.run(left[0], end)) is not None:
            tables.appender("history", f"calibration/{uuid4().hex}").append([row])
            tell(_line(left[0], row))
            measured.append(left.pop(0))
    return Calibrated(measured, before, left)


@contextmanager
def _engine_of(settings: EngineSettings, limits: Limits, adapter: str) -> Generator[EngineProcess]:
    """An engine for a while; that it dies is a fault that the user can mend."""
    engine: EngineProcess | None = None
    try:
        engine = EngineProcess(
            settings,
            adapter,
            start_seconds=limits.start_seconds,
            stall_seconds=limits.stall_seconds,
            stop=Flag(),
        )
        yield engine
    except EngineDied as death:
        raise BackendError(
            f"{death.reason} Its last lines:\n{death.last_lines}",
            "What was measured is kept. Check the engine settings in the environment's YAML "
            "(memory, context length, dtype), then calibrate again.",
        ) from death
    finally:
        if engine is not None:
            engine.close()


class _Lab:
    """One engine, and where its measurements go."""

    def __init__(
        self,
        model: Model,
        settings: EngineSettings,
        limits: Limits,
        tables: Tables,
        engine: EngineProcess,
    ) -> None:
        self._model, self._settings, self._limits = model, settings, limits
        self._tables, self._engine = tables, engine
        self._state, self._running = EngineState(), 0.0

    def known(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those that were measured before with this model, engine and configuration."""
        rows = self._tables.scan("history").filter(
            pl.col("model_revision") == self._model.revision,
            pl.col("engine") == self._engine.name,
            pl.col("device") == self._engine.device,
            pl.col("outlier").is_null(),
        )
        there = set(self._tables.collect(rows.select("run_id", "settings")).iter_rows())
        plans = [(cell, self._plan(cell)) for cell in cells]
        return [cell for cell, plan in plans if (str(cell), plan.engine.model_dump_json()) in there]

    def run(self, cell: Cell, end: float | None) -> dict[str, object] | None:
        """Run a cell; its row, or None if it was not done by `end`.

        Raises:
            EngineDied: The engine is gone.
            BackendError: It refuses the requests.
        """
        plan, engine = self._plan(cell), self._engine
        meter = Meter(plan.shards[0], cell.requests, cell.at_once)
        requests = _requests(cell)
        cores = CoreWatch(engine.pid)
        meter.engine_is_up()
        engine.add(list(islice(requests, cell.at_once)))
        done, state, running = 0, self._state, self._running
        while done < cell.requests:
            told = engine.receive(_WAIT, busy=True)
            if told is not None:
                done += len(told.answers)
                meter.answered(told.answers)
                state, running = told.state, told.running_seconds
                meter.stepped(self._since_the_cell_began(told))
                _refused(told.answers)
                engine.add(list(islice(requests, len(told.answers))))
            if end is not None and done < cell.requests and time.monotonic() > end:
                return None
        self._state, self._running = state, running
        return history_row(
            self._model.name,
            str(cell),
            plan,
            meter,
            engine.name,
            engine.device,
            "complete",
            contended=cores.contended,
        )

    def _since_the_cell_began(self, told: Stepped) -> Stepped:
        """What the engine counts since it started, from the end of the last cell on."""
        state = structs.replace(
            told.state,
            preemptions=told.state.preemptions - self._state.preemptions,
            generated_tokens=told.state.generated_tokens - self._state.generated_tokens,
        )
        return Stepped(told.answers, state, told.running_seconds - self._running)

    def _plan(self, cell: Cell) -> Plan:
        return Plan(
            backend="local",
            model=self._model.name,
            model_revision=self._model.revision,
            engine=self._settings.model_copy(update={"max_num_seqs": cell.at_once}),
            shards=[Shard(number=0, start=0, stop=cell.requests)],
            commit=Commit(),
            limits=self._limits,
            why=[],
        )


def _requests(cell: Cell) -> Iterator[Request]:
    """Prompts of random tokens, which no cache has; each answer goes on to its last token."""
    sampling = {"max_tokens": cell.answer, "temperature": 0, "ignore_eos": True, "chat": False}
    random = np.random.default_rng()
    for _ in range(cell.requests):
        tokens = random.integers(1, _TOKENS, cell.prompt).astype("<u2").tobytes()
        yield Request(uuid4().hex, tokens, cell.prompt, json.dumps(sampling), cell.answer, 0)


def _refused(answers: Sequence[Answer]) -> None:
    refused = next((answer for answer in answers if answer.error_class is not None), None)
    if refused is not None:
        raise BackendError(
            f"The engine refuses a request of random tokens: {refused.error_message}",
            "Calibrate a model that answers chats or completions.",
        )


def _line(cell: Cell, row: dict[str, object]) -> str:
    seconds = cast("float", row["seconds"])
    prompts, answers = (cell.requests * each / seconds for each in (cell.prompt, cell.answer))
    marked = f"; {row['outlier']}, so no plan learns from it" if row["outlier"] else ""
    return (
        f"{cell}: {seconds:.1f} s, {prompts:,.0f} prompt and {answers:,.0f} answer tokens/s{marked}"
    )
