"""What does the first call cost in a fresh process? As a program it prints the seconds of each step as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time


def main() -> None:
    """Import, make a broker, subscribe and publish, once."""
    started = time.perf_counter()
    import nearcast as nc

    imported = time.perf_counter()
    broker = nc.Broker(space=nc.Planar(0, 0, 10, 10))
    broker.subscribe(nc.Boolean("s1", "coffee AND sale", within=nc.Box(2, 2, 5, 5)))
    deliveries = broker.publish(nc.Message("m1", 3, 4, "coffee sale"))
    if len(deliveries) != 1:
        raise SystemExit(f"the message has {len(deliveries)} deliveries; it must have 1")
    finished = time.perf_counter()
    print(json.dumps({"import": imported - started, "subscribe and publish": finished - imported}))


def first_calls(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each step and of the whole process, with kernels that an earlier process compiled."""
    found: dict[str, list[float]] = {}
    for is_measured in [False] + [True] * rounds:
        started = time.perf_counter()
        process = subprocess.run([sys.executable, __file__], check=True, capture_output=True, text=True)
        steps = json.loads(process.stdout) | {"whole process": time.perf_counter() - started}
        if is_measured:
            for name, value in steps.items():
                found.setdefault(name, []).append(value)
    return found


if __name__ == "__main__":
    main()
