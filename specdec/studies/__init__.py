"""What serves papers and pages: reproduction, benchmarks, studies. Nothing outside imports it.

A user's decode needs none of it. ``runs`` has what gin binds, ``measure`` what only studies
measure, ``benchmarks`` other systems on the same work, ``pages`` the tables of README and docs.
"""
