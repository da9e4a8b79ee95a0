"""The inner loops: compiled functions over arrays, no classes, no I/O."""
