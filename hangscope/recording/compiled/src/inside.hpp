// Which threads are inside an operator just now: a sampled stack does not show it, as our kernel has
// no Python frame and torch has none either.
#pragma once
#include "ring.hpp"

#include <atomic>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace hangscope {

class Inside {
 public:
  // Marks the calling thread for as long as it lives.
  class Mark {
   public:
    Mark() { here().depth++; }
    ~Mark() { here().depth--; }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
  };

  // The marked threads, by Python's numbers for them.
  static std::vector<unsigned long> threads() {
    std::vector<unsigned long> found;
    Registry& all = registry();
    std::lock_guard<std::mutex> lock(all.mutex);
    for (const Thread* thread : all.threads)
      if (thread->depth > 0) found.push_back(thread->number);
    return found;
  }

 private:
  struct Thread {
    std::atomic<int> depth{0};
    unsigned long number = 0;
    int forks = -1;

    ~Thread() {
      if (forks != g_forks) return;
      Registry& all = registry();
      std::lock_guard<std::mutex> lock(all.mutex);
      all.threads.erase(this);
    }
  };

  struct Registry {
    std::mutex mutex;
    std::unordered_set<const Thread*> threads;
  };

  // A forked child begins with a new one: the parent's may be locked, and knows threads that the
  // child does not have. None is ever freed, as threads end at any time.
  static Registry*& current() {
    static Registry* registry = [] {
      pthread_atfork(nullptr, nullptr, [] { current() = new Registry(); });
      return new Registry();
    }();
    return registry;
  }
  static Registry& registry() { return *current(); }

  static Thread& here() {
    static thread_local Thread thread;
    if (thread.forks != g_forks) {
      thread.forks = g_forks;
      thread.depth = 0;
      thread.number = PyThread_get_thread_ident();
      Registry& all = registry();
      std::lock_guard<std::mutex> lock(all.mutex);
      all.threads.insert(&thread);
    }
    return thread;
  }
};

}  // namespace hangscope
