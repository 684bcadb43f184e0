"""Commands: one function for each kind of run, bound by gin. Thin: the work is below."""
