"""From a description to steps: classify ops, fuse neighbours, place them. Pure functions."""
