// The operations of the pretended NCCL: what a group of calls launches.
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>

#include "engine.h"
#include "profiler.h"
#include "proxy.h"
#include "runtime.h"
#include "values.h"

#undef API
#define API extern "C" ncclResult_t

API ncclGroupStart();
API ncclGroupEnd();

namespace {
thread_local int g_depth = 0;
thread_local std::vector<std::pair<cudaStream_t, Call>> g_group;
thread_local void* g_group_event = nullptr;

// What one launch of a captured group shares with the next ones.
struct Captured {
  std::vector<std::shared_ptr<Times>> first;  // of each call
  Transfers launched;                         // by the launch under way
};

Transfers transfers_of(const std::vector<Call>& calls) {
  Transfers made;
  for (auto& call : calls) {
    made.push_back(std::make_shared<Transfer>(call));
    call.comm->unfinished++;
  }
  return made;
}

// Operations of one launch take the same ways: on each, one comes after the other.
bool advance(const Transfers& transfers) {
  bool over = true;
  std::set<std::tuple<ncclComm*, int, int>> taken;
  for (auto& transfer : transfers) {
    const Call& call = transfer->call;
    const auto way = std::make_tuple(call.comm, call.pair() ? call.kind : -1,
                                     call.pair() ? call.other : -1);
    if (taken.count(way) || !transfer->advance()) {
      taken.insert(way);
      over = false;
    }
  }
  if (!over) return false;
  for (auto& transfer : transfers) {
    transfer->call.comm->unfinished--;
    if (!transfer->first || transfer->stale) continue;
    transfer->first->began = transfer->times.began.load();
    transfer->first->ended = transfer->times.ended.load();
  }
  return true;
}

NodePtr kernel(const Transfers& transfers) {
  auto node = std::make_shared<Node>();
  node->begin = [=] {
    for (auto& transfer : transfers) transfer->begin();
  };
  node->over = [=] { return advance(transfers); };
  for (auto& transfer : transfers) {
    ncclComm* comm = transfer->call.comm;
    std::lock_guard<std::mutex> guard(comm->mutex);
    if (comm->newest && comm->newest != node && !comm->newest->done)
      node->after.push_back(comm->newest);
    comm->newest = node;
  }
  return node;
}

void launch(Stream* stream, const std::vector<Call>& calls) {
  if (!stream->capture) {
    const Transfers transfers = transfers_of(calls);
    announce(transfers);
    engine().submit(stream, [=] { return kernel(transfers); });
    return;
  }
  auto captured = std::make_shared<Captured>();
  for (size_t i = 0; i < calls.size(); i++) captured->first.push_back(std::make_shared<Times>());
  const auto renew = [=] {
    captured->launched = transfers_of(calls);
    for (size_t i = 0; i < calls.size(); i++) {
      captured->launched[i]->first = captured->first[i];
      captured->launched[i]->stale = captured->first[i]->ended;
    }
    return captured->launched;
  };
  engine().submit(stream, [=] {  // for the proxies; nothing to do if all is memory
    const Transfers transfers = renew();
    auto node = std::make_shared<Node>();
    node->host = is_announced(calls[0].comm);
    if (node->host) node->begin = [=] { announce(transfers); };
    return node;
  });
  engine().submit(stream, [=] { return kernel(captured->launched); });
}

ncclResult_t add(cudaStream_t stream, Call call) {
  ncclComm* comm = call.comm;
  if (comm->error) return comm->error;
  ncclGroupStart();
  Event event{call.pair() ? kP2pApiEvent : kCollApiEvent};
  event.captured = bool(stream_of(stream)->capture);
  event.stream = stream;
  event.call = &call;
  if (!g_group_event && asks_for(comm, kGroupApiEvent)) {
    Event group{kGroupApiEvent};
    group.captured = event.captured;
    g_group_event = start_event(comm, group);
  }
  event.parent = g_group_event;
  if (asks_for(comm, event.type)) call.api_event = start_event(comm, event);
  stop_event(call.api_event);
  if (call.count) g_group.push_back({stream, call});
  return ncclGroupEnd();
}
}  // namespace

API ncclGroupStart() {
  g_depth++;
  return ncclSuccess;
}
API ncclGroupEnd() {
  if (--g_depth) return ncclSuccess;
  std::map<cudaStream_t, std::vector<Call>> of_stream;
  for (auto& [stream, call] : g_group) of_stream[stream].push_back(call);
  g_group.clear();
  for (auto& [stream, calls] : of_stream) {
    void* event = nullptr;
    if (asks_for(calls[0].comm, kKernelLaunchEvent)) {
      Event kernel{kKernelLaunchEvent, g_group_event};
      kernel.stream = stream;
      event = start_event(calls[0].comm, kernel);
    }
    launch(stream_of(stream), calls);
    stop_event(event);
  }
  stop_event(g_group_event);
  g_group_event = nullptr;
  return ncclSuccess;
}

API ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                  ncclComm_t comm, cudaStream_t stream) {
  if (op > ncclAvg) return not_played("a reduction of one's own");
  return add(stream, {comm, kAllReduce, from, to, count, type, op, -1});
}
API ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
               int root, ncclComm_t comm, cudaStream_t stream) {
  if (op > ncclAvg) return not_played("a reduction of one's own");
  return add(stream, {comm, kReduce, from, to, count, type, op, root});
}
API ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                      ncclComm_t comm, cudaStream_t stream) {
  if (op > ncclAvg) return not_played("a reduction of one's own");
  return add(stream, {comm, kReduceScatter, from, to, count, type, op, -1});
}
API ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                  ncclComm_t comm, cudaStream_t stream) {
  return add(stream, {comm, kBroadcast, from, to, count, type, 0, root});
}
API ncclBcast(void* memory, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
              cudaStream_t stream) {
  return ncclBroadcast(memory, memory, count, type, root, comm, stream);
}
API ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                  cudaStream_t stream) {
  return add(stream, {comm, kAllGather, from, to, count, type, 0, -1});
}
API ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
             cudaStream_t stream) {
  return add(stream, {comm, kSend, from, nullptr, count, type, 0, peer});
}
API ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
             cudaStream_t stream) {
  return add(stream, {comm, kRecv, nullptr, to, count, type, 0, peer});
}
// As NCCL does it: of sends and receives.
API ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                 cudaStream_t stream) {
  const size_t bytes = count * width(type);
  ncclGroupStart();
  for (int peer = 0; peer < comm->ranks; peer++) {
    ncclSend(static_cast<const char*>(from) + peer * bytes, count, type, peer, comm, stream);
    ncclRecv(static_cast<char*>(to) + peer * bytes, count, type, peer, comm, stream);
  }
  return ncclGroupEnd();
}
API ncclMemAlloc(void** memory, size_t bytes) {
  *memory = calloc(1, bytes);
  return *memory ? ncclSuccess : ncclUnhandledCudaError;
}
API ncclMemFree(void* memory) {
  free(memory);
  return ncclSuccess;
}
