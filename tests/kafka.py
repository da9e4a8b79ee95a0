"""A Kafka broker on this machine, and Spark's connector to it; downloaded once by benchmarks/harness/maven.py."""

import base64
import os
import socket
import subprocess
import time
import uuid
from contextlib import contextmanager

import pyspark

from harness.maven import SPARK_HOME, UnreachableError, cached_jars, fetch
from nearcast.java import found_java

BROKER = "org.apache.kafka:kafka_2.13:4.1.1"
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
# Central does not have every part of every release; these work with Spark 4.3 too.
OTHER_CONNECTOR, OTHER_TOKENS = "4.2.0", "4.0.0"
USER, PASSWORD = "nearcast", "secret"


def broker_jars():
    """The jars of a broker; those that Spark has are not downloaded."""
    scala = SPARK_HOME.glob("jars/scala-library-*.jar")
    return [*cached_jars("kafka/" + BROKER.replace(":", "-"), lambda folder: fetch(folder, BROKER)), *scala]


def connector_jars():
    """The jars of Spark's Kafka connector."""

    def fetch_connector(folder):
        try:
            fetch(folder, f"{CONNECTOR}:{pyspark.__version__}")
        except UnreachableError:
            fetch(folder, f"{CONNECTOR}:{OTHER_CONNECTOR}", without=TOKENS)
            fetch(folder, f"{TOKENS}:{OTHER_TOKENS}", only="*token-provider*")

    return cached_jars(f"kafka/connector-{pyspark.__version__}", fetch_connector)


def free_ports(n):
    """Unused ports of this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [taken.getsockname()[1] for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports


@contextmanager
def running_broker(folder, jars):
    """Run a broker with its data in a folder; yields its address without, and that with a password."""
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
