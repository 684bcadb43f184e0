"""specdec beside what users would pick instead: each system in a process, on the same workload."""
