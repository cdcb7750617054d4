// An operation of a member in progress. It begins when its stream has come to it, and is over for
// this member when it has posted and consumed all its messages: its peers may be ahead, or behind.
#pragma once
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nccl_api.h"
#include "routes.h"

struct Node;
struct Transfer;

struct ncclComm {
  std::string name;
  uint64_t hash;
  Wires* wires;
  int ranks, rank;
  int splits = 0;
  std::atomic<bool> aborted{false};
  std::atomic<ncclResult_t> error{ncclSuccess};  // the proxy stops at the first one
  std::atomic<int> unfinished{0};                // operations
  Links links;

  std::mutex mutex;
  std::list<std::shared_ptr<Transfer>> observed;  // by the proxy, until it has told their end
  uint64_t promised[2][kNets][kMostRanks] = {};   // messages from and to each other member
  void* profiler = nullptr;                       // the plugin's context
  int events = 0;                                 // those that the plugin asks for
  std::map<std::string, uint64_t> sequence;       // operations by function
  std::shared_ptr<Node> newest;                   // its kernels run one after the other
};

// What was asked of NCCL.
struct Call {
  ncclComm* comm;
  Kind kind;
  const void* from;
  void* to;
  size_t count;
  int type, reduction;
  int other;  // root or peer; -1: none

  size_t bytes() const;
  int channels() const { return bytes() > 4096 ? 2 : 1; }
  bool pair() const { return kind == kSend || kind == kRecv; }
  void* api_event = nullptr;
};

// When the device began and ended an operation, in its own nanoseconds; 0: it has not.
struct Times {
  std::atomic<uint64_t> began{0}, ended{0};
};

struct Transfer {
  explicit Transfer(const Call& call);

  const Call call;
  const Route way;
  Times times;
  std::shared_ptr<Times> first;  // in a graph: of its first launch
  bool stale = false;            // a later one: NCCL tells the times of the first

  void begin();
  bool advance();  // true: over
  size_t messages(const Lane& lane) const { return lane.size() * rounds_; }

  struct Told;  // to the profiler
  std::shared_ptr<Told> told;

  // What each lane is at; null: it is at its end.
  const Step* at(size_t lane) const;

 private:
  bool step(size_t lane);
  void finish();
  char* piece(int number) { return work_.data() + number * piece_bytes_; }

  size_t piece_bytes_, rounds_;
  std::vector<std::atomic<size_t>> at_;  // by lane
  std::vector<char> work_;               // empty: too much to be moved
};

uint64_t device_ns();

// Says what is missing here, and that it is.
ncclResult_t not_played(const char* what);
