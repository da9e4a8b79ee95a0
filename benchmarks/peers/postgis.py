"""PostGIS: a GiST index over rarest keyword and box, and a lateral join; a private cluster on a Unix socket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import nearcast as nc
from peers.protocol import BOX, Answer, UnavailableError

# Settings in favour of the peer: everything in memory, no flushes, no background work.
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
    "shared_buffers": "1GB",
    "maintenance_work_mem": "512MB",
    "work_mem": "64MB",
    "effective_cache_size": "4GB",
    "random_page_cost": "1.1",
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
    "jit": "off",
}
LOADED = """
CREATE UNLOGGED TABLE loaded (
    id bigint, rarest text, keywords text[], min_x float8, min_y float8, max_x float8, max_y float8
);
"""
PREPARED = """
CREATE EXTENSION btree_gist;
CREATE UNLOGGED TABLE subscriptions AS
    SELECT id, rarest, keywords, ST_MakeEnvelope(min_x, min_y, max_x, max_y) AS box FROM loaded;
DROP TABLE loaded;
CREATE INDEX subscriptions_by_word_and_place ON subscriptions USING gist (rarest, box);
CREATE UNLOGGED TABLE arrived (id bigint, x float8, y float8, keywords text[]);
CREATE UNLOGGED TABLE messages (id bigint, keywords text[], point geometry);
"""
# The box of a GiST index is rounded to single precision, so the exact test is added.
MATCHED = """
SELECT m.id, s.id
FROM messages m CROSS JOIN LATERAL unnest(m.keywords) AS w(word) CROSS JOIN LATERAL (
    SELECT id FROM subscriptions s
    WHERE s.rarest = w.word AND s.box && m.point AND s.keywords <@ m.keywords AND ST_Intersects(s.box, m.point)
    OFFSET 0
) s
"""


class PostGIS:
    """A private cluster; the prepared statement is timed until its rows have been fetched."""

    def __init__(self) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise UnavailableError(f"psycopg is not installed ({error})") from None
        programs = server_programs()
        self._folder = Path(tempfile.mkdtemp(prefix="nearcast-postgis-"))
        self._server: subprocess.Popen[bytes] | None = None
        try:
            as_user = other_user(self._folder)
            data = self._folder / "data"
            command = [*as_user, programs / "initdb", "-D", data, "-U", "nearcast", "-A", "trust", "-E", "UTF8"]
            done = subprocess.run([*command, "--no-locale", "--no-sync"], capture_output=True, text=True)
            if done.returncode:
                raise UnavailableError(f"initdb failed: {done.stderr.strip()[-300:]}")
            settings = [part for key, value in SETTINGS.items() for part in ("-c", f"{key}={value}")]
            with open(self._folder / "log", "wb") as log:
                started = [*as_user, programs / "postgres", "-D", data, "-k", self._folder, *settings]
                self._server = subprocess.Popen(started, stdout=log, stderr=log)
            self._connection = self._connected(psycopg)
            try:
                self._connection.execute("CREATE EXTENSION postgis")
            except psycopg.Error as error:
                raise UnavailableError(f"PostGIS is not installed: {error}") from None
        except BaseException:
            self.close()
            raise
        found = self._connection.execute("SELECT postgis_lib_version(), current_setting('server_version')").fetchone()
        self.version = f"{found[0]}, PostgreSQL {found[1].split()[0]}"

    def _connected(self, psycopg):  # type: ignore[no-untyped-def]  # the package may be missing
        deadline = time.monotonic() + 60
        while True:
            try:
                return psycopg.connect(host=str(self._folder), user="nearcast", dbname="postgres", autocommit=True)
            except psycopg.OperationalError as error:
                log = (self._folder / "log").read_text(errors="replace")
                if self._server is None or self._server.poll() is not None:
                    raise UnavailableError(f"the server ended: {log[-300:]}") from None
                if time.monotonic() > deadline:
                    raise UnavailableError(f"the server does not answer: {error}; {log[-300:]}") from None
                time.sleep(0.1)

    def prepare(self, subscriptions: pa.Table, vocabulary: nc.Vocabulary) -> None:  # noqa: ARG002
        """Copy the subscriptions into a table, and index it."""
        self._connection.execute(LOADED)
        columns = [subscriptions[name].to_pylist() for name in ("id", "rarest", "keywords", *BOX)]
        types = ["int8", "text", "text[]", *["float8"] * 4]
        self._copy(f"COPY loaded (id, rarest, keywords, {', '.join(BOX)}) FROM STDIN (FORMAT BINARY)", types, columns)
        self._connection.execute(PREPARED)
        self._connection.execute("VACUUM ANALYZE subscriptions")

    def answers(self, messages: pa.Table) -> Answer:
        """Copy the messages into a table, and join."""
        self._connection.execute("TRUNCATE messages, arrived")
        columns = [messages[name].to_pylist() for name in ("id", "x", "y", "keywords")]
        self._copy("COPY arrived FROM STDIN (FORMAT BINARY)", ["int8", "float8", "float8", "text[]"], columns)
        self._connection.execute("INSERT INTO messages SELECT id, keywords, ST_Point(x, y) FROM arrived")
        self._connection.execute("ANALYZE messages")
        with self._connection.cursor(binary=True) as cursor:
            started = time.perf_counter()
            pairs = cursor.execute(MATCHED, prepare=True).fetchall()
            seconds = time.perf_counter() - started
        found = np.array(pairs, np.int64).reshape(-1, 2)
        return Answer(found[:, 0], found[:, 1], seconds)

    def _copy(self, statement: str, types: list[str], columns: list[list[object]]) -> None:
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(types)
            for row in zip(*columns, strict=True):
                copy.write_row(row)

    def n_bytes(self) -> int | None:
        """Return the size of the table with its index."""
        row = self._connection.execute("SELECT pg_total_relation_size('subscriptions')").fetchone()
        return int(row[0])

    def close(self) -> None:
        """Stop the server, and remove its data."""
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)  # does not wait for connections to be closed
            try:
                self._server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def server_programs() -> Path:
    """Return the folder of the programs of a PostgreSQL server, the newest with PostGIS."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    for folder in reversed(folders):
        if list(Path("/usr/share/postgresql", folder.parent.name).glob("extension/postgis.control")):
            return folder
    on_path = shutil.which("initdb")
    if on_path is None:
        raise UnavailableError("no PostgreSQL server with PostGIS is here; on Debian: apt install postgresql-postgis")
    return Path(on_path).resolve().parent


def other_user(folder: Path) -> list[str]:
    """Return the prefix of a command run as another user, who gets the folder: the server refuses to run as root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        raise UnavailableError("PostgreSQL does not run as root, and setpriv is not here to become another user")
    shutil.chown(folder, "nobody", "nogroup")
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
