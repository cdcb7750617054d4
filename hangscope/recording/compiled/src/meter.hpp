// How long the job's threads spend in the recorder, for tools/bench_recorder.py. Without
// HANGSCOPE_METER nothing of it is compiled.
#pragma once
#include "python.hpp"

#include <time.h>

#include <atomic>

namespace hangscope {

#ifdef HANGSCOPE_METER

constexpr bool IS_METERED = true;

// Adds its lifetime to what the process has spent so far.
class Meter {
 public:
  Meter() : began_ns_(now_ns()) {}
  ~Meter() { total_ns() += now_ns() - began_ns_; }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  static std::atomic<long long>& total_ns() {
    static std::atomic<long long> total{0};
    return total;
  }

 private:
  static long long now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
  }

  long long began_ns_;
};

#else

constexpr bool IS_METERED = false;

struct Meter {
  Meter() {}
  static long long total_ns() { return 0; }
};

#endif

// metered() -> nanoseconds so far; None without a meter
inline PyObject* metered(PyObject*, PyObject*) {
  if (!IS_METERED) Py_RETURN_NONE;
  return PyLong_FromLongLong(Meter::total_ns());
}

}  // namespace hangscope
