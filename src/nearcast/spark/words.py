"""The words of a saved shard: processes number words in different ways, so a snapshot says which words its ids are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from nearcast.arrays import Int32Array, Int64Array
from nearcast.kernels.renumber import renumbered
from nearcast.storage.manifest import State
from nearcast.text.vocabulary import Vocabulary

# The ragged columns of subscriptions that contain token ids, with the values beside these, if there are any.
COLUMNS = (("token", "token_weights"), ("required", None), ("forbidden", None))
# The table of delayed changes of fences, which has lists of token ids.
DELAYED, TOKEN_IDS = "delayed", "token_ids"
NO_VALUES = np.zeros(0)


def with_words(state: State, vocabulary: Vocabulary) -> State:
    """Return the state of a shard with the words of its token ids."""
    ids = [state.arrays[f"subscription_{name}_ids"] for name, _ in COLUMNS]
    if DELAYED in state.tables:
        ids.append(state.tables[DELAYED][TOKEN_IDS].combine_chunks().flatten().to_numpy(zero_copy_only=False))
    used: Int64Array = np.unique(np.concatenate(ids).astype(np.int64))
    words = pa.table({"id": used, "word": vocabulary.tokens_of(used)})
    return state._replace(tables={**state.tables, "words": words})


def renumbered_words(state: State, vocabulary: Vocabulary) -> State:
    """Return the state with the token ids of a vocabulary, to which new words are added."""
    words = state.tables["words"]
    used = words["id"].to_numpy()
    numbers = np.zeros(int(used.max(initial=-1)) + 1, np.int32)
    numbers[used] = vocabulary.admit_all(words["word"].combine_chunks())
    arrays, tables = dict(state.arrays), dict(state.tables)
    for name, values_name in COLUMNS:
        keys = f"subscription_{name}_offsets", f"subscription_{name}_ids"
        offsets, ids = (arrays[key] for key in keys)
        values = NO_VALUES if values_name is None else arrays[f"subscription_{values_name}"]
        arrays[keys[1]], new_values = renumbered(offsets, ids, values, numbers)
        if values_name is not None:
            arrays[f"subscription_{values_name}"] = new_values
    if DELAYED in tables:
        tables[DELAYED] = _renumbered_lists(tables[DELAYED], numbers)
    return state._replace(arrays=arrays, tables=tables)


def _renumbered_lists(table: pa.Table, numbers: Int32Array) -> pa.Table:
    lists = table[TOKEN_IDS].combine_chunks()
    offsets = lists.offsets.to_numpy() - (lists.offsets[0].as_py() if len(lists.offsets) else 0)
    ids = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int32)
    new_ids, _ = renumbered(offsets.copy(), ids, NO_VALUES, numbers)
    column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(new_ids))
    return table.set_column(table.schema.get_field_index(TOKEN_IDS), TOKEN_IDS, column)
