"""Compiles the hot path for one Python and one torch.

C++ that uses torch's headers fits one build of torch only. So no wheel can contain it, and it is
made where torch is: once when an image is built, by ``hangscope compile``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hangscope.recording.compiled.constants import constants_header
from hangscope.recording.compiled.load import PLACE
from hangscope.recording.compiled.names import SOURCES, file_name, module_name
from hangscope.ring.trusted_files import UntrustedError, check_trusted

_PYBIND_NAMES = ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")
_CXX20_SINCE = (2, 12)
"""Torch's own headers need C++20 from this version on."""


class BuildError(Exception):
    """The hot path cannot be compiled here; the message says why and what to do."""


def build(directory: Path, *, metered: bool = False) -> Path:
    """Compile the hot path into a directory; returns the file, which is replaced if it exists.

    Parameters
    ----------
    directory:
        Made if it does not exist.
    metered:
        With a clock that measures how long the job's threads spend in the hot path (``meter.hpp``).

    Raises
    ------
    BuildError
        Without torch, compiler or headers, or if the compiler fails.
    """
    try:
        import torch
    except ImportError as error:
        raise BuildError(f"torch cannot be imported ({error}); install it first") from None
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise BuildError("there is no C++ compiler; install g++, or set CXX")
    directory = directory.absolute()
    target = directory / file_name(torch)
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        check_trusted(directory)
    except UntrustedError as error:
        raise BuildError(f"nothing is loaded from {directory}: {error}") from None
    with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as place:
        (Path(place) / "constants.hpp").write_text(constants_header())
        made = Path(place) / target.name
        command = [*compiler.split(), *_options(torch, Path(place), module_name(target))]
        command += ["-DHANGSCOPE_METER"] if metered else []
        command += [str(SOURCES / "module.cpp"), "-o", str(made), *_libraries(torch)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise BuildError(f"the compiler {compiler} cannot be run: {error.strerror}") from None
        if done.returncode:
            raise BuildError(_explain(done))
        made.chmod(0o755)  # whatever the umask: it is not loaded if others could change it
        _try(Path(place))
        os.replace(made, target)
    return target


def _try(place: Path) -> None:
    """Record with what has just been compiled, before any job does."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HANGSCOPE")}
    environment |= {PLACE: str(place), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-m", "hangscope.recording.compiled.trial"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode or not done.stdout.endswith("ok\n"):
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise BuildError(f"what was compiled does not work with this torch: {last[:400]}")


def _options(torch: Any, place: Path, module: str) -> list[str]:
    include = Path(torch.__file__).parent / "include"
    # Objects of torch's are known to pybind11 only under the same names of compiler and library.
    names = {name: getattr(torch._C, f"_PYBIND11_{name}", None) for name in _PYBIND_NAMES}
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return [
        f"-std=c++{20 if version >= _CXX20_SINCE else 17}",
        "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-s", "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO",
        *(f'-DPYBIND11_{name}="{value}"' for name, value in names.items() if value is not None),
        f'-DHANGSCOPE_MODULE="{module}"', f"-DHANGSCOPE_INIT=PyInit_{module}",
        f"-I{place}", f"-I{SOURCES}",
        f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}",
        f"-I{sysconfig.get_paths()['include']}",
    ]  # fmt: skip


def _libraries(torch: Any) -> list[str]:
    library = Path(torch.__file__).parent / "lib"
    return [f"-L{library}", "-lc10", "-ltorch_cpu", "-ltorch_python"]


def _explain(done: subprocess.CompletedProcess[str]) -> str:
    """The first error of a compiler, and what to do if that is known."""
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}, without a word"]
    first = next((line for line in lines if "error" in line.lower()), lines[-1])
    if "Python.h" in first:
        return "Python's headers are missing; install python3-dev or the like"
    return f"the compiler failed: {first.strip()[:400]}"
