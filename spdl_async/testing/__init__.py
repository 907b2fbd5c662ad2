"""Helpers for tests of pipelines."""

from __future__ import annotations

from spdl_async.testing._leaks import LeakCheck as LeakCheck
from spdl_async.testing._leaks import LeakError as LeakError
from spdl_async.testing._leaks import check_leaks as check_leaks

__all__ = ["LeakCheck", "LeakError", "check_leaks"]
