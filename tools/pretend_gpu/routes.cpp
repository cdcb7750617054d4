#include "routes.h"

namespace {
constexpr size_t kTreeBytes = 4096;  // 1,024 floats go through a ring, one float through the tree

int around(int rank, int ranks) { return (rank % ranks + ranks) % ranks; }

// Each member passes on the piece that it has got before. It begins with `first`.
void pass_round(Lane& lane, int ranks, int rank, int first, bool combine) {
  for (int k = 0; k < ranks - 1; k++) {
    const int next = around(rank + 1, ranks), previous = around(rank - 1, ranks);
    lane.push_back({true, kRing, next, around(first - k, ranks)});
    lane.push_back({false, kRing, previous, around(first - k - 1, ranks), combine});
  }
}

// The members of a binary tree that are next to one: in it, ranks with the same number of zeros at
// the end of their binary number are on the same level, and 0 is above them all.
struct Neighbours {
  int up = -1;
  std::vector<int> down;
};
Neighbours in_tree(int ranks, int rank) {
  Neighbours found;
  int level = 1;
  while (rank ? !(rank & level) : level < ranks) level <<= 1;
  if (rank) {
    const int up = (rank ^ level) | (level << 1);
    found.up = up < ranks ? up : rank ^ level;
    if (level > 1) found.down.push_back(rank - level / 2);
  }
  for (int step = level / 2; step; step /= 2) {
    if (rank + step >= ranks) continue;
    found.down.push_back(rank + step);
    break;
  }
  return found;
}

Lane through_tree(int ranks, int rank) {
  Lane lane;
  const Neighbours near = in_tree(ranks, rank);
  for (int child : near.down) lane.push_back({false, kTree, child, 0, true});
  if (near.up >= 0) {
    lane.push_back({true, kTree, near.up, 0});
    lane.push_back({false, kTree, near.up, 0});
  }
  for (int child : near.down) lane.push_back({true, kTree, child, 0});
  return lane;
}

// From `first` on round the ring to the one before it.
Lane along_chain(int ranks, int rank, int first, bool combine) {
  Lane lane;
  const int next = around(rank + 1, ranks);
  if (rank != first) lane.push_back({false, kRing, around(rank - 1, ranks), 0, combine});
  if (next != first) lane.push_back({true, kRing, next, 0});
  return lane;
}
}  // namespace

Route route(Kind kind, int ranks, int rank, int other, size_t bytes) {
  Route made;
  Lane lane;
  switch (kind) {
    case kAllReduce:
      made.tree = ranks > 2 && bytes < kTreeBytes;
      if (made.tree) {
        lane = through_tree(ranks, rank);
      } else {
        made.pieces = ranks;
        pass_round(lane, ranks, rank, rank, true);
        pass_round(lane, ranks, rank, rank + 1, false);
      }
      break;
    case kReduceScatter:
      made.pieces = ranks;
      pass_round(lane, ranks, rank, rank - 1, true);
      break;
    case kAllGather:
      made.pieces = ranks;
      pass_round(lane, ranks, rank, rank, false);
      break;
    case kBroadcast:
      lane = along_chain(ranks, rank, other, false);
      break;
    case kReduce:
      lane = along_chain(ranks, rank, around(other + 1, ranks), true);
      break;
    case kSend:
    case kRecv:
      lane.push_back({kind == kSend, kDirect, other, 0});
      break;
  }
  made.lanes.push_back(lane);
  return made;
}
