#include "proxy.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "engine.h"
#include "profiler.h"

namespace {
constexpr int kOfTasks = kGroupEvent | kCollEvent | kP2pEvent | kProxyOpEvent | kProxyStepEvent |
                         kKernelChEvent;
constexpr size_t kSimpleBytes = 1 << 18;  // from this size on not the LL protocol

// Neither these nor the communicators are ever freed: the thread outlives everything.
std::mutex& g_mutex = *new std::mutex();
std::vector<ncclComm*>& g_served = *new std::vector<ncclComm*>();

// The messages of an operation to or from one member.
struct Side {
  bool send;
  Net net;
  int peer;
  uint64_t before, count;  // messages of earlier operations, and its own
  uint64_t done = 0;
  void *operation = nullptr, *step = nullptr;
  int state = 0;
};
}  // namespace

struct Transfer::Told {
  void* task = nullptr;
  std::vector<void*> channels;  // since the device has begun
  bool begun = false, ended = false;
  std::vector<Side> sides;
};

namespace {
std::vector<Side> sides_of(const Transfer& transfer) {
  std::vector<Side> found;
  ncclComm* comm = transfer.call.comm;
  for (const Lane& lane : transfer.way.lanes) {
    for (const Step& step : lane) {
      auto same = [&](Side& s) {
        return s.send == step.post && s.net == step.net && s.peer == step.peer;
      };
      auto at = std::find_if(found.begin(), found.end(), same);
      if (at == found.end())
        at = found.insert(at, {step.post, step.net, step.peer,
                               comm->promised[step.post][step.net][step.peer], 0});
      at->count += transfer.messages(lane) / lane.size();
    }
  }
  for (Side& side : found) comm->promised[side.send][side.net][side.peer] += side.count;
  return found;
}

void fail(ncclComm* comm, const char* where, const std::string& words) {
  warn(where, words);
  comm->error = ncclRemoteError;
}

bool deliver(ncclComm* comm) {
  bool moved = false;
  for (int net = 0; net < kNets; net++) {
    for (int peer = 0; peer < comm->ranks && !comm->error; peer++) {
      Edge& edge = comm->wires->edge(Net(net), comm->rank, peer);
      if (edge.delivered >= edge.posted) continue;
      const Endpoint& end = comm->wires->endpoint[peer];
      if (peer != comm->rank && comm->links.lost(end, peer))
        fail(comm, "misc/socket.cc:57", "socketProgressOpt: Call to send to " + end.name() +
                                            " failed : Connection reset by peer");
      else
        edge.delivered = edge.posted.load();
      moved = true;
    }
  }
  return moved;
}

// Whether an operation waits for what a member that has gone will never send.
void notice_end(const Transfer& transfer) {
  ncclComm* comm = transfer.call.comm;
  for (size_t lane = 0; lane < transfer.way.lanes.size(); lane++) {
    const Step* step = transfer.at(lane);
    if (!step || step->post || step->peer == comm->rank) continue;
    const Endpoint& end = comm->wires->endpoint[step->peer];
    const Edge& edge = comm->wires->edge(step->net, step->peer, comm->rank);
    if (!comm->links.lost(end, step->peer) || edge.delivered > edge.consumed) continue;
    return fail(comm, "misc/socket.cc:64",
                "socketProgress: Connection closed by remote peer " + end.name());
  }
}

// One step of the messages to or from a member, as far as NCCL's own proxy tells it.
bool tell_step(const Transfer& transfer, Side& side) {
  ncclComm* comm = transfer.call.comm;
  if (side.done == side.count) return false;
  const Edge& edge = side.send ? comm->wires->edge(side.net, comm->rank, side.peer)
                               : comm->wires->edge(side.net, side.peer, comm->rank);
  if (!side.operation) {
    Event event{kProxyOpEvent, transfer.told->task};
    event.proxy_op = {getpid(), 0, side.peer, int(side.count), int(kChunkBytes), side.send};
    side.operation = start_event(comm, event);
    event_state(side.operation, kProxyOpInProgress);
  }
  const uint64_t number = side.before + side.done;
  const bool first = (side.send ? edge.posted : edge.delivered) > number;
  const bool second = (side.send ? edge.delivered : edge.consumed) > number;
  const int state = side.send ? (first ? kSendWait : kSendGpuWait)
                              : (first ? kRecvGpuWait : kRecvWait);
  bool moved = false;
  if (!side.step) {
    Event event{kProxyStepEvent, side.operation};
    event.step = int(side.done);
    side.step = start_event(comm, event);
    side.state = 0;
  }
  if (side.state != state) {
    event_state(side.step, state, {transfer.call.bytes()});
    side.state = state;
    moved = true;
  }
  if (second) {
    stop_event(side.step);
    side.step = nullptr;
    side.done++;
    moved = true;
  }
  if (side.done == side.count) stop_event(side.operation);
  return moved;
}

bool tell_kernel(Transfer& transfer) {
  ncclComm* comm = transfer.call.comm;
  Transfer::Told& told = *transfer.told;
  const Times& times = transfer.stale ? *transfer.first : transfer.times;
  bool moved = false;
  if (!told.begun && times.began) {
    told.begun = moved = true;
    for (int channel = 0; channel < transfer.call.channels(); channel++) {
      Event event{kKernelChEvent, told.task};
      event.channel = channel;
      event.gpu_ns = times.began;
      told.channels.push_back(asks_for(comm, kKernelChEvent) ? start_event(comm, event) : nullptr);
    }
  }
  if (told.begun && !told.ended && times.ended) {
    told.ended = moved = true;
    for (void* channel : told.channels) {
      event_state(channel, kKernelChStop, {times.ended});
      stop_event(channel);
    }
  }
  return moved;
}

bool tells_steps(const Transfer& transfer) {
  return linked_by_sockets() && asks_for(transfer.call.comm, kProxyOpEvent | kProxyStepEvent);
}

bool tell(Transfer& transfer) {
  bool moved = false;
  if (tells_steps(transfer))
    for (Side& side : transfer.told->sides)
      while (tell_step(transfer, side)) moved = true;
  return tell_kernel(transfer) || moved;
}

// A device may be through while its proxy still delivers what it has sent.
bool is_told(const Transfer& transfer) {
  if (!tells_steps(transfer)) return true;
  const auto& sides = transfer.told->sides;
  auto done = [](const Side& side) { return side.done == side.count; };
  return std::all_of(sides.begin(), sides.end(), done);
}

bool look_after(ncclComm* comm) {
  std::lock_guard<std::mutex> guard(comm->mutex);
  if (comm->error || comm->aborted) return false;
  bool moved = linked_by_sockets() && deliver(comm);
  for (auto at = comm->observed.begin(); at != comm->observed.end() && !comm->error;) {
    Transfer& transfer = **at;
    const bool ended = transfer.times.ended;  // before the last look at it
    if (tell(transfer)) moved = true;
    if (linked_by_sockets() && transfer.times.began && !ended) notice_end(transfer);
    const bool over = ended && is_told(transfer) && !comm->error;
    at = over ? comm->observed.erase(at) : std::next(at);
  }
  return moved;
}

void run() {
  for (int looks = 0;; looks++) {
    std::vector<ncclComm*> all;
    {
      std::lock_guard<std::mutex> guard(g_mutex);
      all = g_served;
    }
    for (ncclComm* comm : all)
      if (look_after(comm)) looks = 0;
    std::this_thread::sleep_for(2 * pause_after(looks));
  }
}

// The operations of one communicator.
void announce_to(ncclComm* comm, const Transfers& transfers) {
  std::lock_guard<std::mutex> guard(comm->mutex);
  void* group = asks_for(comm, kOfTasks) ? start_event(comm, {kGroupEvent}) : nullptr;
  for (auto& transfer : transfers) {
    const Call& call = transfer->call;
    transfer->told = std::make_shared<Transfer::Told>();
    transfer->told->sides = sides_of(*transfer);
    Event event{call.pair() ? kP2pEvent : kCollEvent, call.api_event, group, &call};
    event.sequence = call.pair() ? 0 : comm->sequence[name_of(call.kind)]++;
    event.algorithm = transfer->way.tree ? "TREE" : "RING";
    event.protocol = call.bytes() < kSimpleBytes ? "LL" : "SIMPLE";
    if (asks_for(comm, kOfTasks & ~kGroupEvent)) transfer->told->task = start_event(comm, event);
    comm->observed.push_back(transfer);
  }
  for (auto& transfer : transfers) stop_event(transfer->told->task);
  stop_event(group);
}
}  // namespace

void serve(ncclComm* comm) {
  std::lock_guard<std::mutex> guard(g_mutex);
  static const bool running = (std::thread(run).detach(), true);
  (void)running;
  g_served.push_back(comm);
}

void drain(ncclComm* comm) {
  for (int looks = 0; !comm->aborted && !comm->error; looks++) {
    bool busy = comm->unfinished;
    {
      std::lock_guard<std::mutex> guard(comm->mutex);
      busy |= !comm->observed.empty();
    }
    for (int net = 0; net < kNets; net++)
      for (int peer = 0; peer < comm->ranks; peer++) {
        const Edge& edge = comm->wires->edge(Net(net), comm->rank, peer);
        busy |= edge.delivered < edge.posted;
      }
    if (!busy) return;
    std::this_thread::sleep_for(pause_after(looks));
  }
}

bool is_announced(const ncclComm* comm) { return linked_by_sockets() || comm->events; }

void announce(const Transfers& transfers) {
  std::map<ncclComm*, Transfers> of_each;
  for (auto& transfer : transfers)
    if (is_announced(transfer->call.comm)) of_each[transfer->call.comm].push_back(transfer);
  for (auto& [comm, some] : of_each) announce_to(comm, some);
}
