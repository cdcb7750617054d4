// A profiler plugin that prints each event to stderr, in the format of the recordings: version
// PROBE of the interface.
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <string>

#include "profiler_abi.h"

#if PROBE == 3
using Plugin = Plugin3;
#define EXPORTED ncclProfiler_v3
#elif PROBE == 4
using Plugin = Plugin4;
#define EXPORTED ncclProfiler_v4
#elif PROBE == 5
using Plugin = Plugin5;
#define EXPORTED ncclProfiler_v5
#else
using Plugin = Plugin5;
#define EXPORTED ncclProfiler_v6
#endif

namespace {
constexpr int kMask = kGroupEvent | kCollEvent | kP2pEvent | kKernelChEvent;
struct Comm {
  uint64_t hash;
  int ranks, rank;
};
struct Handle {
  int id;
  uint64_t type, sequence;
};
std::atomic<int> g_ids{0};

void open(void** context, int* mask, uint64_t hash, int nodes, int ranks, int rank) {
  *mask = kMask;
  *context = new Comm{hash, ranks, rank};
  if (PROBE == 3) return;  // it is told the communicator with each event
  fprintf(stderr, "init comm=%" PRIx64 " name= nodes=%d ranks=%d rank=%d\n", hash, nodes, ranks,
          rank);
}
#if PROBE == 3
int init(void** context, int* mask) {
  open(context, mask, 0, 0, 0, 0);
  return 0;
}
#elif PROBE == 4
int init(void** context, int* mask, const char*, uint64_t hash, int nodes, int ranks, int rank,
         Logger) {
  open(context, mask, hash, nodes, ranks, rank);
  return 0;
}
#else
int init(void** context, uint64_t hash, int* mask, const char*, int nodes, int ranks, int rank,
         Logger) {
  open(context, mask, hash, nodes, ranks, rank);
  return 0;
}
#endif

int start(void* context, void** handle, Plugin::Event* event) {
  const Comm& comm = *static_cast<Comm*>(context);
  auto* made = new Handle{++g_ids, event->type, 0};
  *handle = made;
  switch (event->type) {
    case kCollEvent: {
      auto& of = event->coll;
      made->sequence = of.sequence;
#if PROBE == 3
      const uint64_t hash = of.hash;
#else
      const uint64_t hash = comm.hash;
#endif
      fprintf(stderr,
              "coll+ id=%d comm=%" PRIx64 " r%d/%d seq=%d %s n=%zu %s nch=%d %s/%s\n", made->id,
              hash, event->rank, comm.ranks, int(of.sequence), of.function, of.count, of.datatype,
              of.channels, of.algorithm, of.protocol);
      break;
    }
    case kP2pEvent:
      fprintf(stderr, "p2p+ id=%d %s n=%zu peer=%d\n", made->id, event->p2p.function,
              event->p2p.count, event->p2p.peer);
      break;
    case kKernelChEvent:
      fprintf(stderr, "kch+ id=%d of=%d ch=%d\n", made->id,
              static_cast<Handle*>(event->parent)->id, event->kernel.channel);
      break;
    default:
      fprintf(stderr, "ev%d+ id=%d of=0\n", int(event->type), made->id);
  }
  return 0;
}

const char* name(const Handle& handle) {
  if (handle.type == kCollEvent) return "coll";
  if (handle.type == kP2pEvent) return "p2p";
  return handle.type == kKernelChEvent ? "kch" : "ev";
}
int stop(void* handle) {
  const Handle& of = *static_cast<Handle*>(handle);
  fprintf(stderr, "%s- id=%d #%d\n", name(of), of.id, int(of.sequence));
  return 0;
}
int state(void* handle, int state, StateArguments*) {
  const Handle& of = *static_cast<Handle*>(handle);
  fprintf(stderr, "%s.%d id=%d\n", name(of), state, of.id);
  return 0;
}
int finalize(void* context) {
  fprintf(stderr, "fini comm=%" PRIx64 "\n", static_cast<Comm*>(context)->hash);
  return 0;
}
}  // namespace

extern "C" Plugin EXPORTED;
Plugin EXPORTED = {"probe", init, start, stop, state, finalize};
