"""Where the figures of a report come from: machine and versions, and the commit and day of each file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from report.markdown import PARTS, SWEEPS, left_table, read, sweeps_of


def machine_lines(folder: Path) -> list[str]:
    """Return machine and versions, and the missing data sets."""
    found = [content for content in contents(folder).values() if "commit" in content]
    if not found:
        return ["Nothing is measured yet."]
    newest = max(found, key=lambda content: content["date"])
    machine, versions = newest["machine"], newest["versions"]
    missing = sorted({name for content in found for name in content.get("data_not_here", [])})
    return [
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}; "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}. The JSON files named below have all "
        "figures, with the options of each run; [the end of the page](#where-the-figures-come-from) says when and "
        "with which commit each was measured.",
        *(f"\n**{name} was not here**, so what needs it was left out." for name in missing),
    ]


def origins(folder: Path, out: Path) -> list[str]:
    """Return for each file when it was measured and with which commit, and how long whole parts took."""
    found = contents(folder)
    if not found:
        return []
    taken = read(folder / PARTS) or {}
    rows = []
    for path, content in found.items():
        name, link = os.path.relpath(path, folder), os.path.relpath(path, out)
        rows += [[f"[{name}]({link})", names, *when] for when, names in origins_of(content).items()]
    lines = ["## Where the figures come from", "", *left_table(["", "data", "commit", "date"], rows)]
    if taken:
        total = sum(part["seconds"] for part in taken.values())
        lines += [
            "",
            f"These parts were measured as a whole, in {total / 60:,.0f} minutes:",
            "",
            *left_table(
                ["part", "minutes", "commit", "command"],
                [
                    [name, f"{part['seconds'] / 60:,.1f}", part["commit"], f"`{part['command']}`"]
                    for name, part in taken.items()
                ],
            ),
        ]
    return lines


def origins_of(content: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Return the workloads of a file by the commit and the day with which they were measured."""
    results = content.get("results")
    if isinstance(results, list):
        each = {result["workload"]: result if "commit" in result else content for result in results}
    else:
        earlier = content.get("earlier", {})
        each = {name: earlier.get(name, content) for name in content.get("workloads", [""])}
    groups: dict[tuple[str, str], list[str]] = {}
    for name, origin in each.items():
        groups.setdefault((origin.get("commit", "unknown"), origin.get("date", "")), []).append(name)
    return {when: ", ".join(names) for when, names in groups.items()}


def contents(folder: Path) -> dict[Path, Any]:
    """Return all files shown on the page of a folder."""
    sweeps = [path for name in (*SWEEPS, "partition") for path in (sweeps_of(folder) / name).glob("*.json")]
    paths = sorted({*folder.rglob("*.json"), *sweeps} - {folder / PARTS})
    return {path: read(path) for path in paths}
