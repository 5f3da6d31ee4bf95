"""Python objects that a user names in a declaration."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from acdc_dagster.errors import DeclarationError

REFERENCE = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")


def imported(reference: str, where: str, folder: Path) -> Any:
    """The object that `package.module:name` names.

    Args:
        reference: The name; a file of the module's name in `folder` comes first.
        where: Where it was declared, for messages.
        folder: The job's.

    Raises:
        DeclarationError: It is no such name, or cannot be imported.
    """
    if not REFERENCE.match(reference):
        raise DeclarationError(
            f"{where}: {reference!r} names no Python object.", "Write it as package.module:name."
        )
    module, _, name = reference.partition(":")
    file = folder / f"{module}.py"
    try:
        found = _of_file(file) if file.is_file() else importlib.import_module(module)
        return getattr(found, name)
    except Exception as error:  # the module is the user's and may raise anything
        raise DeclarationError(
            f"{where}: {reference} cannot be imported: {type(error).__name__}: {error}",
            "Put the module beside defs.yaml or install it, or correct the name.",
        ) from error


def _of_file(file: Path) -> ModuleType:
    """The module in a job's folder, apart from those of the same name in others."""
    spec = importlib.util.spec_from_file_location(f"{file.parent.name}__{file.stem}", file)
    assert spec is not None  # noqa: S101 - the file is Python
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its classes look for their types
    spec.loader.exec_module(module)
    return module
