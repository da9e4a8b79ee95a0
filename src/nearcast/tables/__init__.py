"""Conversion of Arrow tables and Python objects to columns and back, and the checks of rows."""
