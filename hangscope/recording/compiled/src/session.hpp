// One recording: everything that its kernels share.
#pragma once
#include "boxed_work.hpp"
#include "counters.hpp"
#include "plans.hpp"
#include "ring.hpp"
#include "stacks.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hangscope {

// A process group.
struct Group {
  Ref state;  // Python's `GroupState`
  bool recorded;
  Ref pending, append_pending;

  Counters& counters() const { return *reinterpret_cast<Counters*>(state.get()); }

  // Reads what the recorder needs of a state; none with a Python error.
  static std::shared_ptr<Group> of(Ref state) {
    Ref recorded = Ref::taken(PyObject_GetAttrString(state.get(), "recorded"));
    Ref pending = Ref::taken(PyObject_GetAttrString(state.get(), "pending"));
    if (!recorded || !pending) return nullptr;
    Ref append = Ref::taken(PyObject_GetAttrString(pending.get(), "append"));
    if (!append) return nullptr;
    return shared(new Group{std::move(state), recorded.get() == Py_True, pending, append});
  }

  // Whether Python has an object of this group. Otherwise nothing tells when the group is gone and
  // another one may have its address.
  bool is_in_python() const {
    Ref reference = Ref::taken(PyObject_GetAttrString(state.get(), "process_group"));
    if (!reference || reference.is_none()) return false;
    Ref object = Ref::taken(PyObject_CallNoArgs(reference.get()));
    return object && !object.is_none();
  }
};

// What Python provides; see callbacks.py.
struct Callbacks {
  Ref stack_of;      // (frame, of the calling thread) -> number and marks; None: record no stacks
  Ref unmarked;      // (number and marks) -> (number, flag)
  Ref manner;        // (frame) -> flags of a send or receive issued there
  Ref note_capture;  // () -> None; a collective is being captured in a CUDA graph
  Ref is_capturing;  // () -> bool
  Ref drain;         // (state) -> None; a group has many unfinished operations
  Ref append_boxed;  // (entry) -> None; an operation whose Work is still boxed
  Ref waiting;       // (work) -> None; Python begins to wait for an ``isend`` or ``irecv``
  Ref waited;        // (work, exception or None) -> None; it has waited
  Ref boxed, watched, unwaited;  // the collections of `Completions`
  Ref on_error;      // (exception) -> None, or raises it again if it is the job's own

  // Reads all of them from a dictionary; false with a Python error.
  bool read(PyObject* given) {
    const std::pair<const char*, Ref*> fields[] = {
        {"stack_of", &stack_of}, {"unmarked", &unmarked}, {"manner", &manner},
        {"note_capture", &note_capture}, {"is_capturing", &is_capturing}, {"drain", &drain},
        {"append_boxed", &append_boxed}, {"waiting", &waiting}, {"waited", &waited},
        {"boxed", &boxed}, {"watched", &watched}, {"unwaited", &unwaited}, {"on_error", &on_error},
    };
    for (const auto& [name, field] : fields) {
      *field = Ref::to(PyDict_GetItemString(given, name));
      if (*field) continue;
      PyErr_SetString(PyExc_KeyError, name);
      return false;
    }
    return true;
  }
};

struct Operator;

struct Session {
  Session(Py_buffer file, std::size_t slots_at, std::uint64_t slot_count, Callbacks callbacks,
          PyTypeObject* boxed_work, PyThreadState* main_thread)
      : ring(static_cast<char*>(file.buf), slots_at, slot_count),
        python(shared(new Callbacks(std::move(callbacks)))),
        boxed_work(boxed_work),
        main_thread(main_thread),
        file_(file) {}
  ~Session() { PyBuffer_Release(&file_); }  // until here the file stays mapped
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Ring ring;
  std::shared_ptr<const Callbacks> python;  // none once recording has ended
  PyTypeObject* boxed_work;
  PyThreadState* main_thread;
  std::atomic<bool> listening{false};  // changed with the GIL only
  Stacks stacks;
  std::unordered_map<const void*, std::shared_ptr<Group>> groups;  // by address
  std::vector<std::shared_ptr<Operator>> operators;                // by number

  // Recording has ended. Python's objects are let go, as they refer to this one in turn.
  void close() {
    listening = false;
    std::unordered_map<const void*, std::shared_ptr<Group>> known;
    known.swap(groups);
    std::vector<std::shared_ptr<Operator>> unused;
    unused.swap(operators);
    std::shared_ptr<const Callbacks> callbacks;
    callbacks.swap(python);
  }

 private:
  Py_buffer file_;
};

// Hands the current Python error over, if there is one; false if it is the job's own, which stays.
inline bool settle(const Callbacks& python) {
  Ref error = take_error();
  if (!error) return true;
  if (!PyErr_GivenExceptionMatches(error.get(), PyExc_Exception)) {
    set_error(std::move(error));
    return false;
  }
  return bool(Ref::taken(PyObject_CallOneArg(python.on_error.get(), error.get())));
}

}  // namespace hangscope
