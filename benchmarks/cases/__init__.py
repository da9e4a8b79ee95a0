"""What is measured: a program for each question."""
