"""Where benchmarks keep their results and pages."""

from __future__ import annotations

from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
# The programs that measure.
CASES = BENCHMARKS / "cases"
# What was measured, as JSON; committed.
RESULTS = BENCHMARKS / "results"
# Pages and pictures of the results; made from them, not committed.
PAGES = BENCHMARKS / "pages"
