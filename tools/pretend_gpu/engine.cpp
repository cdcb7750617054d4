#include "engine.h"

#include <algorithm>
#include <thread>

namespace {
constexpr std::chrono::microseconds kPause{100}, kLongPause{5000};

bool ready(const Node& node) {
  return std::all_of(node.after.begin(), node.after.end(), [](auto& n) { return n->done.load(); });
}
}  // namespace

std::chrono::microseconds pause_after(int looks) {
  return std::min(kLongPause, kPause * (1 + looks / 200));
}

Engine& engine() {
  static auto* one = new Engine();  // never destroyed: its threads outlive everything
  return *one;
}

double now_s() {
  auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

void Engine::submit(Stream* stream, const Factory& factory) {
  if (stream->capture)
    stream->capture->work.push_back(factory);
  else
    enqueue(stream, factory());
}

// One after the other, in the order of their capture: no order between them is stricter.
void Engine::launch(Stream* stream, const Capture& graph) {
  for (auto& factory : graph.work) submit(stream, factory);
}

void Engine::enqueue(Stream* stream, NodePtr node) {
  std::lock_guard<std::mutex> guard(mutex);
  if (stream->newest && !stream->newest->done) node->after.push_back(stream->newest);
  stream->newest = node;
  pending_.push_back(std::move(node));
  if (!running_) {  // not before: a process may fork until it uses a device
    running_ = true;
    start_device([this] { run(false); });
    std::thread([this] { run(true); }).detach();
  }
  wake_.notify_all();
}

bool Engine::idle(Stream* stream) {
  std::lock_guard<std::mutex> guard(mutex);
  return !stream->newest || stream->newest->done;
}

void Engine::wait(const NodePtr& node) {
  for (int looks = 0; node && !node->done && !failed_; looks++)
    std::this_thread::sleep_for(pause_after(looks));
}

void Engine::wait(Stream* stream) {
  NodePtr newest;
  {
    std::lock_guard<std::mutex> guard(mutex);
    newest = stream->newest;
  }
  wait(newest);
}

void Engine::wait_for_all() {
  for (int looks = 0; !failed_; looks++) {
    {
      std::lock_guard<std::mutex> guard(mutex);
      if (pending_.empty()) return;
    }
    std::this_thread::sleep_for(pause_after(looks));
  }
}

void Engine::fail() { failed_ = true; }

void Engine::run(bool host) {
  std::unique_lock<std::mutex> guard(mutex);
  for (int looks = 0; !failed_; looks++) {
    bool moved = false, waiting = false;  // of this executor's nodes
    for (auto at = pending_.begin(); at != pending_.end();) {
      NodePtr node = *at;
      if (node->host != host) {
        ++at;
        continue;
      }
      if (!node->begun && ready(*node)) {
        node->begun = moved = true;
        node->after.clear();
        if (node->begin) {  // may take long, and may enqueue
          guard.unlock();
          node->begin();
          guard.lock();
        }
      }
      if (failed_) return;  // that node did it
      if (node->begun && (!node->over || node->over())) {
        node->begin = nullptr;
        node->over = nullptr;
        node->done_s = now_s();
        node->done = moved = true;
        at = pending_.erase(at);
      } else {
        waiting = true;
        ++at;
      }
    }
    if (moved) {
      looks = 0;
    } else if (!waiting) {
      wake_.wait(guard);
    } else {
      guard.unlock();
      std::this_thread::sleep_for(2 * pause_after(looks));
      guard.lock();
    }
  }
}
