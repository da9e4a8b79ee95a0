"""The one way in which Nearcast compiles a kernel, and two processor instructions that Numba does not expose."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba.core import cgutils, config, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.experimental import structref
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., object])


class KernelFiles(IndexDataCacheFile):
    """The cached machine code of one kernel: one file for each signature, named by a digest of it.

    Numba numbers the files and lists them in an index. Two processes that compile at the same time may give one number
    to two signatures; a kernel is then called with arguments of another type, and the process crashes. Here every
    signature has a file of its own, replaced atomically, and no index.
    """

    def save(self, key: tuple[Hashable, ...], data: object) -> None:
        """Write the code of one signature, in place of an older version of it."""
        self._save_data(self._file_name(key), (self._version, self._source_stamp, key, data))

    def load(self, key: tuple[Hashable, ...]) -> object | None:
        """Return the code of one signature, or None if there is none for these sources and this version of Numba."""
        try:
            version, stamp, saved_key, data = self._load_data(self._file_name(key))
        except FileNotFoundError:
            return None
        return data if (version, stamp, saved_key) == (self._version, self._source_stamp, key) else None

    def _file_name(self, key: tuple[Hashable, ...]) -> str:
        signature, processor, _bytecode = key
        digest = hashlib.sha256(repr((signature, processor)).encode()).hexdigest()
        return self._index_name.removesuffix("nbi") + digest[:20] + ".nbc"


class KernelCache(FunctionCache):
    """Numba's cache of a function, in files that processes may write at the same time."""

    def __init__(self, function: Callable[..., object]):
        super().__init__(function)
        self._cache_file = KernelFiles(
            self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp()
        )


def kernel(function: F) -> F:
    """Compile `function` with Numba: cached on disk, the GIL released, errors of NumPy arithmetic as in NumPy.

    With NUMBA_DISABLE_JIT=1 the function runs as plain Python and gives the same answers.
    """
    compiled = numba.njit(nogil=True, error_model="numpy")(function)
    if not config.DISABLE_JIT:  # type: ignore[attr-defined]
        # Where no folder can be written, compile in every process rather than not run at all.
        with contextlib.suppress(RuntimeError):
            compiled._cache = KernelCache(function)  # type: ignore[attr-defined]
    return cast(F, compiled)


if config.DISABLE_JIT:  # type: ignore[attr-defined]

    def prefetch(array: Any, place: int) -> None:
        """Do nothing: plain Python has no say in what the processor fetches."""

    def lowest_bit(word: Any) -> int:
        """Return the number of the lowest bit that is set in a word of 64 bits that has one."""
        return (int(word) & -int(word)).bit_length() - 1

    class Handle:
        """Refers to a value."""

        def __init__(self, value: Any):
            self.value = value

else:

    @intrinsic
    def prefetch(_context: Any, array: Any, place: Any) -> Any:
        """Ask the processor to fetch one item of an array that will be read soon."""

        def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array_type = signature.args[0]
            items = context.make_array(array_type)(context, builder, arguments[0])
            pointer = cgutils.get_item_pointer(context, builder, array_type, items, [arguments[1]])
            address = builder.bitcast(pointer, ir.IntType(8).as_pointer())
            number = ir.IntType(32)
            kinds = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
            function = cgutils.get_or_insert_function(builder.module, kinds, "llvm.prefetch.p0i8")
            # A read, with high temporal locality, of data.
            builder.call(function, [address, number(0), number(3), number(1)])
            return context.get_dummy_value()

        return types.void(array, place), generated

    @intrinsic
    def lowest_bit(_context: Any, word: Any) -> Any:  # noqa: ARG001
        """Return the number of the lowest bit that is set in a word of 64 bits that has one."""

        def generated(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.cttz(arguments[0], ir.IntType(1)(1))

        return types.int64(types.uint64), generated

    @structref.register
    class HandleType(types.StructRef):
        """What Numba calls the type of a Handle."""

    class Handle(structref.StructRefProxy):  # type: ignore[no-redef]
        """Refers to a value that kernels read; unboxing ten arrays in each call would take more than a microsecond."""

    structref.define_proxy(Handle, HandleType, ["value"])


@kernel
def handle_of(value: Any) -> Any:
    """Return a Handle of a named tuple of arrays, for a kernel that is called often and does little each time."""
    return Handle(value)
