"""The measurement: time, memory, workloads, alternation of the compared systems, and the format of the results."""
