"""The folders of programs, results and pages."""

from __future__ import annotations

from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
# The programs that measure.
CASES = BENCHMARKS / "cases"
# Results as JSON; committed.
RESULTS = BENCHMARKS / "results"
# Pages and pictures, generated from the results; not committed.
PAGES = BENCHMARKS / "pages"
