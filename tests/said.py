"""What a process said itself on stderr.

The compilers' wheels bring native libraries, which JAX loads when it is imported. Where there is no
device they say so, and so does JAX of a plugin that finds none.
"""

import re

_NATIVE = re.compile(
    r"^(WARNING: (All log messages|Logging) before .*|[IWE]\d{4} .*|Failed to find host bounds .*"
    r"|=== Source Location Trace.*|learning/.*)\n",
    re.MULTILINE,
)
_PLUGIN = re.compile(
    r"^.*Jax plugin configuration error: (?s:.*?)^RuntimeError: Unable to .*\n", re.MULTILINE
)


def said(stderr):
    """Without those lines."""
    return _NATIVE.sub("", _PLUGIN.sub("", stderr))
