"""The networks, and the :class:`~specdec.models.base.Model` protocol that the decode loop sees.

The cache, attention, packing and partitioning are here, for all architectures alike.
"""
