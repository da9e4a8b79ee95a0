"""Lucene's Monitor, which stores queries and matches documents: as it is, and with terms of a keyword at a cell."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import nearcast as nc
from harness.maven import UnreachableError, cached_jars, fetch
from peers.keys import N_CELLS
from peers.protocol import BOX, Answer, UnavailableError

# Runs on every Java that Spark supports; later releases need Java 21.
VERSION = "9.11.1"
PACKAGE = f"org.apache.lucene:lucene-monitor:{VERSION}"
DRIVER = Path(__file__).parent / "lucene" / "Driver.java"


class LuceneMonitor:
    """A Java process with the monitor, which matches message by message and times only that."""

    version = VERSION
    terms = "words"
    heap = "4g"

    def __init__(self) -> None:
        compiler = shutil.which("javac")
        if compiler is None:
            raise UnavailableError("a Java compiler (javac) is not here")
        try:
            jars = cached_jars(f"lucene/{VERSION}", lambda folder: fetch(folder, PACKAGE))
        except UnreachableError as error:
            raise UnavailableError(str(error)) from None
        self._folder = Path(tempfile.mkdtemp(prefix="nearcast-lucene-"))
        class_path = os.pathsep.join(map(str, [self._folder, *jars]))
        subprocess.run([compiler, "-cp", class_path, "-d", self._folder, DRIVER], check=True)
        java = Path(compiler).with_name("java")
        # With a full heap this collector fails, where others continue for hours.
        limits = [f"-Xmx{self.heap}", "-XX:+UseParallelGC", "-XX:+ExitOnOutOfMemoryError"]
        command = [java, *limits, "-cp", class_path, "Driver", self.terms, str(N_CELLS)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def prepare(self, subscriptions: pa.Table, vocabulary: nc.Vocabulary) -> None:
        """Register all subscriptions."""
        counts = vocabulary.document_frequencies().tolist()
        words = ((vocabulary.token(number), count) for number, count in enumerate(counts))
        self._told("words", self._written("words", words))
        columns = [subscriptions[name].to_pylist() for name in ("id", *BOX, "rarest", "keywords")]
        self._told("subscribe", self._written("subscriptions", zip(*columns, strict=True)))

    def answers(self, messages: pa.Table) -> Answer:
        """Match message by message."""
        columns = [messages[name].to_pylist() for name in ("id", "x", "y", "keywords")]
        out = self._folder / "pairs"
        seconds = self._told("match", self._written("messages", zip(*columns, strict=True)), str(out))
        found = np.fromfile(out, ">i8").astype(np.int64).reshape(-1, 2)
        return Answer(found[:, 0], found[:, 1], seconds)

    def _written(self, name: str, rows: Iterable[tuple[Any, ...]]) -> str:
        path = self._folder / f"{name}.tsv"
        with open(path, "w", encoding="utf-8") as file:
            for row in rows:
                fields = (" ".join(field) if isinstance(field, list) else str(field) for field in row)
                file.write("\t".join(fields) + "\n")
        return str(path)

    def _told(self, *command: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline().strip()
        if not line or "OutOfMemoryError" in line:
            raise UnavailableError(f"its process has ended, with a heap of {self.heap}: {line or 'no reason given'}")
        return float(line)

    def n_bytes(self) -> int | None:
        """Return the heap in use after a collection."""
        return int(self._told("bytes"))

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


class LuceneMonitorWithCells(LuceneMonitor):
    """The monitor with terms of a keyword at a cell, which its presearcher uses."""

    terms = "cells"
    heap = "8g"
