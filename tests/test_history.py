"""What a worker's run leaves for later plans."""

import pytest

from acdc_dagster.inference.engines.protocol import Answer, EngineState, unanswered
from acdc_dagster.inference.engines.wire import Stepped
from acdc_dagster.inference.history import history_row
from acdc_dagster.inference.meter import Meter
from benchmarks.recorded import simulated_plan


@pytest.mark.parametrize(
    ("preemptions", "dies", "contended", "outlier"),
    [
        (0, False, False, None),
        (1, False, False, None),
        (5, False, False, "preempted"),
        (0, False, True, "contended"),
        (0, True, True, "restarted"),
    ],
)
def test_a_run_that_says_little_is_marked(
    preemptions: int, *, dies: bool, contended: bool, outlier: str | None
) -> None:
    """With the reason; one request of two hundred that was put back is no reason."""
    plan = simulated_plan(200, {})
    meter = Meter(plan.shards[0], 200, plan.engine.max_num_seqs)
    meter.engine_is_up()
    if dies:
        meter.engine_died()
        meter.engine_is_up()
    answers: list[Answer] = [unanswered(str(at), "transient", "") for at in range(200)]
    meter.answered(answers)
    meter.stepped(Stepped([], EngineState(preemptions=preemptions), 0.0))
    row = history_row(*("p", "run", plan, meter, "vllm 1", "cpu", "complete"), contended=contended)
    assert row["outlier"] == outlier
