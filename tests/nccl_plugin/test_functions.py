"""Which recorded operations call NCCL."""

from __future__ import annotations

import numpy as np
import pytest

from hangscope.trace.model import Signature
from hangscope.trace.nccl.functions import called_bits, function_bits

ALL_REDUCE = int(function_bits(np.array([b"AllReduce"]))[0])


@pytest.mark.parametrize("backend", ["nccl", "nccl2", "ncclx", "rccl", ""])
def test_backends_of_several_names_call_it(backend: str) -> None:
    """``nccl2`` is what torch 2.15 calls its own by default."""
    assert called_bits(Signature("all_reduce", backend=backend)) == ALL_REDUCE != 0


@pytest.mark.parametrize("backend", ["gloo", "ucc", "xccl"])
def test_others_do_not(backend: str) -> None:
    assert called_bits(Signature("all_reduce", backend=backend)) == 0
