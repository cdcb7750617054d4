"""The stub libraries of the pretended GPU; ``make nccl`` runs torch on them."""

from __future__ import annotations

import re

from tools.pretend_gpu.build import HERE, OURS, Wanted, headers_of, needed_in, stubs, symbols_in

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
        "nvidia-nccl-cu12==2.19.3",
    )
    assert headers_of(OF_CUDA_13) == (
        "nvidia-cuda-runtime==13.2.*",
        "nvidia-cuda-crt==13.2.*",
        "nvidia-nccl-cu13==2.30.7",
    )


def test_stubs_do_nothing() -> None:
    made = stubs({"cudaProfilerStart"})
    assert made == 'extern "C" long long cudaProfilerStart() { return 0; }\n'


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
