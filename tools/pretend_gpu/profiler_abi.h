// What NCCL and a profiler plugin exchange, in versions 3 to 6 of the interface (NCCL 2.26 to 2.30).
// The layouts are those of NCCL's documented plugin interface.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

enum EventType {
  kGroupEvent = 1 << 0,
  kCollEvent = 1 << 1,
  kP2pEvent = 1 << 2,
  kProxyOpEvent = 1 << 3,
  kProxyStepEvent = 1 << 4,
  kKernelChEvent = 1 << 6,
  kGroupApiEvent = 1 << 8,
  kCollApiEvent = 1 << 9,
  kP2pApiEvent = 1 << 10,
  kKernelLaunchEvent = 1 << 11,
};
enum EventState {
  kSendGpuWait = 8,
  kSendWait = 9,
  kRecvWait = 10,
  kRecvGpuWait = 12,
  kProxyOpInProgress = 19,
  kKernelChStop = 22,
};

// Parts that all versions share.
struct ProxyOpPart {
  pid_t pid;
  uint8_t channel;
  int peer, steps, chunk_bytes, is_send;
};
struct StepPart {
  int step;
};

struct Descriptor3 {
  uint8_t type;
  void* parent;
  int rank;
  union {
    struct {
      const char* name;
      uint64_t hash, sequence;
      const char* function;
      const void* from;
      void* to;
      size_t count;
      int root;
      const char* datatype;
      uint8_t channels, warps;
      const char *algorithm, *protocol;
    } coll;
    struct {
      const char* name;
      uint64_t hash;
      const char* function;
      void* buffer;
      const char* datatype;
      size_t count;
      int peer;
    } p2p;
    ProxyOpPart proxy_op;
    StepPart proxy_step;
    struct {
      uint8_t channel;
    } kernel;
  };
};

struct Descriptor4 {
  uint8_t type;
  void* parent;
  int rank;
  union {
    struct {
      uint64_t sequence;
      const char* function;
      const void* from;
      void* to;
      size_t count;
      int root;
      const char* datatype;
      uint8_t channels, warps;
      const char *algorithm, *protocol;
    } coll;
    struct {
      const char* function;
      void* buffer;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t channels;
    } p2p;
    ProxyOpPart proxy_op;
    StepPart proxy_step;
    struct {
      uint8_t channel;
      uint64_t gpu_ns;
    } kernel;
  };
};

// Version 6 adds events of copy engines, which are not played here, and is the same otherwise.
struct Descriptor5 {
  uint64_t type;
  void* parent;
  int rank;
  union {
    struct {
      bool captured;
      int depth;
    } group_api;
    struct {
      const char* function;
      size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool captured;
    } coll_api;
    struct {
      const char* function;
      size_t count;
      const char* datatype;
      void* stream;
      bool captured;
    } p2p_api;
    struct {
      void* stream;
    } launch;
    struct {
      uint64_t sequence;
      const char* function;
      const void* from;
      void* to;
      size_t count;
      int root;
      const char* datatype;
      uint8_t channels, warps;
      const char *algorithm, *protocol;
      void* group;
    } coll;
    struct {
      const char* function;
      void* buffer;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t channels;
      void* group;
    } p2p;
    ProxyOpPart proxy_op;
    StepPart proxy_step;
    struct {
      uint8_t channel;
      uint64_t gpu_ns;
    } kernel;
    char copy_engines[128];
  };
};

union StateArguments {
  uint64_t gpu_ns;  // the end of a kernel's channel, from version 4 on
  size_t bytes;     // of a step
};

using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);

// What one library exports; only the end of `init` differs from version to version.
template <class Descriptor, class... Init>
struct PluginOf {
  using Event = Descriptor;
  const char* name;
  int (*init)(void** context, Init...);
  int (*start)(void* context, void** handle, Descriptor*);
  int (*stop)(void* handle);
  int (*state)(void* handle, int state, StateArguments*);
  int (*finalize)(void* context);
};
using Plugin3 = PluginOf<Descriptor3, int*>;
using Plugin4 = PluginOf<Descriptor4, int*, const char*, uint64_t, int, int, int, Logger>;
using Plugin5 = PluginOf<Descriptor5, uint64_t, int*, const char*, int, int, int, Logger>;
