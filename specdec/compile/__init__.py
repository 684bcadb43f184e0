"""Decodes compiled for TPUs and GPUs that are not there, and what the compilers say about them.

Their compilers are wheels that need no device: a whole decode is compiled from shapes alone. What
comes of it is an estimate of the compiler's or a count of what the program does, never a
measurement.
"""
