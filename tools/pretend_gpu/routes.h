// Which messages a member of a communicator exchanges for an operation, and in which order.
#pragma once
#include <vector>

#include "wires.h"

enum Kind { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter, kSend, kRecv };

// One message. The data of an operation is in pieces of equal size.
struct Step {
  bool post;
  Net net;
  int peer, piece;
  bool combine = false;  // with the piece that is there, instead of replacing it
};

// Steps follow each other; lanes do not wait for each other.
using Lane = std::vector<Step>;

struct Route {
  std::vector<Lane> lanes;
  int pieces = 1;
  bool tree = false;
};

// `other`: the root or the peer. `bytes`: what one member gives, or gets from one other. Small
// all-reduces of more than two members go through a tree, all others round a ring: scattered and
// gathered in turn. A broadcast goes along a chain from its root, a reduction along one to its root.
Route route(Kind kind, int ranks, int rank, int other, size_t bytes);
