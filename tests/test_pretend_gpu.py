"""What the pretended GPU's libraries are made of; that torch runs on them is ``make nccl``."""

from __future__ import annotations

from tools.pretend_gpu.build import HERE, OURS, Wanted, needed_in, stubs, undefined_in

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


def test_what_libraries_need_is_read_from_their_headers() -> None:
    assert needed_in(DYNAMIC) == {"libcudart.so.13", "libnccl.so.2"}
    assert "ncclAllReduce" in undefined_in(UNDEFINED)


def test_each_library_gets_the_functions_that_are_expected_in_it() -> None:
    wanted = Wanted(frozenset(needed_in(DYNAMIC)), frozenset(undefined_in(UNDEFINED)))
    assert wanted.functions_of("libcudart.so.13") == {"cudaMalloc"}
    assert wanted.functions_of("libnccl.so.2") == {"ncclAllReduce"}
    assert wanted.functions_of("libnvshmem_host.so.3") == {"nvshmem_malloc"}
    assert wanted.functions_of("libcufft.so.12") == set()


def test_only_what_no_source_defines_is_made_up() -> None:
    made = stubs({"cudaMalloc", "cudaProfilerStart"}, ["API cudaMalloc(void** p, size_t n) {"])
    assert made == 'extern "C" long long cudaProfilerStart() { return 0; }\n'


def test_what_decides_the_order_of_things_is_not_made_up() -> None:
    """A function that is renamed by mistake would be replaced by one that does nothing."""
    sources = [(HERE / name).read_text() for name in OURS["libcudart.so.13"]]
    decisive = {"cudaEventQuery", "cudaStreamSynchronize", "cudaMemcpyAsync", "__cudaLaunchKernel"}
    assert stubs(decisive, sources) == ""
    nccl = [(HERE / name).read_text() for name in OURS["libnccl.so.2"]]
    assert stubs({"ncclAllReduce", "ncclGroupEnd", "ncclCommSplit", "ncclCommAbort"}, nccl) == ""
