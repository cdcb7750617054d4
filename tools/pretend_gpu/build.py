"""Builds the stub libraries that a CUDA build of torch needs to run without a device.

The torch wheel is the real one: its ``ProcessGroupNCCL``, with watchdog, Flight Recorder and dumps,
is what is tested. The libraries it loads are built here: the CUDA runtime and NCCL from the sources
beside this file. What they do not play fails, and says so. For all others, every function that
torch references is a stub that returns 0: nothing is computed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
OURS = {
    "libcudart": ("runtime.cpp", "streams.cpp", "graphs.cpp", "engine.cpp", "device.cpp"),
    "libnccl": (
        "nccl.cpp",
        "calls.cpp",
        "transfer.cpp",
        "routes.cpp",
        "values.cpp",
        "wires.cpp",
        "links.cpp",
        "proxy.cpp",
        "profiler.cpp",
    ),
    "libcuda": ("driver.cpp",),
}
"""Libraries that are built from sources."""
UNVERSIONED = {
    "libcuda": "cu[A-Z]",
    "libcudnn": "cudnn",
    "libcufile": "cuFile",
    "libcurand": "curand",
    "libcusolver": "cusolver",
    "libcusparseLt": "cusparseLt",
    "libnccl": "nccl",
    "libnvToolsExt": "nvtx",
    "libnvrtc": "nvrtc",
    "libnvshmem_host": "nvshmem",
}
"""Function name prefixes of libraries whose symbols do not tell their library."""
VERSION_NODES = {"libnvshmem_host": "NVSHMEM"}
"""Symbol versions that are not named after their library."""
VALUES = {"cudnnGetVersion": 92000, "cudnnGetCudartVersion": 13000}
"""Return values of functions from which torch expects more than success."""
FAILURES = {"libcudart": 801, "libcuda": 801, "libnccl": 5}
"""What a function returns that is not played: not supported, invalid usage."""
NEEDLESS = frozenset(
    {
        "__cudaInitModule",
        "__cudaRegisterFatBinaryEnd",
        "__cudaRegisterVar",
        "__cudaUnregisterFatBinary",
        "cudaDeviceEnablePeerAccess",
        "cudaFuncSetAttribute",
        "cudaHostRegister",
        "cudaHostUnregister",
        "cudaKernelSetAttributeForDevice",
        "cudaLaunchCooperativeKernel",
        "cudaMemPoolSetAccess",
        "cudaMemPoolSetAttribute",
        "cudaMemPoolTrimTo",
        "cudaProfilerStart",
        "cudaProfilerStop",
        "cudaStreamDestroy",
    }
)
"""Functions of played libraries that may do nothing, because kernels and memory have no state."""
TOOLS = ("g++", "readelf", "nm")
_VENDOR = re.compile(r"lib(cu|nccl|nv)")


class MissingToolError(Exception):
    """A program that building needs is not there; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the libraries of a torch build need from others."""

    libraries: frozenset[str]
    symbols: frozenset[str]
    """``name`` or ``name@version``."""

    def functions_of(self, library: str) -> set[str]:
        """The functions expected in one library."""
        node = VERSION_NODES.get(stem(library), library)
        found = {name for name, _, of in map(_split, self.symbols) if of == node}
        prefix = UNVERSIONED.get(stem(library))
        if prefix is not None:
            found |= {n for n, _, of in map(_split, self.symbols) if not of and re.match(prefix, n)}
        return found


def build(folder: Path, version: str) -> None:
    """Download, unpack and compile into ``folder``; existing parts are kept.

    Parameters
    ----------
    folder:
        Where to put torch and the libraries.
    version:
        Version of torch, such as ``2.5.1``.

    Raises
    ------
    MissingToolError
        Before anything is downloaded, if there is no compiler or no binutils.
    subprocess.CalledProcessError
        If pip, binutils or g++ fail; they have printed why.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise MissingToolError(
            f"not found: {', '.join(missing)}; install a C++ compiler and binutils"
            " (Debian, Ubuntu: apt-get install g++ binutils)"
        )
    site, headers, out = folder / "site", folder / "headers", folder / "lib"
    if not site.exists():
        # ``===`` excludes the CPU build, whose version is 2.13.0+cpu.
        _unpack(_download((f"torch==={version}",), folder / "wheels"), site)
    metadata = next(site.glob("torch-*.dist-info/METADATA")).read_text()
    if not headers.exists():
        _unpack(_download(headers_of(metadata), folder / "wheels"), headers)
    out.mkdir(exist_ok=True)
    built = out / ".built"
    if built.exists() and all(p.stat().st_mtime < built.stat().st_mtime for p in HERE.glob("*.*")):
        return
    wanted = wanted_by(sorted((site / "torch" / "lib").glob("lib*.so*")))
    # The runtime first, because NCCL is linked with it.
    for library in sorted(wanted.libraries, key=lambda name: ("cudart" not in name, name)):
        if _VENDOR.match(library):
            _compile(library, wanted.functions_of(library), nccl_version(metadata), headers, out)
    built.touch()


def environment(folder: Path) -> dict[str, str]:
    """The environment in which a command uses the torch and the libraries in ``folder``."""
    return {
        "PYTHONPATH": str(folder / "site"),
        "LD_LIBRARY_PATH": str(folder / "lib"),
        "DISABLE_ADDMM_CUDA_LT": "1",  # it would query the best algorithm, and there is none
    }


def headers_of(metadata: str) -> tuple[str, ...]:
    """The packages with the CUDA headers that a torch wheel was built with."""
    asked = _asked_by(metadata)
    if "cuda-toolkit" in asked:  # from CUDA 13 on packages have no suffix, nor numbers of their own
        minor = ".".join(asked["cuda-toolkit"].split(".")[:2])
        return (f"nvidia-cuda-runtime=={minor}.*", f"nvidia-cuda-crt=={minor}.*")
    runtime = next(name for name in asked if name.startswith("nvidia-cuda-runtime-"))
    crt = runtime.replace("runtime", "nvcc")
    minor = ".".join(asked[runtime].split(".")[:2])
    return (f"{runtime}=={asked[runtime]}", f"{crt}=={minor}.*")


def nccl_version(metadata: str) -> int:
    """The version of NCCL that a torch wheel was built with, as NCCL counts: 23007 is 2.30.7."""
    asked = _asked_by(metadata)
    nccl = next(asked[name] for name in asked if name.startswith("nvidia-nccl-"))
    major, minor, patch = map(int, nccl.split(".")[:3])
    return major * 10000 + minor * 100 + patch


def _asked_by(metadata: str) -> dict[str, str]:
    """The exact versions that a wheel's metadata requires, by package."""
    return dict(re.findall(r"^Requires-Dist: ([\w.-]+)[^;\n]*==([\d.]+)", metadata, re.M))


def wanted_by(libraries: Iterable[Path]) -> Wanted:
    """What these libraries need that neither they nor the libraries beside them provide."""
    needed: set[str] = set()
    symbols: set[str] = set()
    paths = list(libraries)
    for path in paths:
        needed |= needed_in(_output("readelf", "-d", str(path)))
        symbols |= symbols_in(_output("nm", "-D", "--undefined-only", str(path)))
    return Wanted(frozenset(needed - {path.name for path in paths}), frozenset(symbols))


def needed_in(listing: str) -> set[str]:
    """The libraries that ``readelf -d`` lists as needed."""
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", listing))


def symbols_in(listing: str) -> set[str]:
    """The symbols that ``nm`` lists."""
    return {line.split()[-1].replace("@@", "@") for line in listing.splitlines() if line.strip()}


def stubs(library: str, functions: Iterable[str]) -> str:
    """C++ source of functions that do nothing, or fail where others of the library do something."""
    failure = FAILURES.get(stem(library))
    if failure is None:
        return "".join(_stub(name, str(VALUES.get(name, 0))) for name in sorted(functions))
    return _NOT_PLAYED + "".join(
        _stub(name, "0" if name in NEEDLESS else f'not_played("{name}", {failure})')
        for name in sorted(functions)
    )


_NOT_PLAYED = """#include <cstdio>
static long long not_played(const char* name, long long error) {
  fprintf(stderr, "pretended GPU: %s is not played\\n", name);
  return error;
}
"""


def _stub(name: str, value: str) -> str:
    return f'extern "C" long long {name}() {{ return {value}; }}\n'


def stem(library: str) -> str:
    """``libcudart`` of ``libcudart.so.13``."""
    return library.partition(".")[0]


def _split(symbol: str) -> tuple[str, str, str]:
    return symbol.partition("@")


def _compile(library: str, functions: set[str], nccl: int, headers: Path, out: Path) -> None:
    compiler = ["g++", "-std=c++17", "-O1", "-w", "-fPIC", f"-DNCCL_VERSION_CODE={nccl}"]
    compiler += [f"-I{path}" for path in sorted(headers.glob("nvidia/*/include"))]
    objects = []
    for name in OURS.get(stem(library), ()):
        objects.append(str(out / f"{name}.o"))
        subprocess.run([*compiler, "-c", str(HERE / name), "-o", objects[-1]], check=True)
    # Taken from the objects, because CUDA's headers rename some functions (cudaMalloc_v2).
    defined = symbols_in(_output("nm", "--defined-only", *objects)) if objects else set()
    rest = out / f"{library}.cpp"
    rest.write_text(stubs(library, functions - defined))
    command = [*compiler, "-shared", f"-Wl,-soname,{library}", "-o", str(out / library)]
    command += [*objects, str(rest)]
    if library.startswith("libnccl."):
        command += [str(path) for path in out.glob("libcudart.so.*[0-9]")]
    else:
        versions = out / f"{library}.map"
        versions.write_text(f"{VERSION_NODES.get(stem(library), library)} {{ global: *; }};\n")
        command += [f"-Wl,--version-script={versions}"]
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
    target.with_suffix(".part").rename(target)  # atomic; an interrupted unpack starts again


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
