// Streams and their queued work. One thread per process executes it, like a device: it needs no
// GIL, and stops when the process is stopped.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

struct Node;
using NodePtr = std::shared_ptr<Node>;

// One thing in a stream.
struct Node {
  std::vector<NodePtr> after;   // it begins when these are done
  std::function<void()> begin;  // called once
  std::function<bool()> over;   // whether it is done; none: as soon as it has begun
  bool begun = false;
  std::atomic<bool> done{false};
  double done_s = 0;
};

struct Stream {
  NodePtr newest;
  int priority = 0;
  bool capturing = false;
};

class Engine {
 public:
  std::mutex mutex;

  void enqueue(Stream* stream, NodePtr node);
  bool idle(Stream* stream);
  void wait(const NodePtr& node);
  void wait(Stream* stream);
  void wait_for_all();

 private:
  void run();

  std::condition_variable wake_;
  std::list<NodePtr> pending_;
  bool running_ = false;
};

Engine& engine();
double now_s();
