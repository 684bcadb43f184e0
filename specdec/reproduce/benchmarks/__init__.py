"""specdec compared with other systems: each in its own process, on the same workload."""
