"""`acdc calibrate` on this machine, with the engine of the local backend."""

import os
from collections.abc import Callable

from acdc_dagster.backends.local import worker_environment
from acdc_dagster.deployment import Deployment
from acdc_dagster.inference.calibrate import Calibrated, calibrate
from acdc_dagster.planning.history.runs import CALIBRATION
from acdc_dagster.planning.pins import pins_of
from acdc_dagster.tables import Tables


def calibrate_here(
    deployment: Deployment, name: str, minutes: float, tell: Callable[[str], None]
) -> Calibrated:
    """Measure a model on the engine that the environment describes, for about so long.

    The environment variables of the workers become those of this process, as its engine's.

    Raises:
        ModelError: There is no such model.
        BackendError: The engine does not start, or dies.
        TableError: The storage refused.
    """
    environment = deployment.environment
    model = deployment.model(name)
    os.environ.update(worker_environment(deployment))
    return calibrate(
        model,
        pins_of(None, deployment).settings(model, on_gpus=environment.pool is not None),
        environment.backends.local.limits,
        Tables(deployment.tables_root, CALIBRATION, environment.storage_options),
        60 * minutes,
        tell,
    )
