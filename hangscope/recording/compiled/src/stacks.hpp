// Python stacks that have been seen before. New ones are Python's business (stacks.py), which gives
// them a number and says what is special about them.
#pragma once
#include "constants.hpp"
#include "python.hpp"

#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>
#endif

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hangscope {

// One frame: its code, and the current instruction in it.
using Place = std::pair<PyCodeObject*, int>;

// A stack as far as it has been walked: its innermost frames, and a hash of them. Frames hold their
// code while nothing of Python's runs.
struct Walk {
  std::vector<Place> places;
  std::uint64_t hash = 0;
};

// A walk that holds its code, so that no address is reused.
class KeptWalk {
 public:
  explicit KeptWalk(const Walk& walk) : walk_(walk) {
    for (const Place& place : walk_.places) Py_INCREF(place.first);
  }
  KeptWalk(KeptWalk&& other) noexcept : walk_(std::exchange(other.walk_, Walk())) {}
  KeptWalk(const KeptWalk&) = delete;
  KeptWalk& operator=(const KeptWalk&) = delete;
  ~KeptWalk() {
    for (const Place& place : walk_.places) Py_DECREF(place.first);
  }
  const Walk* operator->() const { return &walk_; }

 private:
  Walk walk_;
};

class Stacks {
 public:
  // The innermost frame of the calling thread, or none if it runs no Python code.
  static Ref frame_here() { return frame_of(PyThreadState_Get()); }

  static Ref frame_of(PyThreadState* thread) {
    return Ref::taken(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(thread)));
  }

  // Walks a stack, for `find`.
  void walk(const Ref& innermost) {
    walk_.places.clear();
    walk_.hash = 0;
    Ref frame = innermost;
    while (frame && walk_.places.size() < layout::MAX_FRAMES) {
      auto* at = reinterpret_cast<PyFrameObject*>(frame.get());
      PyCodeObject* code = PyFrame_GetCode(at);
      Py_DECREF(code);  // its frame holds it
      const int instruction = instruction_of(at);
      walk_.places.emplace_back(code, instruction);
      walk_.hash = (walk_.hash ^ reinterpret_cast<std::uintptr_t>(code)) * 0x9E3779B97F4A7C15u +
                   static_cast<std::uint64_t>(instruction);
      frame = Ref::taken(reinterpret_cast<PyObject*>(PyFrame_GetBack(at)));
    }
  }

  // The number of the stack last walked, if it is known, with the marks LEAVING and HANDLING.
  const std::uint32_t* find() const {
    const auto range = known_.equal_range(walk_.hash);
    for (auto found = range.first; found != range.second; ++found)
      if (found->second.walk->places == walk_.places) return &found->second.marked;
    return nullptr;
  }

  // A copy of the last walk: Python code that runs from now on may walk as well.
  KeptWalk set_aside() const { return KeptWalk(walk_); }

  void remember(KeptWalk walk, std::uint32_t marked) {
    if (frames_ + walk->places.size() > layout::MAX_KNOWN_FRAMES) forget();
    frames_ += walk->places.size();
    const std::uint64_t hash = walk->hash;
    known_.emplace(hash, Known{std::move(walk), marked});
  }

 private:
  static int instruction_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
    return PyFrame_GetLasti(frame);
#else
    return frame->f_lasti;
#endif
  }

  void forget() {
    frames_ = 0;
    std::unordered_multimap<std::uint64_t, Known>().swap(known_);
  }

  struct Known {
    KeptWalk walk;
    std::uint32_t marked;
  };

  std::unordered_multimap<std::uint64_t, Known> known_;
  std::size_t frames_ = 0;
  Walk walk_;
};

}  // namespace hangscope
