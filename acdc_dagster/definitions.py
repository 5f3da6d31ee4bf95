"""The Dagster code location of a deployment: `dagster dev` and `acdc run` load this module."""

import sys
import warnings
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import dagster as dg
from dagster.components.core.component_tree import ComponentTree
from pydantic import ValidationError
from yaml import YAMLError

from acdc_dagster.deployment import Deployment
from acdc_dagster.errors import AcdcError, DeclarationError
from acdc_dagster.lineage.console import console_logger
from acdc_dagster.lineage.resources import DeploymentResource

_PACKAGE = "acdc_deployment"
# What Dagster raises for a defs.yaml with an unknown type or fields, or that is not YAML.
_UNREADABLE = (dg.DagsterError, ValidationError, YAMLError)


def build(deployment: Deployment) -> dg.Definitions:
    """The definitions of a deployment: its declared jobs under its environment.

    Raises:
        DeclarationError: A declaration is wrong, of a job or of another component.
    """
    deployment.jobs()  # tells the file, the line and what is allowed, which Dagster does not
    # The component tree marks its own metadata as beta; its users can do nothing about it.
    warnings.filterwarnings("ignore", category=dg.BetaWarning)
    # Dagster wraps what a component raises in the tree's own error; ours says what to do.
    try:
        jobs = _component_definitions(deployment)
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, AcdcError):
            cause = cause.__cause__
        if cause is not None:
            raise cause from None
        others = deployment.other_components()
        if others and isinstance(error, _UNREADABLE):
            raise DeclarationError(
                f"Dagster cannot load one of {', '.join(map(str, others))}: {error}",
                "Correct that file, or take it out; no job loads with it.",
            ) from error
        raise
    return dg.Definitions.merge(
        jobs,
        dg.Definitions(
            resources={
                "deployment": DeploymentResource(root=str(deployment.root), env=deployment.env)
            },
            # The work is in the backend's processes; a process a step only costs start-up.
            executor=dg.in_process_executor,
            loggers={"console": console_logger},
        ),
    )


def _component_definitions(deployment: Deployment) -> dg.Definitions:
    tree = ComponentTree(
        defs_module=_folder_as_package(deployment.root / "assets"), project_root=deployment.root
    )
    return tree.build_defs()


def _folder_as_package(folder: Path) -> ModuleType:
    """Make `folder` importable as `acdc_deployment.<its name>`, with no change to `sys.path`.

    A deployment's `assets/` is nobody's package, so a wheel never puts a top-level `assets` into
    site-packages; but Dagster's component tree wants a module.
    """
    parent = sys.modules.setdefault(_PACKAGE, ModuleType(_PACKAGE))
    parent.__path__ = []
    spec = ModuleSpec(f"{_PACKAGE}.{folder.name}", loader=None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    return module


@dg.definitions
def defs() -> dg.Definitions:
    """The definitions of the deployment that the environment variables name."""
    return build(Deployment.load())
