// Which threads are inside an operator or a wait just now: a sampled stack does not show it, as our
// functions have no Python frame and torch's have none either.
#pragma once
#include "ring.hpp"

#include <atomic>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

namespace hangscope {

class Inside {
 public:
  enum class Where { nowhere, kernel, wait };

  // Marks the calling thread for as long as it lives.
  class Mark {
   public:
    explicit Mark(Where where) : before_(here().where.exchange(where)) {}
    ~Mark() { here().where = before_; }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

   private:
    Where before_;
  };

  // The marked threads, by Python's numbers for them.
  static std::vector<std::pair<unsigned long, Where>> threads() {
    std::vector<std::pair<unsigned long, Where>> found;
    Registry& all = registry();
    std::lock_guard<std::mutex> lock(all.mutex);
    for (const Thread* thread : all.threads)
      if (const Where where = thread->where; where != Where::nowhere)
        found.emplace_back(thread->number, where);
    return found;
  }

 private:
  struct Thread {
    std::atomic<Where> where{Where::nowhere};
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
      thread.where = Where::nowhere;
      thread.number = PyThread_get_thread_ident();
      Registry& all = registry();
      std::lock_guard<std::mutex> lock(all.mutex);
      all.threads.insert(&thread);
    }
    return thread;
  }
};

}  // namespace hangscope
