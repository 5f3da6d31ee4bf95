"""`acdc calibrate`: a grid on an engine's own process, as rows of `history`."""

import polars as pl
import pytest
from support import MODEL, REPOSITORY

from acdc_dagster.deployment import Deployment, Limits
from acdc_dagster.errors import BackendError
from acdc_dagster.inference.calibrate import GRID, Calibrated, Cell, calibrate
from acdc_dagster.inference.engines.process import VLLM
from acdc_dagster.planning.history.runs import CALIBRATION, measured_runs
from acdc_dagster.planning.pins import pins_of
from acdc_dagster.tables import Tables

RECORDED = "benchmarks.recorded:RecordedEngine"
SMALL = (Cell(32, 1, 2), Cell(32, 4, 1), Cell(64, 4, 2))


@pytest.fixture(autouse=True)
def adapters_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's process finds the adapter."""
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}:{REPOSITORY / 'tests'}")


def measure(
    deployment: Deployment,
    seconds: float = 60.0,
    adapter: str = RECORDED,
    grid: tuple[Cell, ...] = SMALL,
    **extra: object,
) -> tuple[Calibrated, list[str]]:
    """Calibrate the sample model's settings, and what was told."""
    told: list[str] = []
    model = deployment.model(MODEL)
    settings = pins_of(None, deployment).settings(model, on_gpus=False)
    settings = settings.model_copy(update={"extra": {**settings.extra, **extra}})
    tables = Tables(deployment.tables_root, CALIBRATION)
    done = calibrate(model, settings, Limits(), tables, seconds, told.append, adapter, grid)
    return done, told


def test_each_cell_leaves_a_row_as_a_worker_would(deployment: Deployment) -> None:
    """With its tokens, the requests at once as `max_num_seqs`, and the engine's rate."""
    done, told = measure(deployment, step_seconds=0.02)
    assert (done.measured, done.before, done.left) == (list(SMALL), [], [])
    rows = Tables(deployment.tables_root, CALIBRATION).read("history").sort("finished_at")
    assert rows["prompt_tokens"].to_list() == [cell.requests * cell.prompt for cell in SMALL]
    assert rows["completion_tokens"].to_list() == [cell.requests * cell.answer for cell in SMALL]
    for cell, row, line in zip(SMALL, rows.iter_rows(named=True), told, strict=True):
        assert f'"max_num_seqs":{cell.at_once},' in row["settings"]
        steps = cell.requests / cell.at_once * cell.answer
        assert row["seconds"] >= 0.02 * steps
        assert str(cell) in line
        assert row["failed"] == 0


def mark(deployment: Deployment, contended: Cell | None = None) -> None:
    """Take away what this machine's load has marked, and mark one cell."""
    tables = Tables(deployment.tables_root, CALIBRATION)
    rows = tables.read("history")
    marks = pl.when(pl.col("run_id") == str(contended)).then(pl.lit("contended"))
    tables.replace("history", MODEL, rows.with_columns(outlier=marks).drop("partition_key"))


def test_it_goes_on_where_it_stopped(deployment: Deployment) -> None:
    """A cell without time is left; what is measured is not measured again, unless contended."""
    first, _ = measure(deployment, seconds=0.0, step_seconds=0.3)
    assert (first.measured, first.left[0]) == ([], SMALL[0])
    second, _ = measure(deployment, grid=SMALL[:2], step_seconds=0.0)
    assert second.measured == list(SMALL[:2])
    mark(deployment)
    third, _ = measure(deployment, step_seconds=0.0)
    assert (third.before, third.measured) == (list(SMALL[:2]), [SMALL[2]])
    mark(deployment, contended=SMALL[1])
    fourth, told = measure(deployment, step_seconds=0.0)
    assert (fourth.before, fourth.measured) == ([SMALL[0], SMALL[2]], [SMALL[1]])
    assert len(told) == 1
    mark(deployment)
    other, _ = measure(deployment, step_seconds=0.001)  # another configuration of the engine
    assert other.measured == list(SMALL)


def test_an_engine_that_does_not_start_says_why(deployment: Deployment) -> None:
    """With its last lines, and what to do."""
    with pytest.raises(BackendError, match="NoSuchEngine"):
        measure(deployment, adapter="benchmarks.recorded:NoSuchEngine")


def test_the_grid_is_cheapest_first_and_fits_a_context(deployment: Deployment) -> None:
    """So that a short time measures most cells; what is longer than the context is left out."""
    assert [cell.work for cell in GRID] == sorted(cell.work for cell in GRID)
    assert len({str(cell) for cell in GRID}) == len(GRID)
    long = Cell(5000, 1, 1)
    done, _ = measure(deployment, grid=(SMALL[0], long))
    assert done.measured == [SMALL[0]]


@pytest.mark.engine
def test_a_plan_learns_from_the_real_engine(deployment: Deployment) -> None:
    """The rows carry the names by which plans know the device and the engine."""
    done, _ = measure(deployment, 600.0, VLLM)
    assert len(done.measured) == len(SMALL)
    rows = Tables(deployment.tables_root, CALIBRATION).read("history")
    assert set(rows["device"]) == {"cpu"}
    assert (rows["cached_tokens"] == 0).all()
    learnt = measured_runs(deployment, MODEL)
    assert len(learnt) == rows["outlier"].null_count()  # on a busy machine there are none
    assert all(run.gpu == "CPU" for run in learnt)
