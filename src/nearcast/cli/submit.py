"""`nearcast run` as a script, for spark-submit: `spark-submit .../nearcast/cli/submit.py pipeline.toml`."""

import sys

from nearcast.cli.main import run

if __name__ == "__main__":
    sys.argv.insert(1, "run")
    run()
