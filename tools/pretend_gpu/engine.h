// Streams and their queued work. A process of its own executes it, like a device: it needs no GIL,
// and goes on when the process that queued it is stopped. What the host does between two pieces of
// work of a stream is executed by a thread of the queuing process, and stops with it.
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
  bool host = false;            // executed by a thread of the process, not by the device
  bool begun = false;
  std::atomic<bool> done{false};
  double done_s = 0;
};

// Makes the node for one execution: a graph executes what it has captured at each launch.
using Factory = std::function<NodePtr()>;

// What the streams of one capture have queued, in this order.
struct Capture {
  unsigned long long id;
  bool ended = false;
  std::vector<Factory> work;
};

struct Stream {
  NodePtr newest;
  int priority = 0;
  std::shared_ptr<Capture> capture;  // into which it queues; none: it executes
};

class Engine {
 public:
  std::mutex mutex;

  void submit(Stream* stream, const Factory& factory);
  void launch(Stream* stream, const Capture& graph);
  bool idle(Stream* stream);
  void wait(const NodePtr& node);
  void wait(Stream* stream);
  void wait_for_all();
  // Nothing is executed any more, and nobody waits.
  void fail();
  bool failed() const { return failed_; }

 private:
  void enqueue(Stream* stream, NodePtr node);
  void run(bool host);

  std::condition_variable wake_;
  std::list<NodePtr> pending_;
  bool running_ = false;
  std::atomic<bool> failed_{false};
};

Engine& engine();
double now_s();

// How long to sleep between looks, by how many of them have found no progress: a hung job should
// not cost its machine anything.
std::chrono::microseconds pause_after(int looks);

// Executes `run` in a process that shares this one's memory and files, and ends with it.
void start_device(std::function<void()> run);
