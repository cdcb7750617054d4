"""The stub libraries of the pretended GPU; ``make nccl`` runs torch on them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.pretend_gpu.build import (
    HERE,
    OURS,
    MissingToolError,
    Wanted,
    build,
    headers_of,
    nccl_version,
    needed_in,
    stubs,
    symbols_in,
)

DYNAMIC = """
 0x0000000000000001 (NEEDED)             Shared library: [libcudart.so.13]
 0x0000000000000001 (NEEDED)             Shared library: [libnccl.so.2]
 0x000000000000000e (SONAME)             Library soname: [libtorch_cuda.so]
"""
UNDEFINED = """
                 U cudaMalloc@libcudart.so.13
                 U ncclAllReduce
                 U nvshmem_malloc@NVSHMEM
                 U memcpy@GLIBC_2.14
"""
OF_CUDA_12 = """
Requires-Dist: filelock
Requires-Dist: nvidia-cuda-runtime-cu12 (==12.1.105) ; platform_system == "Linux"
Requires-Dist: nvidia-nccl-cu12 (==2.19.3) ; platform_system == "Linux"
"""
OF_CUDA_13 = """
Requires-Dist: cuda-toolkit[cublas,cudart]==13.2.2; platform_system == "Linux"
Requires-Dist: cuda-bindings<14,>=13.0.3; platform_system == "Linux"
Requires-Dist: nvidia-nccl-cu13==2.30.7; platform_system == "Linux"
"""


def test_functions_that_libraries_need_are_read_from_their_headers() -> None:
    assert needed_in(DYNAMIC) == {"libcudart.so.13", "libnccl.so.2"}
    assert "ncclAllReduce" in symbols_in(UNDEFINED)


def test_each_library_gets_its_expected_functions() -> None:
    wanted = Wanted(frozenset(needed_in(DYNAMIC)), frozenset(symbols_in(UNDEFINED)))
    assert wanted.functions_of("libcudart.so.13") == {"cudaMalloc"}
    assert wanted.functions_of("libnccl.so.2") == {"ncclAllReduce"}
    assert wanted.functions_of("libnvshmem_host.so.3") == {"nvshmem_malloc"}
    assert wanted.functions_of("libcufft.so.12") == set()


def test_headers_are_those_that_torch_was_built_with() -> None:
    assert headers_of(OF_CUDA_12) == (
        "nvidia-cuda-runtime-cu12==12.1.105",
        "nvidia-cuda-nvcc-cu12==12.1.*",
    )
    assert headers_of(OF_CUDA_13) == (
        "nvidia-cuda-runtime==13.2.*",
        "nvidia-cuda-crt==13.2.*",
    )


def test_nccl_says_the_version_that_torch_was_built_with() -> None:
    assert nccl_version(OF_CUDA_12) == 21903
    assert nccl_version(OF_CUDA_13) == 23007


def test_kernels_of_other_libraries_do_nothing() -> None:
    made = stubs("libcublas.so.13", {"cublasSgemm_v2"})
    assert made == 'extern "C" long long cublasSgemm_v2() { return 0; }\n'


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_what_a_played_library_does_not_play_fails_and_says_so(tmp_path: Path) -> None:
    call = "int main() { return ncclCommShrink() != 5 || cudaProfilerStart() != 0; }\n"
    source = stubs("libnccl.so.2", {"ncclCommShrink", "cudaProfilerStart"}) + call
    (tmp_path / "call.cpp").write_text(source)
    program = str(tmp_path / "call")
    subprocess.run(["g++", str(tmp_path / "call.cpp"), "-o", program], check=True)
    said = subprocess.run([program], check=True, capture_output=True, text=True)
    assert said.stderr == "pretended GPU: ncclCommShrink is not played\n"


def test_missing_compiler_is_named_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match=r"g\+\+.*apt-get install"):
        build(tmp_path, "2.13.0")
    assert list(tmp_path.iterdir()) == []


def test_ordering_functions_are_not_stubs() -> None:
    """A function that is misnamed would be replaced by a stub that does nothing."""
    decisive = {
        "libcudart": ("cudaEventQuery", "cudaStreamSynchronize", "cudaMemcpyAsync"),
        "libnccl": ("ncclAllReduce", "ncclGroupEnd", "ncclCommSplit", "ncclCommAbort"),
    }
    for library, functions in decisive.items():
        source = "".join((HERE / name).read_text() for name in OURS[library])
        for function in functions:
            assert re.search(rf"^API {function}\(", source, re.M), function


ENDS = r"""
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "links.h"

int main() {
  auto* end = static_cast<Endpoint*>(mmap(nullptr, sizeof(Endpoint), PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  Links links;
  int hold[2];
  if (pipe(hold)) return 1;
  const bool before = links.lost(*end, 0);
  const pid_t member = fork();
  if (!member) {
    char byte;
    end->open();
    return read(hold[0], &byte, 1) != 1;
  }
  while (!end->pid) usleep(1000);
  const bool alive = links.lost(*end, 0);
  if (write(hold[1], "x", 1) != 1) return 1;
  siginfo_t how;
  waitid(P_PID, member, &how, WEXITED | WNOWAIT);
  printf("%d %d %d\n", before, alive, links.lost(*end, 0));
  fflush(stdout);
  warn("misc/socket.cc:64", "Connection closed by remote peer " + end->name());
  printf("%s\n", last_warning());
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_end_of_a_process_is_noticed_before_anybody_has_reaped_it(tmp_path: Path) -> None:
    program = tmp_path / "ends"
    (tmp_path / "ends.cpp").write_text(ENDS)
    sources = [str(tmp_path / "ends.cpp"), str(HERE / "links.cpp")]
    command = ["g++", "-std=c++17", f"-I{HERE}", *sources, "-o", str(program), "-lpthread"]
    subprocess.run(command, check=True)
    environment = {**os.environ, "RANK": "2", "NCCL_DEBUG": "WARN"}
    said = subprocess.run([program], env=environment, check=True, capture_output=True, text=True)
    first, *_, printed, kept = said.stdout.splitlines()
    assert first == "0 0 1"  # it has not come, it is there, it has gone
    assert re.search(r"NCCL WARN Connection closed by remote peer 10\.0\.0\.3<\d+>$", printed)
    assert printed.endswith(kept)
