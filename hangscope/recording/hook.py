"""The interception point: kernels for every ``c10d::`` operator at dispatch key BackendSelect.

Eager calls, DDP's C++ reducer, FSDP, DTensor, functional collectives and compiled graphs all pass
through here; patching Python functions would miss most of them. (Process groups written in Python
call no operator: see `python_groups`.) Each kernel records the call and
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
        """Have the kernels call this hook; registers them the first time.

        Raises
        ------
        RuntimeError
            If this torch offers no ``c10d`` operators or refuses the registration.
        """
        ...

    def remove(self) -> None:
        """Have them only redispatch; calls in flight finish."""
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


class _Kernels:
    """The kernels of this process, and the hook that they call.

    They are registered once and never taken away: another thread may have looked one up, and be
    about to call it.
    """

    __slots__ = ("current", "library")

    def __init__(self) -> None:
        self.current: DispatcherHook | None = None
        self.library: Any = None

    def register(self) -> None:
        import torch

        if self.library is not None:
            return
        library: Any = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        for name, _, operator in operators():
            library.impl(name, _kernel(name, operator), "BackendSelect", with_keyset=True)
        self.library = library


_KERNELS = _Kernels()


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
        self.on_error = on_error
        self._listener = listener
        self.calls: dict[str, tuple[OpSpec, Callable[..., Any], Callable[..., Any]]] = {}
        """Specification and what is called before and after it, by operator."""

    def install(self) -> None:
        """Have the kernels call this hook; nothing is recorded until ``listening`` is set."""
        begin, issued = self._listener.beginner, self._listener.issuer
        self.calls = {name: (spec, begin(spec), issued(spec)) for name, spec, _ in operators()}
        _KERNELS.register()
        _KERNELS.current = self

    def remove(self) -> None:
        """Have them only redispatch; calls in flight finish."""
        self.listening = False
        if _KERNELS.current is self:
            _KERNELS.current = None

    def close(self) -> None:
        """The listener is this process's own; nothing refers back to this object."""

    def raised(self, spec: OpSpec, token: Any) -> None:
        """An operator has raised."""
        self._listener.raised(spec, token)


def _kernel(name: str, operator: Any) -> Callable[..., Any]:
    import torch
    from torch._C import DispatchKey

    after = torch._C._dispatch_keyset_full_after(DispatchKey.BackendSelect)
    redispatch = operator._handle.redispatch_boxed
    kernels = _KERNELS
    # Every call has a new keyset object. Looking up its number is faster than combining sets.
    number_of = torch._C.DispatchKeySet.raw_repr
    keysets: dict[int, Any] = {}

    def keys_after(keyset: Any) -> Any:
        found = keysets[number_of(keyset)] = keyset & after
        return found

    # No keyword arguments: no c10d operator has any, and an empty dict a call is not free.
    def kernel(keyset: Any, *args: Any) -> Any:
        token = None
        hook = kernels.current
        if hook is not None and hook.listening:
            spec, begin, issued = hook.calls[name]
            try:
                token = begin(args)
            except Exception as error:
                hook.on_error(error)
        rest = keysets.get(number_of(keyset)) or keys_after(keyset)
        if hook is None or token is None:
            return redispatch(rest, *args)
        try:
            result = redispatch(rest, *args)
        except BaseException:
            try:
                hook.raised(spec, token)
            except Exception as error:
                hook.on_error(error)
            raise
        try:
            issued(token, result)
        except Exception as error:
            hook.on_error(error)
        return result

    return kernel
