"""The one way in which Nearcast compiles a kernel, and two instructions of the processor that Numba has no name for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba.core import cgutils, config, types
from numba.experimental import structref
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile `function` with Numba: cached on disk, the GIL released, errors of NumPy arithmetic as in NumPy.

    With NUMBA_DISABLE_JIT=1 the function runs as plain Python and gives the same answers.
    """
    try:
        return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError:
        # Nowhere to keep the cache: compile in every process rather than not run at all.
        return cast(F, numba.njit(nogil=True, error_model="numpy")(function))


if config.DISABLE_JIT:  # type: ignore[attr-defined]

    def prefetch(array: Any, place: int) -> None:
        """Do nothing: plain Python has no say in what the processor fetches."""

    def lowest_bit(word: Any) -> int:
        """Return the number of the lowest bit that is set in a word of 64 bits that has one."""
        return (int(word) & -int(word)).bit_length() - 1

    class Held:
        """Holds a value."""

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
            # For reading, to be kept in every cache, as data.
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
    class HeldType(types.StructRef):
        """What Numba calls the type of a Held."""

    class Held(structref.StructRefProxy):  # type: ignore[no-redef]
        """Holds a value where kernels find it: a call with ten arrays spends more than a microsecond on taking them."""

    structref.define_proxy(Held, HeldType, ["value"])


@kernel
def hold(value: Any) -> Any:
    """Return a Held with a named tuple of arrays, for a kernel that is called often and does little each time."""
    return Held(value)
