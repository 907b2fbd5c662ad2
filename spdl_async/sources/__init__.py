"""Sources: what to give to ``add_source`` where a list of paths is not enough."""

from __future__ import annotations

from spdl_async.sources._patterns import expand_shards as expand_shards
from spdl_async.sources._tar_shards import TarShards as TarShards

__all__ = ["TarShards", "expand_shards"]
