"""The checks on `outputs` in Dagster's terms."""

import dagster as dg

from acdc_dagster.job import Job
from acdc_dagster.lineage.metadata import percent
from acdc_dagster.reconcile.evaluation import Evaluation
from acdc_dagster.reconcile.ledger import Ledger
from acdc_dagster.reconcile.quality import checked, findings
from acdc_dagster.tables import Tables

BALANCED = "every_input_row_is_accounted_for"

# Name in the UI and description, by the name under which a job declares the limit.
_CHECKS = {
    "failures": ("failure_rate", "Share of requests that failed in any way."),
    "truncated": ("truncation_rate", "Share of answers that were cut at max_tokens."),
    "parse": ("parse_failure_rate", "Share of answers that do not fit the schema."),
    "degenerate": ("degenerate_answers", "Share of answers that are empty or repeat themselves."),
    "length_drift": (
        "length_drift",
        "Distance of the lengths of answers from those of the last good partition.",
    ),
    "evaluation": (
        "evaluation_drop",
        "How far the score of the evaluation set is below that of the last good run.",
    ),
    "answer_drift": (
        "answer_drift",
        "Distance of the shares of the answers to enums from those of the last good partition.",
    ),
}


def check_specs(job: Job, outputs: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    """The checks of a job's `outputs`; only the first blocks what is downstream."""
    balanced = dg.AssetCheckSpec(
        BALANCED,
        asset=outputs,
        blocking=True,
        description="Input rows = outputs + rejected + dead letter, counted in the tables; no "
        "custom_id twice, none that no request has.",
    )
    others = [
        dg.AssetCheckSpec(name, asset=outputs, description=description)
        for name, description in (_CHECKS[limit] for limit in checked(job))
    ]
    return [balanced, *others]


def check_results(
    job: Job, tables: Tables, partition: str, balance: Ledger, evaluation: Evaluation | None
) -> list[dg.AssetCheckResult]:
    """What the checks of `check_specs` found in a partition."""
    balanced = dg.AssetCheckResult(
        passed=balance.balanced,
        check_name=BALANCED,
        metadata={name: int(value) for name, value in vars(balance).items()},
    )
    others = [
        dg.AssetCheckResult(
            passed=found.passed,
            check_name=_CHECKS[found.name][0],
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{percent(found.value)} ({found.told}); limit {percent(found.limit)}.",
            metadata={"value": round(found.value, 4), "limit": found.limit},
        )
        for found in findings(job, tables, partition, evaluation)
    ]
    return [balanced, *others]
