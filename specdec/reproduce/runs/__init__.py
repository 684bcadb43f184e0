"""Functions that gin binds: reproductions, benchmarks, and the pieces of both."""
