"""Reproduction of the paper, and benchmarks beside other systems. Nothing outside imports it.

A user's decode needs none of it. ``pieces`` has the contract of a piece of work, ``runs`` what gin
binds, ``measure`` measurements for reproductions only, ``benchmarks`` other systems on the same
work, ``pages`` the tables of README and docs.
"""
