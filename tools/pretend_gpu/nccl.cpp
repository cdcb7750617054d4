// A stand-in for NCCL between the processes of one machine, over shared memory.
//
// An operation begins when its stream has come to it and is over when all members of its
// communicator have begun the same one: kind, number of elements, type, reduction and root. Where
// they differ it never ends, as on a device. A send ends with its receive. Payloads that fit into a
// slot are moved, so that objects and counts arrive; larger ones are not. If members are linked by
// sockets, an operation in progress notices when a member that it is connected with has gone.
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "links.h"
#include "runtime.h"

namespace {
constexpr int kRanks = 64, kSignatures = 1024, kSplits = 64;
constexpr int kSlots = 8;  // members are never further apart than two operations of a communicator
constexpr size_t kPayload = 1 << 16, kMail = 1 << 12;

enum Kind { kAllReduce = 1, kBroadcast, kReduce, kAllGather, kReduceScatter, kAllToAll, kPair };

// A communicator as all its members see it. A new file is all zeros.
struct Shared {
  std::atomic<int> joined;
  Endpoint endpoint[kRanks];
  std::atomic<uint64_t> begun[kRanks];
  std::atomic<uint64_t> signature[kRanks][kSignatures];
  std::atomic<uint64_t> sends[kRanks][kRanks], receives[kRanks][kRanks];
  struct {
    std::atomic<int> here;
    int color, key;
  } split[kSplits][kRanks];
  char payload[kRanks][kSlots][kPayload];
  char mail[kRanks][kRanks][kSlots][kMail];
};
}  // namespace

struct ncclComm {
  std::string name;
  Shared* shared;
  int ranks, rank;
  int splits = 0;
  uint64_t issued = 0, sends[kRanks] = {}, receives[kRanks] = {};
  std::atomic<bool> aborted{false};
  std::atomic<ncclResult_t> error{ncclSuccess};
  Links links;
};

namespace {
// One call of NCCL's; several of a group share a node.
struct Call {
  ncclComm* comm;
  Kind kind;
  const void* from;
  void* to;
  size_t count;
  int type;
  int reduction;
  int other;  // root or peer; -1: none
  bool send;
  uint64_t number;  // of the communicator, or of the pair

  uint64_t signature() const {
    uint64_t sum = 0;
    for (uint64_t part : {uint64_t(kind), uint64_t(count), uint64_t(type), uint64_t(reduction),
                          uint64_t(other + 1)})
      sum = sum * 1000003 + part + 1;
    return sum;
  }
  char* slot(int rank) const { return comm->shared->payload[rank][number % kSlots]; }
  char* mail(int sender, int receiver) const {
    return comm->shared->mail[sender][receiver][number % kSlots];
  }
};

thread_local int g_depth = 0;
thread_local std::vector<std::pair<cudaStream_t, Call>> g_group;

size_t width(int type) {
  switch (type) {
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      return 1;
  }
}

template <class T>
void reduce(const Call& call, size_t first) {
  T* out = static_cast<T*>(call.to);
  const int ranks = call.comm->ranks;
  for (int r = 0; r < ranks; r++) {
    const T* in = reinterpret_cast<const T*>(call.slot(r)) + first;
    for (size_t i = 0; i < call.count; i++) {
      if (r == 0)
        out[i] = in[i];
      else if (call.reduction == ncclMax)
        out[i] = std::max(out[i], in[i]);
      else if (call.reduction == ncclMin)
        out[i] = std::min(out[i], in[i]);
      else
        out[i] = call.reduction == ncclProd ? T(out[i] * in[i]) : T(out[i] + in[i]);
    }
  }
  if (call.reduction == ncclAvg)
    for (size_t i = 0; i < call.count; i++) out[i] = T(out[i] / ranks);
}

void reduce_any(const Call& call, size_t first) {
  switch (call.type) {
    case ncclInt8:
      return reduce<int8_t>(call, first);
    case ncclUint8:
      return reduce<uint8_t>(call, first);
    case ncclInt32:
      return reduce<int32_t>(call, first);
    case ncclInt64:
      return reduce<int64_t>(call, first);
    case ncclFloat32:
      return reduce<float>(call, first);
    case ncclFloat64:
      return reduce<double>(call, first);
  }  // halves stay what they are: nothing computes with them
}

size_t bytes_given(const Call& call) {
  const bool for_each = call.kind == kReduceScatter || call.kind == kAllToAll;
  return call.count * width(call.type) * (for_each ? call.comm->ranks : 1);
}

void begin(const Call& call) {
  ncclComm* comm = call.comm;
  const size_t bytes = bytes_given(call);
  if (call.kind == kPair) {
    if (call.send && bytes <= kMail) memcpy(call.mail(comm->rank, call.other), call.from, bytes);
    auto& table = call.send ? comm->shared->sends[comm->rank][call.other]
                            : comm->shared->receives[call.other][comm->rank];
    table++;
    return;
  }
  if (call.from && bytes <= kPayload) memcpy(call.slot(comm->rank), call.from, bytes);
  comm->shared->signature[comm->rank][call.number % kSignatures] = call.signature();
  comm->shared->begun[comm->rank] = call.number;
}

bool over(const Call& call) {
  const ncclComm* comm = call.comm;
  const Shared* shared = comm->shared;
  if (comm->aborted) return true;
  if (call.kind == kPair)
    return (call.send ? shared->receives[comm->rank][call.other]
                      : shared->sends[call.other][comm->rank]) >= call.number;
  for (int r = 0; r < comm->ranks; r++)
    if (shared->begun[r] < call.number) return false;
  for (int r = 0; r < comm->ranks; r++)
    if (shared->signature[r][call.number % kSignatures] != call.signature()) return false;
  return true;
}

void finish(const Call& call) {
  const ncclComm* comm = call.comm;
  const size_t bytes = call.count * width(call.type);
  char* to = static_cast<char*>(call.to);
  if (comm->aborted) return;
  if (call.kind == kPair) {
    if (!call.send && bytes <= kMail) memcpy(to, call.mail(call.other, comm->rank), bytes);
    return;
  }
  if (bytes_given(call) > kPayload) return;
  switch (call.kind) {
    case kAllReduce:
      return reduce_any(call, 0);
    case kReduce:
      return comm->rank == call.other ? reduce_any(call, 0) : void();
    case kReduceScatter:
      return reduce_any(call, comm->rank * call.count);
    case kBroadcast:
      memcpy(to, call.slot(call.other), bytes);
      return;
    case kAllGather:
      for (int r = 0; r < comm->ranks; r++) memcpy(to + r * bytes, call.slot(r), bytes);
      return;
    case kAllToAll:
      for (int r = 0; r < comm->ranks; r++)
        memcpy(to + r * bytes, call.slot(r) + comm->rank * bytes, bytes);
      return;
    case kPair:
      return;
  }
}

// The members whose connections a call uses, and whether it receives from them. Collectives go
// round a ring.
std::vector<std::pair<int, bool>> connected(const Call& call) {
  const int ranks = call.comm->ranks, rank = call.comm->rank;
  std::vector<std::pair<int, bool>> found;
  if (call.kind == kPair) {
    found.push_back({call.other, !call.send});
  } else if (call.kind == kAllToAll) {
    for (int r = 0; r < ranks; r++) found.push_back({r, true});
  } else {
    found.push_back({(rank + ranks - 1) % ranks, true});
    found.push_back({(rank + 1) % ranks, false});
  }
  return found;
}

// Note for the watchdog that a call in progress will never end, if that is so.
void notice_ends(const Call& call) {
  ncclComm* comm = call.comm;
  if (!linked_by_sockets() || comm->error || comm->aborted) return;
  for (auto [peer, receives] : connected(call)) {
    const Endpoint& end = comm->shared->endpoint[peer];
    if (peer == comm->rank || !comm->links.lost(end, peer) || over(call)) continue;
    if (receives)
      warn("misc/socket.cc:64", "socketProgress: Connection closed by remote peer " + end.name());
    else
      warn("misc/socket.cc:57", "socketProgressOpt: Call to send to " + end.name() +
                                    " failed : Connection reset by peer");
    comm->error = ncclRemoteError;
    return;
  }
}

void submit(cudaStream_t stream, const std::vector<Call>& calls) {
  auto node = std::make_shared<Node>();
  node->begin = [calls] { std::for_each(calls.begin(), calls.end(), begin); };
  node->over = [calls] {
    if (!std::all_of(calls.begin(), calls.end(), over)) {
      std::for_each(calls.begin(), calls.end(), notice_ends);
      return false;
    }
    std::for_each(calls.begin(), calls.end(), finish);
    return true;
  };
  engine().enqueue(stream_of(stream), node);
}

ncclResult_t add(cudaStream_t stream, const Call& call) {
  if (call.comm->error) return call.comm->error;
  g_group.push_back({stream, call});
  if (g_depth) return ncclSuccess;
  ncclGroupStart();
  return ncclGroupEnd();
}

ncclResult_t collective(Kind kind, const void* from, void* to, size_t count, int type,
                        int reduction, int root, ncclComm* comm, cudaStream_t stream) {
  return add(stream, {comm, kind, from, to, count, type, reduction, root, false, ++comm->issued});
}

// Whether a member has gone before all have come.
bool could_not_connect(ncclComm& comm) {
  for (int r = 0; r < comm.ranks; r++) {
    const Endpoint& end = comm.shared->endpoint[r];
    if (r == comm.rank || !comm.links.lost(end, r)) continue;
    warn("misc/socket.cc:578", "socketPollConnect: connect to " + end.name() +
                                   " returned Connection refused, exceeded error retry count "
                                   "after 35 attempts");
    return true;
  }
  return false;
}

ncclComm* join(const std::string& name, int ranks, int rank) {
  int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared))) return nullptr;
  void* at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) return nullptr;
  auto* comm = new ncclComm();
  comm->name = name;
  comm->shared = static_cast<Shared*>(at);
  comm->ranks = ranks;
  comm->rank = rank;
  comm->shared->endpoint[rank].open();
  comm->shared->joined++;
  while (comm->shared->joined < ranks) {
    if (linked_by_sockets() && could_not_connect(*comm)) {
      shm_unlink(name.c_str());
      return nullptr;
    }
    usleep(500);
  }
  if (rank == 0) shm_unlink(name.c_str());  // everybody has it open, nothing is left behind
  return comm;
}

// Why no communicator could be made.
ncclResult_t failure() { return *last_warning() ? ncclRemoteError : ncclSystemError; }

void close_links(ncclComm* comm) { comm->shared->endpoint[comm->rank].closed = true; }
}  // namespace

#undef API
#define API extern "C" ncclResult_t

API ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
extern "C" const char* ncclGetErrorString(ncclResult_t error) {
  if (error == ncclRemoteError) return "remote process exited or there was a network error";
  return error == ncclSuccess ? "no error" : "an error of the pretended NCCL";
}
extern "C" const char* ncclGetLastError(ncclComm_t) { return last_warning(); }

API ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, 0, sizeof *id);
  unsigned char bytes[16];
  if (getentropy(bytes, sizeof bytes)) return ncclSystemError;
  for (int i = 0; i < 16; i++) snprintf(id->internal + 2 * i, 3, "%02x", bytes[i]);
  return ncclSuccess;
}
API ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t*) {
  if (ranks > kRanks) return ncclInvalidArgument;
  *comm = join("/pretend_nccl_" + std::string(id.internal, 32), ranks, rank);
  return *comm ? ncclSuccess : failure();
}
API ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}
API ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int, ncclUniqueId* ids,
                             ncclConfig_t* config) {
  return ncclCommInitRankConfig(comm, ranks, ids[0], rank, config);
}
API ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t*) {
  const int number = comm->splits++;
  auto& places = comm->shared->split[number % kSplits];
  places[comm->rank].color = color;
  places[comm->rank].key = key;
  places[comm->rank].here = 1;
  std::vector<std::pair<int, int>> members;
  for (int r = 0; r < comm->ranks; r++) {
    while (!places[r].here) {
      if (comm->aborted) return ncclSystemError;
      usleep(300);
    }
    if (places[r].color == color) members.push_back({places[r].key, r});
  }
  *made = nullptr;
  if (color < 0) return ncclSuccess;
  std::sort(members.begin(), members.end());
  int mine = 0;
  while (members[mine].second != comm->rank) mine++;
  *made = join(comm->name + "_" + std::to_string(number) + "_" + std::to_string(color),
               int(members.size()), mine);
  return *made ? ncclSuccess : failure();
}
API ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  comm->aborted = true;
  close_links(comm);
  return ncclSuccess;
}
API ncclCommDestroy(ncclComm_t comm) {
  if (comm) close_links(comm);
  return ncclSuccess;
}
API ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
API ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->error;
  return ncclSuccess;
}
API ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->ranks;
  return ncclSuccess;
}
API ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
API ncclMemAlloc(void** memory, size_t bytes) {
  *memory = calloc(1, bytes);
  return ncclSuccess;
}
API ncclMemFree(void* memory) {
  free(memory);
  return ncclSuccess;
}
API ncclRedOpCreatePreMulSum(ncclRedOp_t* made, void*, ncclDataType_t, ncclScalarResidence_t,
                             ncclComm_t) {
  *made = ncclSum;
  return ncclSuccess;
}

API ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                  ncclComm_t comm, cudaStream_t stream) {
  return collective(kAllReduce, from, to, count, type, op, -1, comm, stream);
}
API ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
               int root, ncclComm_t comm, cudaStream_t stream) {
  return collective(kReduce, from, to, count, type, op, root, comm, stream);
}
API ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                      ncclComm_t comm, cudaStream_t stream) {
  return collective(kReduceScatter, from, to, count, type, op, -1, comm, stream);
}
API ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                  ncclComm_t comm, cudaStream_t stream) {
  return collective(kBroadcast, from, to, count, type, 0, root, comm, stream);
}
API ncclBcast(void* memory, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
              cudaStream_t stream) {
  return collective(kBroadcast, memory, memory, count, type, 0, root, comm, stream);
}
API ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                  cudaStream_t stream) {
  return collective(kAllGather, from, to, count, type, 0, -1, comm, stream);
}
API ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                 cudaStream_t stream) {
  return collective(kAllToAll, from, to, count, type, 0, -1, comm, stream);
}
API ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
             cudaStream_t stream) {
  const uint64_t number = ++comm->sends[peer];
  return add(stream, {comm, kPair, from, nullptr, count, type, 0, peer, true, number});
}
API ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
             cudaStream_t stream) {
  const uint64_t number = ++comm->receives[peer];
  return add(stream, {comm, kPair, nullptr, to, count, type, 0, peer, false, number});
}
API ncclGroupStart() {
  g_depth++;
  return ncclSuccess;
}
API ncclGroupEnd() {
  if (--g_depth) return ncclSuccess;
  std::map<cudaStream_t, std::vector<Call>> of_stream;
  for (auto& [stream, call] : g_group) of_stream[stream].push_back(call);
  g_group.clear();
  for (auto& [stream, calls] : of_stream) submit(stream, calls);
  return ncclSuccess;
}
