"""Packages that are installed with an extra, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, extra: str) -> Any:
    """Return a module, or say how to install it.

    Raises:
        ImportError: it is not installed; the message names the extra that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise ImportError(
            f"this needs {module.split('.')[0]}, which is not installed: "
            f'pip install "spdl-async[{extra}]"',
            name=error.name,
        ) from error
