"""A Kafka broker on this machine, and Spark's connector to it; both are fetched once, by Spark's own resolver.

Jars come from Maven Central, or from where DEFAULT_ARTIFACT_REPOSITORY says, and stay in the user's cache folder.
"""

import base64
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pyspark

from nearcast.java import found_java

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nearcast" / "kafka"
SPARK_HOME = Path(pyspark.__file__).parent
BROKER = "org.apache.kafka:kafka_2.13:4.1.1"
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
# Central does not have every part of every release; these work with Spark 4.3 too.
OTHER_CONNECTOR, OTHER_TOKENS = "4.2.0", "4.0.0"
USER, PASSWORD = "nearcast", "secret"


class UnreachableError(Exception):
    """Jars are not there and could not be fetched."""


def broker_jars():
    """The jars of a broker; Spark does not fetch what it has itself."""
    scala = SPARK_HOME.glob("jars/scala-library-*.jar")
    return [*kept(BROKER.replace(":", "-"), lambda folder: fetch(folder, BROKER)), *scala]


def connector_jars():
    """The jars that Spark needs to speak to Kafka."""

    def fetch_connector(folder):
        try:
            fetch(folder, f"{CONNECTOR}:{pyspark.__version__}")
        except UnreachableError:
            fetch(folder, f"{CONNECTOR}:{OTHER_CONNECTOR}", without=TOKENS)
            fetch(folder, f"{TOKENS}:{OTHER_TOKENS}", only="*token-provider*")

    return kept(f"connector-{pyspark.__version__}", fetch_connector)


def kept(name, fetched):
    """The jars of a folder of the cache, which is filled if it is not there."""
    folder = CACHE / name
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=CACHE))
        try:
            fetched(unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return sorted(folder.glob("*.jar"))


def fetch(folder, package, *, without="", only="*"):
    """Fetch a package, and what it needs, into a folder."""
    submit = SPARK_HOME / "bin" / "spark-submit"
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "nothing.py").touch()
        command = [submit, "--packages", package, "--conf", f"spark.jars.ivy={scratch}/ivy"]
        command += ["--exclude-packages", without] if without else []
        # A repository of Maven's in the home folder may hold half of a package, and Spark would not look further.
        environment = os.environ | {
            "JAVA_HOME": str(found_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_SUBMIT_OPTS": f"-Duser.home={scratch}",
        }
        command.append(f"{scratch}/nothing.py")
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
        except subprocess.TimeoutExpired:
            raise UnreachableError(f"{package} was not fetched from Maven Central within 180 s") from None
        if done.returncode:
            reasons = [line for line in done.stderr.splitlines() if line.startswith("Exception")]
            raise UnreachableError(f"{package} could not be fetched from Maven Central: {''.join(reasons)[:300]}")
        for jar in Path(scratch, "ivy", "jars").glob(f"{only}.jar"):
            shutil.copy(jar, folder / jar.name)


def free_ports(n):
    """Ports of this machine that nobody uses."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [taken.getsockname()[1] for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports


@contextmanager
def running_broker(folder, jars):
    """Run a broker that keeps its data in a folder; yields its address for all, and that for those with a password."""
    plain, controller, secured = (f"127.0.0.1:{port}" for port in free_ports(3))
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{plain},SASL_PLAINTEXT://{secured},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{plain},SASL_PLAINTEXT://{secured}",
        "listener.security.protocol.map": ("CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{login} user_{USER}="{PASSWORD}";',
        "log.dirs": folder / "data",
        "offsets.topic.replication.factor": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    properties = folder / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    java = [found_java().home / "bin" / "java", "-Xmx256m", "-cp", os.pathsep.join(map(str, jars))]
    name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    format_it = [*java, "kafka.tools.StorageTool", "format", "-t", name, "-c", properties]
    done = subprocess.run(format_it, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with open(folder / "broker.log", "w") as log:
        broker = subprocess.Popen([*java, "kafka.Kafka", properties], stdout=log, stderr=log)
    try:
        wait_for_listener(broker, secured, folder / "broker.log")
        yield plain, secured
    finally:
        broker.terminate()
        try:
            broker.wait(timeout=20)
        except subprocess.TimeoutExpired:
            broker.kill()
            broker.wait()


def wait_for_listener(process, address, log):
    """Wait until a process listens at an address."""
    host, port = address.split(":")
    deadline = time.monotonic() + 90
    while True:
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, f"nobody listens at {address}\n{log.read_text()[-3000:]}"
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
