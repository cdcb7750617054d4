"""The choke point: kernels for every ``c10d::`` operator at the dispatch key BackendSelect.

Eager calls, DDP's C++ reducer, FSDP, DTensor, functional collectives and compiled graphs all pass
here; patching Python functions misses most of them. Each kernel records and redispatches to the
keys after its own. Whatever goes wrong in the recorder, the operator is called exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from hangscope.recording.operations import OpSpec, spec_for

_SKIPPED = frozenset({"c10d::check_for_nan"})


class Listener(Protocol):
    """What the hook calls around every operator."""

    def begin(self, spec: OpSpec, args: tuple[Any, ...]) -> Any: ...

    def issued(self, token: Any, result: Any) -> None: ...

    def raised(self, token: Any) -> None: ...


class DispatcherHook:
    """Owns the registered kernels; ``listener`` may be swapped or be None (pass through)."""

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self.listener: Listener | None = None
        self._on_error = on_error
        self._library: Any = None
        self.operators: tuple[str, ...] = ()

    def install(self) -> None:
        """Register the kernels.

        Raises
        ------
        RuntimeError
            If this torch offers no ``c10d`` operators or refuses the registration.
        """
        import torch

        names = sorted(
            name
            for name in torch._C._dispatch_get_all_op_names()
            if name.startswith("c10d::") and name not in _SKIPPED
        )
        if not names:
            raise RuntimeError("this torch has no c10d operators (built without distributed?)")
        library: Any = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        done: list[str] = []
        for qualified in names:
            name = qualified.split("::", 1)[1]
            base, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.c10d, base), overload or "default")
            library.impl(
                name, self._kernel(spec_for(base), operator), "BackendSelect", with_keyset=True
            )
            done.append(name)
        self._library = library
        self.operators = tuple(done)

    def remove(self) -> None:
        """Take the kernels out again; calls in flight finish."""
        self.listener = None
        library, self._library = self._library, None
        if library is not None:
            library._destroy()

    def _kernel(self, spec: OpSpec, operator: Any) -> Callable[..., Any]:
        import torch
        from torch._C import DispatchKey

        after = torch._C._dispatch_keyset_full_after(DispatchKey.BackendSelect)
        redispatch = operator._handle.redispatch_boxed
        on_error = self._on_error

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            listener = self.listener
            token = None
            if listener is not None:
                try:
                    token = listener.begin(spec, args)
                except Exception as error:
                    on_error(error)
            if token is None:
                return redispatch(keyset & after, *args, **kwargs)
            try:
                result = redispatch(keyset & after, *args, **kwargs)
            except BaseException:
                try:
                    listener.raised(token)  # type: ignore[union-attr]
                except Exception as error:
                    on_error(error)
                raise
            try:
                listener.issued(token, result)  # type: ignore[union-attr]
            except Exception as error:
                on_error(error)
            return result

        return kernel
