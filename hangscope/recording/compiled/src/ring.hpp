// One record more in the mapped ring file. Layout: see hangscope/ring/layout.py.
#pragma once
#include "constants.hpp"
#include "counters.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>

namespace hangscope {

// What follows from an operator, its group and its arguments alone; `Plan` in plans.py.
struct Plan {
  std::uint32_t flags;
  long long step;
  std::int32_t root, peer;
  long long timeout_ms;
  std::uint32_t signature;
  std::uint64_t agreement;
  long long input_numel, output_numel;
  bool on_cuda;
};

// Counts the forks that led to this process.
inline int g_forks = 0;
inline void count_forks() {
  pthread_atfork(nullptr, nullptr, [] { g_forks++; });
}

struct Stored {
  std::uint64_t record_id;
  long long seq;
  std::uint32_t flags;
};

class Ring {
 public:
  Ring(char* memory, std::size_t slots_at, std::uint64_t slot_count)
      : memory_(memory), slots_(memory + slots_at), slot_count_(slot_count) {}

  // Numbers an operation and stores its record. The GIL is held throughout, so that no other thread
  // is in here, nor in Python code that changes the same counters.
  Stored store(Counters& group, const Plan& plan, std::uint32_t stack) {
    std::uint32_t flags = plan.flags;
    bool fresh = true;
    if (group.coalescing_thread && group.coalescing_thread == PyThread_get_thread_ident()) {
      // The first operation of its kind advances the counter for the whole batch.
      const long long kind = flags & layout::P2P ? 2 : 1;
      fresh = !(group.coalesced_kinds & kind);
      group.coalesced_kinds |= kind;
      flags |= layout::COALESCED_MEMBER;
    }
    if (flags & layout::P2P) {
      if (fresh && !(flags & layout::COALESCED_BATCH)) group.p2p_seq++;
    } else {
      if (fresh) {
        group.seq_before = group.collective_seq;
        group.collective_seq += plan.step;
      }
      group.history_before = group.history;
      group.history =
          group.history * layout::HISTORY_FACTOR + plan.agreement + layout::HISTORY_INCREMENT;
      if (!group.history) group.history = 1;
    }
    group.published = ++group.op_id;
    const std::uint64_t record_id = ++newest_;
    const long long now = now_ns();

    char* slot = slot_of(record_id);
    // From here to the end of the slot its two ids differ: a reader drops it. Fences keep that order
    // also where processors do not (aarch64); on x86 they only bind the compiler.
    put(slot, layout::SLOT_RECORD_ID, record_id);
    std::atomic_thread_fence(std::memory_order_release);
    put(slot, layout::SLOT_CREATED_NS, now);
    put(slot, layout::SLOT_STARTED_NS, 0LL);
    put(slot, layout::SLOT_COMPLETED_NS, 0LL);
    put(slot, layout::SLOT_COLLECTIVE_SEQ, group.collective_seq);
    put(slot, layout::SLOT_P2P_SEQ, group.p2p_seq);
    put(slot, layout::SLOT_OP_ID, group.op_id);
    put(slot, layout::SLOT_HISTORY, group.history);
    put(slot, layout::SLOT_GROUP, static_cast<std::uint32_t>(group.index));
    put(slot, layout::SLOT_SIGNATURE, plan.signature);
    put(slot, layout::SLOT_STACK, stack);
    put(slot, layout::SLOT_PEER, plan.peer);
    put(slot, layout::SLOT_ROOT, plan.root);
    put(slot, layout::SLOT_THREAD, thread_number());
    put(slot, layout::SLOT_TIMEOUT_MS, plan.timeout_ms);
    put(slot, layout::SLOT_INPUT_NUMEL, plan.input_numel);
    put(slot, layout::SLOT_OUTPUT_NUMEL, plan.output_numel);
    put(slot, layout::SLOT_STATE, std::uint32_t{0});
    put(slot, layout::SLOT_FLAGS, flags);
    std::atomic_thread_fence(std::memory_order_release);
    put(slot, layout::SLOT_COMMIT, record_id);
    std::atomic_thread_fence(std::memory_order_release);

    put(memory_, layout::HEADER_LAST_RECORD_ID, record_id);
    char* entry = memory_ + group.cells * 8;
    put(entry, layout::GROUP_ENQUEUED, group.collective_seq);
    put(entry, layout::GROUP_P2P_ENQUEUED, group.p2p_seq);
    put(entry, layout::GROUP_HISTORY, group.history);
    put(entry, layout::GROUP_ENQUEUED_NS, now);
    return {record_id, group.collective_seq, flags};
  }

  // Marks a record as finished; returns the time.
  long long finish(std::uint64_t record_id, std::uint32_t flags, bool succeeded) {
    const long long now = now_ns();
    char* slot = slot_of(record_id);
    if (get<std::uint64_t>(slot, layout::SLOT_RECORD_ID) != record_id) return now;
    put(slot, layout::SLOT_COMPLETED_NS, succeeded ? now : 0LL);
    std::atomic_thread_fence(std::memory_order_release);
    flags |= succeeded ? layout::RETIRED : layout::RETIRED | layout::FAILED;
    // State and flags lie side by side and change together.
    static_assert(layout::SLOT_FLAGS == layout::SLOT_STATE + 4, "see SLOT in layout.py");
    put(slot, layout::SLOT_STATE, std::uint64_t{flags} << 32 | (succeeded ? 2u : 0u));
    return now;
  }

  // All collectives of a group up to this one are finished.
  void publish_completed(Counters& group, long long seq, long long now) {
    group.completed = seq;
    char* entry = memory_ + group.cells * 8;
    put(entry, layout::GROUP_COMPLETED, seq);
    put(entry, layout::GROUP_COMPLETED_NS, now);
  }

 private:
  char* slot_of(std::uint64_t record_id) {
    return slots_ + (record_id - 1) % slot_count_ * layout::SLOT_BYTES;
  }

  template <class T>
  static T get(const char* base, std::size_t offset) {
    T value;
    std::memcpy(&value, base + offset, sizeof value);
    return value;
  }

  template <class T>
  static void put(char* base, std::size_t offset, T value) {
    std::memcpy(base + offset, &value, sizeof value);  // all fields are aligned: a single store
  }

  static long long now_ns() {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
  }

  // The kernel's id of the calling thread. A forked child has another one than its parent.
  static std::uint32_t thread_number() {
    static thread_local int forks = -1;
    static thread_local std::uint32_t number = 0;
    if (forks != g_forks) {
      forks = g_forks;
      number = static_cast<std::uint32_t>(syscall(SYS_gettid));
    }
    return number;
  }

  char* memory_;
  char* slots_;
  std::uint64_t slot_count_;
  std::uint64_t newest_ = 0;
};

}  // namespace hangscope
