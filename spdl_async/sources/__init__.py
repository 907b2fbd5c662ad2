"""Things to give to ``add_source``, on the public API only."""

from __future__ import annotations

from spdl_async.sources._push import PushSource as PushSource

__all__ = ["PushSource"]

for _name in __all__:
    globals()[_name].__module__ = __name__
