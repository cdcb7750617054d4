#include "engine.h"

#include <algorithm>
#include <thread>

namespace {
constexpr std::chrono::microseconds kPause{100}, kLongPause{5000};

// How long to sleep between looks, by how many of them have found no progress: a hung job should
// not cost its machine anything.
std::chrono::microseconds pause(int looks) {
  return std::min(kLongPause, kPause * (1 + looks / 200));
}

bool ready(const Node& node) {
  return std::all_of(node.after.begin(), node.after.end(), [](auto& n) { return n->done.load(); });
}
}  // namespace

Engine& engine() {
  static auto* one = new Engine();  // never destroyed: its thread outlives everything
  return *one;
}

double now_s() {
  auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

void Engine::enqueue(Stream* stream, NodePtr node) {
  std::lock_guard<std::mutex> guard(mutex);
  if (stream->newest && !stream->newest->done) node->after.push_back(stream->newest);
  stream->newest = node;
  pending_.push_back(std::move(node));
  if (!running_) {  // not before: a process may fork until it uses a device
    running_ = true;
    std::thread([this] { run(); }).detach();
  }
  wake_.notify_all();
}

bool Engine::idle(Stream* stream) {
  std::lock_guard<std::mutex> guard(mutex);
  return !stream->newest || stream->newest->done;
}

void Engine::wait(const NodePtr& node) {
  for (int looks = 0; node && !node->done; looks++) std::this_thread::sleep_for(pause(looks));
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
  for (int looks = 0;; looks++) {
    {
      std::lock_guard<std::mutex> guard(mutex);
      if (pending_.empty()) return;
    }
    std::this_thread::sleep_for(pause(looks));
  }
}

void Engine::run() {
  std::unique_lock<std::mutex> guard(mutex);
  for (int looks = 0;; looks++) {
    bool moved = false;
    for (auto at = pending_.begin(); at != pending_.end();) {
      NodePtr node = *at;
      if (!node->begun && ready(*node)) {
        node->begun = moved = true;
        node->after.clear();
        if (node->begin) {  // may take long, and may enqueue
          guard.unlock();
          node->begin();
          guard.lock();
        }
      }
      if (node->begun && (!node->over || node->over())) {
        node->begin = nullptr;
        node->over = nullptr;
        node->done_s = now_s();
        node->done = moved = true;
        at = pending_.erase(at);
      } else {
        ++at;
      }
    }
    if (moved) looks = 0;
    if (pending_.empty()) {
      wake_.wait(guard);
    } else if (!moved) {
      guard.unlock();
      std::this_thread::sleep_for(2 * pause(looks));
      guard.lock();
    }
  }
}
