// Profiler plugins: NCCL's events, told to the library that NCCL_PROFILER_PLUGIN names.
#pragma once
#include "profiler_abi.h"
#include "transfer.h"

// One event, in the words of all versions.
struct Event {
  int type;
  void* parent = nullptr;  // of version 4 and before, a collective's is the group
  void* group = nullptr;
  const Call* call = nullptr;
  uint64_t sequence = 0;
  const char* algorithm = nullptr;
  const char* protocol = nullptr;
  int channel = 0;
  uint64_t gpu_ns = 0;
  ProxyOpPart proxy_op{};
  int step = 0;
  void* stream = nullptr;
  bool captured = false;
};

// Begins to tell a plugin about a communicator, if there is one; and no more.
void open_profiler(ncclComm* comm);
void close_profiler(ncclComm* comm);

// Null where nobody asks for such an event.
void* start_event(ncclComm* comm, const Event& event);
void stop_event(void* handle);
void event_state(void* handle, int state, StateArguments arguments = {});
// Whether the plugin asks for any of these.
bool asks_for(const ncclComm* comm, int events);

const char* name_of(Kind kind);
