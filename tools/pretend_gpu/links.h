// What a member of a communicator notices of another one's end.
#pragma once
#include <atomic>
#include <string>
#include <vector>

// Whether members are connected by sockets (PRETEND_LINKS=sockets), as hosts are: these close when
// a process ends. Nothing is noticed through memory.
bool linked_by_sockets();

// Where a member can be reached, in memory that all members share. New memory is all zeros.
struct Endpoint {
  std::atomic<int> pid, host, port;
  std::atomic<bool> closed;

  void open();  // by the member itself
  std::string name() const;
};

// The connections of one member with the others.
class Links {
 public:
  // Whether a member has closed its end, or its process has ended.
  bool lost(const Endpoint& peer, size_t place);

 private:
  std::vector<int> processes_;  // a descriptor of each; -1: not looked at yet
};

// What NCCL says of a failure: kept for ncclGetLastError, and printed if NCCL_DEBUG asks for it.
void warn(const char* where, const std::string& words);
const char* last_warning();
