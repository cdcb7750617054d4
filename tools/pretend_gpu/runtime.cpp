// A stand-in for the CUDA runtime on machines without a device.
//
// Memory is the host's, copies keep the order of their streams. Kernels do nothing, but for two:
// `spin_kernel`, which is `torch.cuda._sleep`, takes its time, and `_assert_async_cuda_kernel`, which
// is `torch._assert_async`, ends the device's work if what it looks at is zero. What torch calls and
// is not written out returns 0 (see `build.py`).
#include "runtime.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "engine.h"

namespace {
constexpr int kProcessors = 132, kDevices = 64;
thread_local int g_device = 0;
thread_local cudaError_t g_last = cudaSuccess;
int devices() {
  const char* n = getenv("PRETEND_GPUS");
  return n ? atoi(n) : 8;
}
// Of each device, for each process.
size_t memory_bytes() {
  const char* n = getenv("PRETEND_MEMORY_MIB");
  return (n ? strtoull(n, nullptr, 10) : 16384) << 20;
}
using Blocks = std::map<uintptr_t, std::pair<size_t, int>>;  // start -> size, device (-1: host)
Blocks& g_blocks = *new Blocks();  // never destroyed: others free until the very end
size_t g_used[kDevices];                               // bytes
const void* g_spin = nullptr;                          // what `torch.cuda._sleep` launches
// What `torch._assert_async` launches, and the bytes of the element that it looks at.
std::map<const void*, size_t>& g_assertions = *new std::map<const void*, size_t>();
Stream* g_default[kDevices];
}  // namespace

Stream* stream_of(cudaStream_t handle) {
  if (handle && handle != cudaStreamLegacy && handle != cudaStreamPerThread)
    return reinterpret_cast<Stream*>(handle);
  if (!g_default[g_device]) g_default[g_device] = new Stream();
  return g_default[g_device];
}

namespace {

// Name and words of an error.
std::pair<const char*, const char*> words_of(cudaError_t e) {
  switch (e) {
    case cudaSuccess:
      return {"cudaSuccess", "no error"};
    case cudaErrorNotReady:
      return {"cudaErrorNotReady", "device not ready"};
    case cudaErrorMemoryAllocation:
      return {"cudaErrorMemoryAllocation", "out of memory"};
    case cudaErrorAssert:
      return {"cudaErrorAssert", "device-side assert triggered"};
    default:
      return {"cudaErrorNotSupported", "not there in the pretended runtime"};
  }
}
cudaError_t last(cudaError_t e) {
  if (e != cudaSuccess && e != cudaErrorNotReady) g_last = e;
  return e;
}

// `device` -1: the host's. Null: there is none left.
void* allocate(size_t n, int device) {
  n = n ? n : 1;
  std::lock_guard<std::mutex> g(engine().mutex);
  if (device >= 0 && g_used[device] + n > memory_bytes()) return nullptr;
  void* p = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
  if (p == MAP_FAILED) return nullptr;
  if (device >= 0) g_used[device] += n;
  g_blocks[reinterpret_cast<uintptr_t>(p)] = {n, device};
  return p;
}
void release(void* p) {
  std::lock_guard<std::mutex> g(engine().mutex);
  auto it = g_blocks.find(reinterpret_cast<uintptr_t>(p));
  if (it == g_blocks.end()) return;
  auto [n, device] = it->second;
  if (device >= 0) g_used[device] -= n;
  g_blocks.erase(it);
  munmap(p, n);
}
// In the order of the stream, as a kernel.
void check(const char* element, size_t bytes, Stream* s) {
  engine().submit(s, [=] {
    auto node = std::make_shared<Node>();
    node->begin = [=] {
      if (std::any_of(element, element + bytes, [](char one) { return one != 0; })) return;
      fprintf(stderr, "pretended GPU: Assertion `input[0] != 0` failed.\n");
      engine().fail();
    };
    return node;
  });
}
// Bytes of the type that a kernel's mangled name has as its template argument.
size_t element_bytes(const char* name) {
  const char* type = strchr(strstr(name, "kernel") + 6, 'I');
  if (!type) return 0;
  return strchr("bah", type[1]) ? 1 : strchr("dl", type[1]) ? 8 : strchr("fi", type[1]) ? 4 : 2;
}
void launch(const void* fun, void** args, Stream* s) {
  auto assertion = g_assertions.find(fun);
  if (assertion != g_assertions.end() && assertion->second)
    return check(*static_cast<const char**>(args[0]), assertion->second, s);
  if (fun != g_spin) return;
  const double seconds = *reinterpret_cast<int64_t*>(args[0]) * 1e-9;  // a cycle a nanosecond
  engine().submit(s, [=] {
    auto node = std::make_shared<Node>();
    auto began_s = std::make_shared<double>(0);
    node->begin = [=] { *began_s = now_s(); };
    node->over = [=] { return now_s() - *began_s >= seconds; };
    return node;
  });
}
// In the order of the stream: now, if it has nothing to do.
void in_order(Stream* s, const std::function<void()>& act) {
  if (!s->capture && engine().idle(s)) return act();
  engine().submit(s, [=] {
    auto node = std::make_shared<Node>();
    node->begin = act;
    return node;
  });
}
}  // namespace

API cudaGetDeviceCount(int* n) {
  *n = devices();
  return cudaSuccess;
}
API cudaGetDevice(int* d) {
  *d = g_device;
  return cudaSuccess;
}
API cudaSetDevice(int d) {
  if (d < 0 || d >= devices()) return last(cudaErrorInvalidDevice);
  g_device = d;
  return cudaSuccess;
}
API cudaDriverGetVersion(int* v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
API cudaRuntimeGetVersion(int* v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
API cudaGetDeviceProperties(cudaDeviceProp* p, int d) {
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "Pretend GPU");
  memcpy(&p->uuid, "pretend-gpu-000", 16);
  reinterpret_cast<char*>(&p->uuid)[15] = char('0' + d);
  p->totalGlobalMem = memory_bytes();
  p->sharedMemPerBlock = 49152;
  p->regsPerBlock = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->major = 9;
  p->minor = 0;
  p->multiProcessorCount = kProcessors;
  p->maxThreadsPerMultiProcessor = 2048;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerMultiprocessor = 65536;
  p->l2CacheSize = 50 << 20;
  p->sharedMemPerBlockOptin = 232448;
  p->memoryBusWidth = 5120;
  p->unifiedAddressing = 1;
  p->concurrentKernels = 1;
  p->asyncEngineCount = 3;
  p->textureAlignment = 512;
  p->pciBusID = 16 + d;
  p->maxBlocksPerMultiProcessor = 32;
  p->managedMemory = 1;
  p->streamPrioritiesSupported = 1;
  return cudaSuccess;
}
API cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int d) {
  switch (a) {
    case cudaDevAttrComputeCapabilityMajor:
      *v = 9;
      break;
    case cudaDevAttrMultiProcessorCount:
      *v = kProcessors;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *v = 1024;
      break;
    case cudaDevAttrWarpSize:
      *v = 32;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *v = 232448;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *v = 2048;
      break;
    default:
      *v = 0;
  }
  return cudaSuccess;
}
API cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
API cudaDeviceGetDefaultMemPool(cudaMemPool_t* p, int) {
  *p = reinterpret_cast<cudaMemPool_t>(1);
  return cudaSuccess;
}
API cudaDeviceGetPCIBusId(char* s, int n, int d) {
  snprintf(s, n, "0000:%02x:00.0", 16 + d);
  return cudaSuccess;
}
API cudaDeviceGetStreamPriorityRange(int* low, int* high) {
  *low = 0;
  *high = -5;
  return cudaSuccess;
}
cudaError_t answer(cudaError_t otherwise) {
  return engine().failed() ? cudaErrorAssert : otherwise;
}
API cudaGetLastError() {
  auto e = g_last;
  g_last = cudaSuccess;
  return answer(e);
}
API cudaPeekAtLastError() { return answer(g_last); }
extern "C" const char* cudaGetErrorName(cudaError_t e) {
  return words_of(e).first;
}
extern "C" const char* cudaGetErrorString(cudaError_t e) { return words_of(e).second; }

// memory
API cudaMalloc(void** p, size_t n) {
  if (engine().failed()) return cudaErrorAssert;
  *p = allocate(n, g_device);
  return *p ? cudaSuccess : last(cudaErrorMemoryAllocation);
}
API cudaMallocAsync(void** p, size_t n, cudaStream_t) { return cudaMalloc(p, n); }
API cudaFree(void* p) {
  engine().wait_for_all();  // like a device: queued work may still use it
  release(p);
  return cudaSuccess;
}
API cudaFreeAsync(void* p, cudaStream_t) {
  release(p);
  return cudaSuccess;
}
API cudaHostAlloc(void** p, size_t n, unsigned) {
  *p = allocate(n, -1);
  return *p ? cudaSuccess : last(cudaErrorMemoryAllocation);
}
API cudaFreeHost(void* p) {
  release(p);
  return cudaSuccess;
}
API cudaMemGetInfo(size_t* f, size_t* t) {
  std::lock_guard<std::mutex> g(engine().mutex);
  *t = memory_bytes();
  *f = *t - g_used[g_device];
  return cudaSuccess;
}
API cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* v) {
  *static_cast<uint64_t*>(v) = 0;
  return cudaSuccess;
}
API cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  memset(a, 0, sizeof *a);
  std::lock_guard<std::mutex> g(engine().mutex);
  auto it = g_blocks.upper_bound(reinterpret_cast<uintptr_t>(p));
  a->type = cudaMemoryTypeUnregistered;
  a->device = -2;
  if (it != g_blocks.begin()) {
    --it;
    if (reinterpret_cast<uintptr_t>(p) < it->first + it->second.first) {
      int d = it->second.second;
      a->type = d < 0 ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
      a->device = d < 0 ? g_device : d;
      a->devicePointer = const_cast<void*>(p);
      a->hostPointer = d < 0 ? const_cast<void*>(p) : nullptr;
    }
  }
  return cudaSuccess;
}
API cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind) {
  engine().wait(stream_of(nullptr));
  memmove(d, s, n);
  return answer(cudaSuccess);
}
// Host memory is read now, as with pageable memory.
static cudaError_t copy(void* d, const void* s, size_t n, cudaMemcpyKind kind,
                        cudaStream_t stream) {
  Stream* at = stream_of(stream);
  if (kind == cudaMemcpyHostToDevice && !at->capture && !engine().idle(at)) {
    std::shared_ptr<char> kept(new char[n], std::default_delete<char[]>());
    memcpy(kept.get(), s, n);
    in_order(at, [=] { memmove(d, kept.get(), n); });
  } else {
    in_order(at, [=] { memmove(d, s, n); });
  }
  return answer(cudaSuccess);
}
API cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind k, cudaStream_t stream) {
  return copy(d, s, n, k, stream);
}
API cudaMemcpyPeerAsync(void* d, int, const void* s, int, size_t n, cudaStream_t stream) {
  return copy(d, s, n, cudaMemcpyDeviceToDevice, stream);
}
API cudaMemset(void* p, int v, size_t n) {
  memset(p, v, n);
  return cudaSuccess;
}
API cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t stream) {
  in_order(stream_of(stream), [=] { memset(p, v, n); });
  return cudaSuccess;
}
API cudaGetSymbolAddress(void** p, const void*) {
  static char area[1 << 16];
  *p = area;
  return cudaSuccess;
}

// kernels
extern "C" unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t);
static thread_local struct {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
} g_call;
extern "C" unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t n, cudaStream_t s) {
  g_call = {g, b, n, s};
  return 0;
}
API __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* n, void* s) {
  *g = g_call.grid;
  *b = g_call.block;
  *n = g_call.shared;
  *static_cast<cudaStream_t*>(s) = g_call.stream;
  return cudaSuccess;
}
API __cudaGetKernel(cudaKernel_t* k, const void* f) {
  *k = reinterpret_cast<cudaKernel_t>(const_cast<void*>(f));
  return cudaSuccess;
}
API __cudaLaunchKernel(cudaKernel_t k, dim3, dim3, void** args, size_t, cudaStream_t s) {
  launch(reinterpret_cast<const void*>(k), args, stream_of(s));
  return answer(cudaSuccess);
}
API cudaLaunchKernel(const void* f, dim3, dim3, void** args, size_t, cudaStream_t s) {
  launch(f, args, stream_of(s));
  return answer(cudaSuccess);
}
API cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void** args) {
  launch(f, args, stream_of(c->stream));
  return answer(cudaSuccess);
}
extern "C" void** __cudaRegisterFatBinary(void*) {
  static void* h[1];
  return h;
}
extern "C" void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int,
                                       void*, void*, void*, void*, int*) {
  if (strstr(name, "spin_kernel")) g_spin = host;
  if (strstr(name, "_assert_async_cuda_kernel")) g_assertions[host] = element_bytes(name);
}
API cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->ptxVersion = a->binaryVersion = 90;
  return cudaSuccess;
}
API cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int, size_t,
                                                           unsigned) {
  *n = 4;
  return cudaSuccess;
}

// the driver, through the runtime
static int driver_stub() { return 0; }
static CUresult ctx_state(CUdevice, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return CUDA_SUCCESS;
}
static CUresult ctx_current(CUcontext* c) {
  *c = reinterpret_cast<CUcontext>(1);
  return CUDA_SUCCESS;
}
API cudaGetDriverEntryPointByVersion(const char* name, void** f, unsigned, unsigned long long,
                                     cudaDriverEntryPointQueryResult* r) {
  *f = reinterpret_cast<void*>(driver_stub);
  if (!strcmp(name, "cuDevicePrimaryCtxGetState")) *f = reinterpret_cast<void*>(ctx_state);
  if (!strcmp(name, "cuCtxGetCurrent")) *f = reinterpret_cast<void*>(ctx_current);
  if (r) *r = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
