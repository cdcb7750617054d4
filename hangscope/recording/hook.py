"""The interception point: kernels for every ``c10d::`` operator at dispatch key BackendSelect.

Eager calls, DDP's C++ reducer, FSDP, DTensor, functional collectives and compiled graphs all pass
through here; patching Python functions would miss most of them. Each kernel records the call and
redispatches to the keys after its own. Whatever goes wrong in the recorder, the operator is called
exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from hangscope.recording.operations import OpSpec, spec_for

_SKIPPED = frozenset({"c10d::check_for_nan"})


class Listener(Protocol):
    """What the hook calls around every operator."""

    def beginner(self, spec: OpSpec) -> Callable[[tuple[Any, ...]], Any]:
        """A function to call before an operator, with its arguments; its result is the token."""
        ...

    def issuer(self, spec: OpSpec) -> Callable[[Any, Any], Any]:
        """A function to call with the token and the result when the operator has returned."""
        ...

    def raised(self, spec: OpSpec, token: Any) -> None: ...


class Hook(Protocol):
    """Switches the kernels on and off; unless ``listening`` is set, they only redispatch."""

    listening: bool

    def install(self) -> None:
        """Register the kernels.

        Raises
        ------
        RuntimeError
            If this torch offers no ``c10d`` operators or refuses the registration.
        """
        ...

    def remove(self) -> None:
        """Unregister the kernels; calls in flight finish."""
        ...

    def close(self) -> None:
        """Let go of what is listening, once recording is over."""
        ...


def operators() -> Iterator[tuple[str, OpSpec, Any]]:
    """Name, argument positions and handle of every operator that is recorded.

    Raises
    ------
    RuntimeError
        If this torch has none.
    """
    import torch

    names = sorted(
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("c10d::") and name not in _SKIPPED
    )
    if not names:
        raise RuntimeError("this torch has no c10d operators (built without distributed?)")
    for qualified in names:
        name = qualified.split("::", 1)[1]
        base, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.c10d, base), overload or "default")
        spec = spec_for(base, [argument.name for argument in operator._schema.arguments])
        yield name, spec, operator


class DispatcherHook:
    """The hook whose kernels are Python.

    Parameters
    ----------
    listener:
        What is called around every operator.
    on_error:
        Called with any exception of the listener; may raise it again if it is the job's own.
    """

    def __init__(self, listener: Listener, on_error: Callable[[BaseException], None]) -> None:
        self.listening = False
        self._listener = listener
        self._on_error = on_error
        self._library: Any = None

    def install(self) -> None:
        """Register the kernels; nothing is recorded until ``listening`` is set."""
        import torch

        library: Any = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        for name, spec, operator in operators():
            kernel = self._kernel(self._listener, spec, operator)
            library.impl(name, kernel, "BackendSelect", with_keyset=True)
        self._library = library

    def remove(self) -> None:
        """Unregister the kernels; calls in flight finish."""
        self.listening = False
        library, self._library = self._library, None
        if library is not None:
            library._destroy()

    def close(self) -> None:
        """The listener is this process's own; nothing refers back to this object."""

    def _kernel(self, listener: Listener, spec: OpSpec, operator: Any) -> Callable[..., Any]:
        import torch
        from torch._C import DispatchKey

        after = torch._C._dispatch_keyset_full_after(DispatchKey.BackendSelect)
        redispatch = operator._handle.redispatch_boxed
        on_error = self._on_error
        # Every call has a new keyset object. Looking up its number is faster than combining sets.
        number_of = torch._C.DispatchKeySet.raw_repr
        keysets: dict[int, Any] = {}

        def keys_after(keyset: Any) -> Any:
            found = keysets[number_of(keyset)] = keyset & after
            return found

        begin, issued, raised = listener.beginner(spec), listener.issuer(spec), listener.raised

        # No keyword arguments: no c10d operator has any, and an empty dict a call is not free.
        def kernel(keyset: Any, *args: Any) -> Any:
            token = None
            if self.listening:
                try:
                    token = begin(args)
                except Exception as error:
                    on_error(error)
            rest = keysets.get(number_of(keyset)) or keys_after(keyset)
            if token is None:
                return redispatch(rest, *args)
            try:
                result = redispatch(rest, *args)
            except BaseException:
                try:
                    raised(spec, token)
                except Exception as error:
                    on_error(error)
                raise
            try:
                issued(token, result)
            except Exception as error:
                on_error(error)
            return result

        return kernel
