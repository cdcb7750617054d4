"""Makes what a CUDA build of torch needs to run without a device.

The wheel of torch is the real one: its ``ProcessGroupNCCL``, with watchdog, Flight Recorder and
dumps, is what is looked at. The libraries it asks for are made here: the CUDA runtime and NCCL from
the sources beside this file, of all others every function that torch mentions, returning 0.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TORCH = "torch===2.13.0"  # three signs: not the build for processors, which calls itself 2.13.0+cpu
HEADERS = (
    "nvidia-cuda-runtime>=13.0,<13.1",
    "nvidia-cuda-crt>=13.0,<13.1",
    "nvidia-nccl-cu13==2.29.7",
)
OURS = {
    "libcudart.so.13": ("runtime.cpp", "streams.cpp", "engine.cpp"),
    "libnccl.so.2": ("nccl.cpp",),
    "libcuda.so.1": ("driver.cpp",),
}
"""Libraries with sources of their own."""
UNVERSIONED = {
    "libcuda.so.1": "cu[A-Z]",
    "libcufile.so.0": "cuFile",
    "libcurand.so.10": "curand",
    "libcusolver.so.12": "cusolver",
    "libcusparseLt.so.0": "cusparseLt",
    "libnccl.so.2": "nccl",
    "libnvrtc.so.13": "nvrtc",
    "libnvshmem_host.so.3": "nvshmem",
}
"""How the functions of libraries begin whose symbols do not tell where they are from."""
VERSION_NODES = {"libnvshmem_host.so.3": "NVSHMEM"}
"""Symbol versions that are not called like their library."""
VALUES = {"cudnnGetVersion": 92000, "cudnnGetCudartVersion": 13000}
"""What functions return of which torch wants more than success."""
_VENDOR = re.compile(r"lib(cu|nccl|nv)")
_DEFINED = re.compile(r"\b((?:__cuda|cuda|nccl|cu[A-Z])\w+)\(")
# Headers that need a compiler for devices; nothing of theirs is used.
_LEFT_OUT = ("__CUDA_FP16_H__", "__CUDA_BF16_H__", "__CUDA_FP8_H__")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the libraries of a torch build ask of others."""

    libraries: frozenset[str]
    symbols: frozenset[str]
    """``name`` or ``name@version``."""

    def functions_of(self, library: str) -> set[str]:
        """The functions expected in one library."""
        node = VERSION_NODES.get(library, library)
        found = {name for name, _, of in map(_split, self.symbols) if of == node}
        prefix = UNVERSIONED.get(library)
        if prefix is not None:
            found |= {n for n, _, of in map(_split, self.symbols) if not of and re.match(prefix, n)}
        return found


def build(folder: Path) -> None:
    """Download, unpack and compile into ``folder``; what is there already is kept.

    Raises
    ------
    subprocess.CalledProcessError
        If pip, binutils or g++ fail; they have said why.
    """
    site, headers, out = folder / "site", folder / "headers", folder / "lib"
    for target, names in ((site, (TORCH,)), (headers, HEADERS)):
        if not target.exists():
            _unpack(_download(names, folder / "wheels"), target)
    out.mkdir(exist_ok=True)
    wanted = wanted_by(sorted((site / "torch" / "lib").glob("lib*.so*")))
    # The runtime first: NCCL is linked with it.
    for library in sorted(wanted.libraries, key=lambda name: ("cudart" not in name, name)):
        if _VENDOR.match(library):
            _compile(library, wanted.functions_of(library), headers, out)


def environment(folder: Path) -> dict[str, str]:
    """The variables with which a command finds the torch and the libraries of ``folder``."""
    return {
        "PYTHONPATH": str(folder / "site"),
        "LD_LIBRARY_PATH": str(folder / "lib"),
        "DISABLE_ADDMM_CUDA_LT": "1",  # it would ask for the best algorithm, and there is none
    }


def wanted_by(libraries: Iterable[Path]) -> Wanted:
    """What these libraries need and do not define."""
    needed: set[str] = set()
    symbols: set[str] = set()
    for path in libraries:
        needed |= needed_in(_output("readelf", "-d", str(path)))
        symbols |= undefined_in(_output("nm", "-D", "--undefined-only", str(path)))
    return Wanted(frozenset(needed), frozenset(symbols))


def needed_in(listing: str) -> set[str]:
    """The libraries that ``readelf -d`` lists as needed."""
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", listing))


def undefined_in(listing: str) -> set[str]:
    """The symbols that ``nm -D --undefined-only`` lists."""
    return {line.split()[-1].replace("@@", "@") for line in listing.splitlines() if line.strip()}


def stubs(functions: Iterable[str], sources: Iterable[str]) -> str:
    """C++ source of the functions that no source defines."""
    defined = {name for source in sources for name in _DEFINED.findall(source)}
    return "".join(
        f'extern "C" long long {name}() {{ return {VALUES.get(name, 0)}; }}\n'
        for name in sorted(set(functions) - defined)
    )


def _split(symbol: str) -> tuple[str, str, str]:
    return symbol.partition("@")


def _compile(library: str, functions: set[str], headers: Path, out: Path) -> None:
    sources = [HERE / name for name in OURS.get(library, ())]
    rest = out / f"{library}.cpp"
    rest.write_text(stubs(functions, [path.read_text() for path in sources]))
    versions = out / f"{library}.map"
    versions.write_text(f"{VERSION_NODES.get(library, library)} {{ global: *; }};\n")
    command = ["g++", "-std=c++17", "-O1", "-w", "-fPIC", "-shared", f"-Wl,-soname,{library}"]
    command += [f"-D{name}" for name in _LEFT_OUT]
    command += [f"-I{path}" for path in sorted(headers.glob("nvidia/*/include"))]
    command += ["-o", str(out / library), *map(str, sources), str(rest)]
    command += [f"-Wl,--version-script={versions}"] if library not in ("libnccl.so.2",) else []
    command += [str(out / "libcudart.so.13")] if library == "libnccl.so.2" else []
    subprocess.run([*command, "-lpthread", "-lrt"], check=True)


def _download(names: Iterable[str], folder: Path) -> list[Path]:
    before = set(folder.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), *names]
    subprocess.run(command, check=True)
    return sorted(set(folder.glob("*.whl")) - before)


def _unpack(wheels: Iterable[Path], target: Path) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target.with_suffix(".part"))
        wheel.unlink()
    target.with_suffix(".part").rename(target)  # all or nothing: an interrupted one is begun anew


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
