"""What a saved broker consists of: a change of its files needs a new format, so that an old one gets a clear error."""

import hashlib
import json
import math

import numpy as np
import pyarrow as pa

import nearcast as nc
from nearcast.storage.manifest import FORMAT

# A failure here means: the files of a saved broker have changed. Give FORMAT the next number, and put it here with the
# digest that the failure shows.
DIGEST = "nearcast-state-10", "83230c70867e29de"


def test_a_change_of_the_saved_files_has_a_new_format(tmp_path):
    fence = nc.Fence(dwell=10)
    settings = {"space": nc.Planar(0, 0, 10, 10), "window": nc.CountWindow(5), "lifetime": math.inf, "fence": fence}
    broker = nc.Broker(**settings)
    polygon = nc.Polygon("POLYGON ((0 0, 9 0, 9 9, 0 0))")
    broker.subscribe(
        [
            nc.Boolean("b", "tea OR NOT coffee", within=polygon),
            nc.Similar("s", "tea", at=(0, 0)),
            nc.TopK("t", "tea", at=(0, 0), k=2),
            nc.Nearest("n", "tea", at=(0, 0), k=2),
        ]
    )
    broker.publish_batch([nc.Message(f"m{i}", i, i, "tea time", ts=i) for i in range(8)])
    broker.move("s", (9, 9), ts=9)
    broker.save(tmp_path / "state")
    (folder,) = (tmp_path / "state").glob("state-*")
    files = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".npy":
            array = np.load(path)
            files.append(f"{path.name} {array.dtype.descr} {array.ndim}")
        else:
            with pa.memory_map(str(path)) as source:
                files.append(f"{path.name} {pa.ipc.open_file(source).schema.remove_metadata().to_string()}")
    description = json.loads((tmp_path / "state" / "MANIFEST.json").read_text())["description"]
    text = "\n".join([*files, *sorted(description)])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert (FORMAT, digest) == DIGEST, text
