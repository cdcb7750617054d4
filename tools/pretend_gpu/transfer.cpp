#include "transfer.h"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "values.h"

uint64_t device_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return uint64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

size_t Call::bytes() const { return count * width(type); }

Transfer::Transfer(const Call& call)
    : call(call),
      way(route(call.kind, call.comm->ranks, call.comm->rank, call.other, call.bytes())),
      at_(way.lanes.size()) {
  size_t values = call.count;
  if (call.kind == kAllReduce) values = (values + way.pieces - 1) / way.pieces;
  piece_bytes_ = values * width(call.type);
  rounds_ = (piece_bytes_ + kChunkBytes - 1) / kChunkBytes;
  if (piece_bytes_ <= kPayloadBytes) work_.resize(way.pieces * piece_bytes_);
}

void Transfer::begin() {
  times.began = device_ns();
  const int ranks = call.comm->ranks, rank = call.comm->rank;
  if (work_.empty() || !call.from) return;
  size_t bytes = call.bytes();
  char* to = work_.data();
  if (call.kind == kBroadcast && rank != call.other) return;
  if (call.kind == kAllGather) to = piece(rank);
  if (call.kind == kReduceScatter) bytes *= ranks;
  memcpy(to, call.from, bytes);
}

bool Transfer::advance() {
  if (times.ended || call.comm->aborted) return true;
  for (size_t lane = 0; lane < way.lanes.size(); lane++)
    while (at(lane) && step(lane)) at_[lane]++;
  for (size_t lane = 0; lane < way.lanes.size(); lane++)
    if (at(lane)) return false;
  finish();
  times.ended = device_ns();
  return true;
}

const Step* Transfer::at(size_t lane) const {
  const Lane& steps = way.lanes[lane];
  return at_[lane] < messages(steps) ? &steps[at_[lane] % steps.size()] : nullptr;
}

bool Transfer::step(size_t lane) {
  ncclComm* comm = call.comm;
  const Step& now = *at(lane);
  const size_t round = at_[lane] / way.lanes[lane].size();
  const size_t bytes = std::min(kChunkBytes, piece_bytes_ - round * kChunkBytes);
  char* data = work_.empty() ? nullptr : piece(now.piece);
  if (now.post) return comm->wires->edge(now.net, comm->rank, now.peer).post(data, bytes);
  Edge& edge = comm->wires->edge(now.net, now.peer, comm->rank);
  if (!now.combine || !data) return edge.consume(data, bytes);
  std::vector<char> got(bytes);
  if (!edge.consume(got.data(), bytes)) return false;
  combine(call.type, call.reduction, data, got.data(), bytes / width(call.type));
  return true;
}

void Transfer::finish() {
  const int ranks = call.comm->ranks, rank = call.comm->rank;
  if (work_.empty() || !call.to) return;
  if (call.kind == kReduce && rank != call.other) return;
  const char* from = work_.data();
  size_t bytes = call.bytes();
  if (call.kind == kReduceScatter) from = piece(rank);
  if (call.kind == kAllGather) bytes *= ranks;
  memcpy(call.to, from, bytes);
  if (call.reduction == ncclAvg) divide(call.type, static_cast<char*>(call.to), call.count, ranks);
}
