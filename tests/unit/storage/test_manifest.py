"""A saved broker is opened completely or rejected; never a crash, never a wrong answer."""

import json
import os
import threading

import numpy as np
import pyarrow as pa
import pytest

import nearcast as nc
from nearcast.engine.state import state_of
from nearcast.storage import manifest as storage
from nearcast.storage.manifest import MANIFEST


def busy_broker():
    broker = nc.Broker(
        space=nc.Planar(0, 0, 10, 10),
        vocabulary=nc.Vocabulary.fit(["tea cake", "tea"], analyzer=nc.Analyzer(stem="english")),
        window=nc.TimeWindow(10),
    )
    broker.subscribe(nc.Boolean("b", "tea OR NOT cake", within=nc.Polygon("POLYGON ((0 0, 4 0, 0 4, 0 0))")))
    broker.subscribe(nc.Similar("s", "tea", at=(1, 1), similarity="dice"))
    broker.subscribe(nc.TopK("t", "teas", at=(1, 1), k=2))
    broker.subscribe(nc.Nearest("n", "tea pot", at=(1, 1), k=2))
    broker.publish_batch([nc.Message(i, i, 1, "tea " * i, ts=i) for i in range(10)])
    return broker


def test_a_reopened_broker_goes_on_as_the_first_would(tmp_path):
    first = busy_broker()
    first.save(tmp_path / "state")
    second = nc.Broker.open(tmp_path / "state")
    assert (second.space, second.window, second.vocabulary.version) == (
        first.space,
        first.window,
        first.vocabulary.version,
    )
    assert second.ids() == first.ids()
    for message in [nc.Message(100, 1, 1, "tea", ts=3), nc.Message(101, 1, 1, "tea pot", ts=15)]:
        assert first.publish(message) == second.publish(message)
    assert [first.results(i) for i in "tn"] == [second.results(i) for i in "tn"]
    with pytest.raises(nc.NearcastError, match="the message ids of this broker are of type int64"):
        second.publish(nc.Message("a", 1, 1, "tea", ts=16))


def test_saving_again_replaces_the_state(tmp_path):
    broker = busy_broker()
    broker.save(tmp_path)
    broker.unsubscribe("t")
    broker.save(tmp_path)
    broker.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [MANIFEST, "state-000002", "state-000003"]
    assert nc.Broker.open(tmp_path).ids() == ["b", "s", "n"]


def test_every_kind_of_damage_is_noticed(tmp_path):
    busy_broker().save(tmp_path)
    files = [tmp_path / MANIFEST, *(tmp_path / "state-000001").iterdir()]
    assert len(files) > 20
    for file in files:
        good = file.read_bytes()
        flipped = bytearray(good)
        flipped[len(good) // 2] ^= 0xFF
        for bad in (b"", good[:-1], good[: len(good) // 2], bytes(flipped), good + b"x"):
            if bad != good:
                file.write_bytes(bad)
                with pytest.raises(nc.StorageError):
                    nc.Broker.open(tmp_path)
        file.unlink()
        with pytest.raises(nc.StorageError):
            nc.Broker.open(tmp_path)
        file.write_bytes(good)
    assert len(nc.Broker.open(tmp_path)) == 4


def test_foreign_folders_are_refused(tmp_path):
    with pytest.raises(nc.StorageError, match="holds no saved broker"):
        nc.Broker.open(tmp_path / "nowhere")
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(nc.StorageError, match="holds other files; a state needs a folder of its own"):
        busy_broker().save(tmp_path)
    with pytest.raises(nc.StorageError, match=r"diary.txt is a file; a state needs a folder"):
        busy_broker().save(tmp_path / "diary.txt")
    busy_broker().save(tmp_path / "state")
    manifest = json.loads((tmp_path / "state" / MANIFEST).read_text())
    (tmp_path / "state" / MANIFEST).write_text(json.dumps(manifest | {"format": "nearcast-state-8"}, indent=1))
    with pytest.raises(
        nc.StorageError, match=r"format 'nearcast-state-8'; this version reads 'nearcast-state-10'\. Register the"
    ):
        nc.Broker.open(tmp_path / "state")


def test_a_broker_of_the_format_before_can_be_opened(tmp_path):
    """Its manifest has several lines."""
    broker = busy_broker()
    broker.save(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text()) | {"format": "nearcast-state-9"}
    del manifest["checksum"]
    checksum = storage._manifest_checksum(manifest)
    (tmp_path / MANIFEST).write_text(json.dumps(manifest | {"checksum": checksum}, indent=1))
    assert nc.Broker.open(tmp_path).ids() == broker.ids()


def test_a_small_state_is_behind_its_manifest(tmp_path, monkeypatch):
    arrays = {
        "some": np.arange(5),
        "none": np.zeros((0, 2)),
        "pairs": np.zeros(3, [("order", np.int64), ("x", np.int32)]),
    }
    tables = {
        "rows": pa.table({"id": ["a\n", None], "words": [[1], [2, 3]]}),
        "empty": pa.table({"id": pa.array([], "int64")}),
    }
    state = storage.State(arrays, tables, {"step": 3, "text": "a\nb"})
    for n_bytes, is_behind in ((1 << 20, True), (10, False)):
        monkeypatch.setattr(storage, "MAX_BEHIND_BYTES", n_bytes)
        for place, may_be_behind in ((tmp_path / "may", True), (tmp_path / "may not", False)):
            storage.write_state(place, state, may_be_behind=may_be_behind)
            found = storage.read_state(place)
            assert {name: array.tolist() for name, array in found.arrays.items()} == {
                name: array.tolist() for name, array in arrays.items()
            }
            assert {name: array.dtype for name, array in found.arrays.items()} == {
                name: array.dtype for name, array in arrays.items()
            }
            assert (dict(found.tables), found.description) == (tables, state.description)
            content = (place / MANIFEST).read_bytes()
            assert (storage.split_manifest(content)[0]["state"] is None) == (is_behind and may_be_behind)
            behind = (
                b""
                if is_behind and may_be_behind
                else b"".join(
                    file.read_bytes() for file in (place / storage.split_manifest(content)[0]["state"]).iterdir()
                )
            )
            assert storage.bytes_of(content) == len(content) + len(behind)


def test_damage_behind_a_manifest_is_seen(tmp_path):
    state = storage.State({"some": np.arange(5)}, {"rows": pa.table({"id": ["a", "b"]})}, {})
    storage.write_state(tmp_path, state, may_be_behind=True)
    content = (tmp_path / MANIFEST).read_bytes()
    for place in range(0, len(content), 7):
        for damaged in (content[:place], content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]):
            (tmp_path / MANIFEST).write_bytes(damaged)
            with pytest.raises(nc.StorageError):
                storage.read_state(tmp_path)


def test_an_unfinished_save_leaves_the_old_state(tmp_path, monkeypatch):
    broker = busy_broker()
    for name in ("new", "old"):
        if name == "old":
            broker.save(tmp_path / name)
            broker.unsubscribe("b")
        with monkeypatch.context() as patched:
            patched.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("the power went out")))
            with pytest.raises(nc.StorageError, match="could not be written: the power went out"):
                broker.save(tmp_path / name)
    assert "b" in nc.Broker.open(tmp_path / "old")
    for name in ("new", "old"):
        broker.save(tmp_path / name)
        assert "b" not in nc.Broker.open(tmp_path / name)


def test_what_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "below", tmp_path / ("x" * 300), ""):
        with pytest.raises(nc.StorageError):
            busy_broker().save(path)
        with pytest.raises(nc.StorageError):
            nc.Vocabulary().save(path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(nc.StorageError, match="not a regular file"):
        nc.Vocabulary().save(fifo)
    (tmp_path / "link").symlink_to("file")
    nc.Vocabulary.fit(["tea"]).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert "tea" in nc.Vocabulary.open(tmp_path / "file")


def test_a_window_of_any_number_type_can_be_saved(tmp_path):
    nc.Broker(window=nc.TimeWindow(np.int64(5))).save(tmp_path)
    assert nc.Broker.open(tmp_path).window == nc.TimeWindow(5)


def test_a_save_that_is_cut_off_late_leaves_the_new_state(tmp_path, monkeypatch):
    broker = busy_broker()
    broker.save(tmp_path)
    sync = storage._sync_folder

    def cut_off(folder):
        if folder == tmp_path:
            raise KeyboardInterrupt
        sync(folder)

    broker.unsubscribe("t")
    monkeypatch.setattr(storage, "_sync_folder", cut_off)
    with pytest.raises(KeyboardInterrupt):
        broker.save(tmp_path)
    assert nc.Broker.open(tmp_path).ids() == ["b", "s", "n"]


def test_several_may_save_to_one_folder_at_once(tmp_path):
    broker = busy_broker()
    failures = []

    def save():
        try:
            for _ in range(10):
                storage.write_state(tmp_path, state_of(broker._parts))
        except nc.StorageError as error:
            failures.append(error)

    threads = [threading.Thread(target=save) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert nc.Broker.open(tmp_path).ids() == broker.ids()
