"""Reproduction of the paper, and benchmarks beside other systems. Nothing outside imports it.

``pieces`` has the contract of a piece of work, ``runs`` what gin binds, ``measure`` what only the
paper's figures need, ``benchmarks`` other systems on the same work, ``pages`` the docs' tables.
"""
