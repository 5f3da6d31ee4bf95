"""Python objects that a user names in a declaration."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from acdc_dagster.errors import DeclarationError

REFERENCE = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")


def imported(reference: str, where: str, folder: Path) -> Any:
    """The object that `package.module:name` names.

    Args:
        reference: The name; modules are looked for in `folder` too.
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
    sys.path.append(str(folder))
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # the module is the user's and may raise anything
        raise DeclarationError(
            f"{where}: {reference} cannot be imported: {type(error).__name__}: {error}",
            "Put the module beside defs.yaml or install it, or correct the name.",
        ) from error
    finally:
        sys.path.remove(str(folder))
