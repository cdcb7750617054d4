/* The part of NCCL's profiler plugin interface that this plugin uses, versions 3 to 6.
 *
 * Source: NCCL's public headers `profiler_v3.h` to `profiler_v6.h`. Names follow this project.
 * Versions 5 and 6 differ for this plugin only in events that it does not ask for, and version 4
 * differs from them in the width of the type and in the arguments of `init`.
 */
#ifndef HANGSCOPE_INTERFACE_H
#define HANGSCOPE_INTERFACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int nccl_result;
enum { NCCL_SUCCESS = 0, NCCL_SYSTEM_ERROR = 2 };

/* Types of events; the activation mask is their sum. */
enum event_type {
  EVENT_GROUP = 1,
  EVENT_COLL = 2,
  EVENT_P2P = 4,
  EVENT_PROXY_OP = 8,
  EVENT_PROXY_STEP = 16,
  EVENT_PROXY_CTRL = 32,
  EVENT_KERNEL_CH = 64,
  EVENT_COLL_API = 512, /* from version 5 on */
  EVENT_P2P_API = 1024
};

enum { STATE_KERNEL_CH_STOP = 22 };

struct coll { /* version 3 has the communicator's name and hash in front */
  uint64_t seq;
  const char *func;
  const void *send;
  void *receive;
  size_t count;
  int root;
  const char *datatype;
  uint8_t channels;
  uint8_t warps;
  const char *algorithm;
  const char *protocol;
};

struct p2p { /* likewise */
  const char *func;
  void *buffer;
  const char *datatype;
  size_t count;
  int peer;
  uint8_t channels; /* from version 4 on */
};

struct communicator_v3 {
  const char *name;
  uint64_t hash;
};

struct proxy_op {
  int pid;
  uint8_t channel;
  int peer;
  int steps;
  int chunk_bytes;
  int is_send;
};

struct kernel_ch {
  uint8_t channel;
  uint64_t device_ns; /* from version 4 on */
};

struct coll_api {
  const char *func;
  size_t count;
  const char *datatype;
  int root;
  void *stream;
  bool captured;
};

struct p2p_api {
  const char *func;
  size_t count;
  const char *datatype;
  void *stream;
  bool captured;
};

struct event_v3 {
  uint8_t type;
  void *parent;
  int rank;
  union {
    struct {
      struct communicator_v3 of;
      struct coll coll;
    };
    struct {
      struct communicator_v3 of_;
      struct p2p p2p;
    };
    struct proxy_op proxy_op;
    struct kernel_ch kernel_ch;
  };
};

#define EVENT_FROM_V4(name, type_of_type) \
  struct name {                           \
    type_of_type type;                    \
    void *parent;                         \
    int rank;                             \
    union {                               \
      struct coll coll;                   \
      struct p2p p2p;                     \
      struct proxy_op proxy_op;           \
      struct kernel_ch kernel_ch;         \
      struct coll_api coll_api;           \
      struct p2p_api p2p_api;             \
    };                                    \
  }

EVENT_FROM_V4(event_v4, uint8_t);
EVENT_FROM_V4(event_v5, uint64_t);

union state_arguments {
  size_t bytes;
  uint64_t device_ns;
};

typedef void (*log_function)(int, unsigned long, const char *, int, const char *, ...);

/* The structs that NCCL looks for. `init` differs between versions. */
#define PROFILER(name, event, ...)                                        \
  struct name {                                                           \
    const char *plugin;                                                   \
    nccl_result (*init)(__VA_ARGS__);                                     \
    nccl_result (*start)(void *context, void **handle, struct event *of); \
    nccl_result (*stop)(void *handle);                                    \
    nccl_result (*state)(void *handle, int state, union state_arguments *); \
    nccl_result (*finalize)(void *context);                               \
  }

PROFILER(profiler_v3, event_v3, void **context, int *mask);
PROFILER(profiler_v4, event_v4, void **context, int *mask, const char *name, uint64_t hash,
         int nodes, int ranks, int rank, log_function);
PROFILER(profiler_v5, event_v5, void **context, uint64_t hash, int *mask, const char *name,
         int nodes, int ranks, int rank, log_function);

#endif
