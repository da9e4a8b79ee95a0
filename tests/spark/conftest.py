import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")


@pytest.fixture(scope="session")
def spark():
    from nearcast.spark import session

    spark = session("local[2,4]")
    yield spark
    spark.stop()
