"""Which types of Arrow columns contain words."""

from __future__ import annotations

import pyarrow as pa


def is_string(kind: pa.DataType) -> bool:
    """Whether a column of this type has strings, in any encoding."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_list_of_strings(kind: pa.DataType) -> bool:
    """Whether a column of this type has lists of strings."""
    return is_list(kind) and is_string(kind.value_type)


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type has lists."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)
