"""What ``cache`` keeps, and where: keys, values as bytes, entries in memory or in a folder.

No pickle: an entry is a tree of plain values, written as JSON, beside the raw bytes of its arrays. So
a damaged or foreign file can be refused, and cannot run code.
"""
