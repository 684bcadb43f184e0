"""Reproduction of the paper, benchmarks and studies. Nothing outside imports it.

A user's decode needs none of it. ``runs`` has what gin binds, ``measure`` measurements for studies
only, ``benchmarks`` other systems on the same work, ``pages`` the tables of README and docs.
"""
