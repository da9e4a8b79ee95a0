"""How it is measured: time, memory, workloads, turns of the sides, and the form of the results."""
