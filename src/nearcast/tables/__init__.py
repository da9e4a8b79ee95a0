"""Rows in, rows out: Arrow tables and Python objects to columns and back, and the checks of rows."""
