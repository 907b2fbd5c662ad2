"""Things to give to ``add_source``, on the public API only."""

from __future__ import annotations

from spdl_async.sources._cached_batches import CachedBatches as CachedBatches
from spdl_async.sources._patterns import expand_shards as expand_shards
from spdl_async.sources._push import PushSource as PushSource
from spdl_async.sources._tar_shards import TarShards as TarShards

__all__ = ["CachedBatches", "PushSource", "TarShards", "expand_shards"]

for _name in __all__:
    globals()[_name].__module__ = __name__
