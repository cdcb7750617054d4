// A communicator as all its members see it: what connects each of them with each other one.
//
// A member's device posts messages, and consumes those of others. Where the members are connected by
// memory, posting delivers. Where they are connected by sockets, a thread of the posting process
// does (`proxy.h`), as NCCL's proxies do: no message is delivered of a process that has been stopped
// or has ended, although others wait for nothing else.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "links.h"

constexpr int kMostRanks = 64, kMostSplits = 1024;
constexpr uint64_t kCredits = 8;          // messages that nobody has consumed yet, of one edge
constexpr size_t kChunkBytes = 1 << 19;   // more than this takes several messages
constexpr size_t kPayloadBytes = 1 << 16;  // only so much is moved; more is only counted

enum Net { kRing, kTree, kDirect, kNets };

// From one member to another. New memory is all zeros.
struct Edge {
  std::atomic<uint64_t> posted, delivered, consumed;
  struct {
    uint64_t bytes;
    char data[kPayloadBytes];
  } messages[kCredits];

  // Whether there was a credit left. `data`: null if it is not to be moved.
  bool post(const char* data, size_t bytes);
  // Whether a message was there that has as many bytes, or more. A shorter one stays: who expects
  // more waits for the rest for ever, as NCCL's LL protocol does.
  bool consume(char* data, size_t bytes);

};

struct Wires {
  std::atomic<int> joined;
  Endpoint endpoint[kMostRanks];
  struct {
    std::atomic<int> here;
    int color, key;
  } split[kMostSplits][kMostRanks];
  Edge edges[kNets][kMostRanks][kMostRanks];

  Edge& edge(Net net, int from, int to) { return edges[net][from][to]; }
};

// Opens it under a name, or makes it; null if there is no memory for it.
Wires* open_wires(const std::string& name);
// Nothing is left behind under this name.
void forget_wires(const std::string& name);
