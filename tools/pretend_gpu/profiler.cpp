#include "profiler.h"

#include <dlfcn.h>
#include <strings.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "values.h"

namespace {
// The descriptor of one version.
template <class Descriptor>
Descriptor described(const Event& event, const ncclComm* comm) {
  constexpr bool kOld = std::is_same<Descriptor, Descriptor3>::value;
  constexpr bool kNew = std::is_same<Descriptor, Descriptor5>::value;
  const Call* call = event.call;
  Descriptor made;
  memset(&made, 0, sizeof made);
  made.type = event.type;
  made.parent = event.parent;
  made.rank = comm->rank;
  switch (event.type) {
    case kCollEvent:
      if constexpr (kOld) made.coll.name = "", made.coll.hash = comm->hash;
      if constexpr (kNew) made.coll.group = event.group;
      if constexpr (!kNew) made.parent = event.group;
      made.coll.sequence = event.sequence;
      made.coll.function = name_of(call->kind);
      made.coll.from = call->from;
      made.coll.to = call->to;
      made.coll.count = call->count;
      made.coll.root = call->other < 0 ? 0 : call->other;
      made.coll.datatype = name_of_type(call->type);
      made.coll.channels = call->channels();
      made.coll.warps = 16;
      made.coll.algorithm = event.algorithm;
      made.coll.protocol = event.protocol;
      break;
    case kP2pEvent:
      if constexpr (kOld) made.p2p.name = "", made.p2p.hash = comm->hash;
      if constexpr (kNew) made.p2p.group = event.group;
      if constexpr (!kNew) made.parent = event.group;
      if constexpr (!kOld) made.p2p.channels = call->channels();
      made.p2p.function = name_of(call->kind);
      made.p2p.buffer = call->kind == kSend ? const_cast<void*>(call->from) : call->to;
      made.p2p.datatype = name_of_type(call->type);
      made.p2p.count = call->count;
      made.p2p.peer = call->other;
      break;
    case kProxyOpEvent:
      made.proxy_op = event.proxy_op;
      break;
    case kProxyStepEvent:
      made.proxy_step.step = event.step;
      break;
    case kKernelChEvent:
      made.kernel.channel = uint8_t(event.channel);
      if constexpr (!kOld) made.kernel.gpu_ns = event.gpu_ns;
      break;
  }
  if constexpr (kNew) {
    switch (event.type) {
      case kGroupApiEvent:
        made.group_api = {event.captured, 1};
        break;
      case kCollApiEvent:
        made.coll_api = {name_of(call->kind), call->count, name_of_type(call->type),
                         call->other < 0 ? 0 : call->other, event.stream, event.captured};
        break;
      case kP2pApiEvent:
        made.p2p_api = {name_of(call->kind), call->count, name_of_type(call->type), event.stream,
                        event.captured};
        break;
      case kKernelLaunchEvent:
        made.launch.stream = event.stream;
        break;
    }
  }
  return made;
}

void log(int level, unsigned long, const char*, int, const char* format, ...) {
  const char* asked = getenv("NCCL_DEBUG");
  if (!asked || (strcasecmp(asked, "INFO") && strcasecmp(asked, "TRACE") && level > 2)) return;
  va_list words;
  va_start(words, format);
  vprintf(format, words);
  va_end(words);
  putchar('\n');
}

// A plugin of any version.
struct Plugin {
  virtual int init(ncclComm* comm, int nodes) const = 0;
  virtual void* start(ncclComm* comm, const Event& event) const = 0;
  virtual void stop(void* handle) const = 0;
  virtual void state(void* handle, int state, StateArguments arguments) const = 0;
  virtual void finalize(void* context) const = 0;
};

template <class Exported>
struct Loaded : Plugin {
  explicit Loaded(void* exported) : of(static_cast<Exported*>(exported)) {}
  Exported* const of;

  int init(ncclComm* comm, int nodes) const override {
    const int ranks = comm->ranks, rank = comm->rank;
    if constexpr (std::is_same<Exported, Plugin3>::value)
      return of->init(&comm->profiler, &comm->events);
    if constexpr (std::is_same<Exported, Plugin4>::value)
      return of->init(&comm->profiler, &comm->events, "", comm->hash, nodes, ranks, rank, log);
    if constexpr (std::is_same<Exported, Plugin5>::value)
      return of->init(&comm->profiler, comm->hash, &comm->events, "", nodes, ranks, rank, log);
  }
  void* start(ncclComm* comm, const Event& event) const override {
    void* handle = nullptr;
    auto descriptor = described<typename Exported::Event>(event, comm);
    of->start(comm->profiler, &handle, &descriptor);
    return handle;
  }
  void stop(void* handle) const override { of->stop(handle); }
  void state(void* handle, int state, StateArguments arguments) const override {
    of->state(handle, state, &arguments);
  }
  void finalize(void* context) const override { of->finalize(context); }
};

// The newest struct that the library exports and that this NCCL knows.
Plugin* newest_of(void* library) {
  if (NCCL_VERSION_CODE >= 22900)
    if (void* found = dlsym(library, "ncclProfiler_v6")) return new Loaded<Plugin5>(found);
  if (NCCL_VERSION_CODE >= 22800)
    if (void* found = dlsym(library, "ncclProfiler_v5")) return new Loaded<Plugin5>(found);
  if (NCCL_VERSION_CODE >= 22700)
    if (void* found = dlsym(library, "ncclProfiler_v4")) return new Loaded<Plugin4>(found);
  if (NCCL_VERSION_CODE >= 22600)
    if (void* found = dlsym(library, "ncclProfiler_v3")) return new Loaded<Plugin3>(found);
  return nullptr;
}

const Plugin* load() {
  const char* name = getenv("NCCL_PROFILER_PLUGIN");
  if (!name || !strcasecmp(name, "none")) return nullptr;
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    library = dlopen(("libnccl-profiler-" + std::string(name) + ".so").c_str(), RTLD_NOW);
  return library ? newest_of(library) : nullptr;
}

const Plugin* plugin() {
  static const Plugin* const one = load();
  return one;
}
}  // namespace

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"AllReduce",     "Broadcast", "Reduce", "AllGather",
                                    "ReduceScatter", "Send",      "Recv"};
  return kNames[kind];
}

void open_profiler(ncclComm* comm) {
  const int nodes = linked_by_sockets() ? comm->ranks : 1;
  if (plugin() && plugin()->init(comm, nodes)) comm->events = 0, comm->profiler = nullptr;
}

void close_profiler(ncclComm* comm) {
  std::lock_guard<std::mutex> guard(comm->mutex);
  if (comm->profiler) plugin()->finalize(comm->profiler);
  comm->events = 0;
  comm->profiler = nullptr;
}

bool asks_for(const ncclComm* comm, int events) { return comm->events & events; }

void* start_event(ncclComm* comm, const Event& event) {
  return comm->events ? plugin()->start(comm, event) : nullptr;
}
void stop_event(void* handle) {
  if (handle) plugin()->stop(handle);
}
void event_state(void* handle, int state, StateArguments arguments) {
  if (handle) plugin()->state(handle, state, arguments);
}
