"""How does it survive? Manifests, folders on a disk, object stores; knows no Spark."""
