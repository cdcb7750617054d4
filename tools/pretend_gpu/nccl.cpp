// A stand-in for NCCL between the processes of one machine: its communicators.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "profiler.h"
#include "proxy.h"

#define API extern "C" ncclResult_t

namespace {
// Whether a member has gone before all have come.
bool could_not_connect(ncclComm& comm) {
  for (int r = 0; r < comm.ranks; r++) {
    const Endpoint& end = comm.wires->endpoint[r];
    if (r == comm.rank || !comm.links.lost(end, r)) continue;
    warn("misc/socket.cc:578", "socketPollConnect: connect to " + end.name() +
                                   " returned Connection refused, exceeded error retry count "
                                   "after 35 attempts");
    return true;
  }
  return false;
}

ncclResult_t join(const std::string& name, int ranks, int rank, ncclComm** made) {
  *made = nullptr;
  if (ranks > kMostRanks) return not_played("a communicator of more than 64 ranks");
  Wires* wires = open_wires(name);
  if (!wires) return ncclSystemError;
  auto* comm = new ncclComm();
  comm->name = name;
  comm->hash = std::hash<std::string>()(name);
  comm->wires = wires;
  comm->ranks = ranks;
  comm->rank = rank;
  wires->endpoint[rank].open();
  wires->joined++;
  while (wires->joined < ranks) {
    if (linked_by_sockets() && could_not_connect(*comm)) {
      forget_wires(name);
      return ncclRemoteError;
    }
    usleep(500);
  }
  if (rank == 0) forget_wires(name);  // everybody has it open, nothing is left behind
  open_profiler(comm);
  serve(comm);
  *made = comm;
  return ncclSuccess;
}

void close_links(ncclComm* comm) {
  close_profiler(comm);
  comm->wires->endpoint[comm->rank].closed = true;
}
}  // namespace

ncclResult_t not_played(const char* what) {
  fprintf(stderr, "pretended NCCL: %s is not played\n", what);
  return ncclInvalidUsage;
}

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
  return join("/pretend_nccl_" + std::string(id.internal, 32), ranks, rank, comm);
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
  *made = nullptr;
  if (number >= kMostSplits) return not_played("the 1025th split of a communicator");
  auto& places = comm->wires->split[number];
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
  if (color < 0) return ncclSuccess;
  std::sort(members.begin(), members.end());
  int mine = 0;
  while (members[mine].second != comm->rank) mine++;
  return join(comm->name + "_" + std::to_string(number) + "_" + std::to_string(color),
              int(members.size()), mine, made);
}
// Memory is shared with nobody here: torch 2.15's backend registers all that it allocates.
API ncclCommRegister(const ncclComm_t, void* memory, size_t, void** handle) {
  *handle = memory;
  return ncclSuccess;
}
API ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }
API ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  comm->aborted = true;
  close_links(comm);
  return ncclSuccess;
}
API ncclCommFinalize(ncclComm_t comm) {
  drain(comm);
  return ncclSuccess;
}
API ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  drain(comm);
  close_links(comm);
  return ncclSuccess;
}
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
API ncclCommCuDevice(const ncclComm_t, int* device) {
  return cudaGetDevice(device) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
