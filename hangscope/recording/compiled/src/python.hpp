// Holding Python objects and errors from C++.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <torch/csrc/Exceptions.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

namespace hangscope {

// A strong reference, or none. To be used with the GIL held, like everything it refers to.
class Ref {
 public:
  Ref() = default;
  static Ref taken(PyObject* owned) { return Ref(owned); }
  static Ref to(PyObject* borrowed) {
    Py_XINCREF(borrowed);
    return Ref(borrowed);
  }
  Ref(const Ref& other) : object_(other.object_) { Py_XINCREF(object_); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }
  bool is_none() const { return object_ == Py_None; }

 private:
  explicit Ref(PyObject* owned) : object_(owned) {}
  PyObject* object_ = nullptr;
};

// Whether the interpreter is going away or gone: threads that ask for the GIL then are ended.
inline bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return !Py_IsInitialized() || Py_IsFinalizing();
#else
  return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

// The GIL, for as long as this lives, unless the interpreter is on its way out. A thread may have it
// already.
class Gil {
 public:
  Gil() {
    if (is_finalizing()) return;
    if (PyGILState_Check() == 0) {
      // Counted before the question: whoever has got past it is waited for in `leave`.
      is_counted_ = true;
      waited_for()++;
      if (is_leaving()) return;
    }
    state_ = PyGILState_Ensure();
    is_held_ = true;
  }
  ~Gil() {
    if (is_held_) PyGILState_Release(state_);
    if (is_counted_) waited_for()--;
  }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  explicit operator bool() const { return is_held_; }

  // At exit, before finalization, with the GIL: from now on nobody asks for the GIL, and those who
  // have done so, or have it, are through before this returns. After a second it gives up.
  static void leave() {
    is_leaving() = true;
    Py_BEGIN_ALLOW_THREADS;
    for (int looks = 0; waited_for() > 0 && looks < 1000; looks++)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Py_END_ALLOW_THREADS;
  }

  // In a forked child, which has none of its parent's other threads.
  static void forked() { waited_for() = 0; }

 private:
  static std::atomic<bool>& is_leaving() {
    static std::atomic<bool> leaving{false};
    return leaving;
  }
  static std::atomic<int>& waited_for() {
    static std::atomic<int> count{0};
    return count;
  }

  PyGILState_STATE state_ = PyGILState_UNLOCKED;
  bool is_held_ = false, is_counted_ = false;
};

// Shares an object that holds references. Whoever lets go of it last need not have the GIL.
template <class T>
std::shared_ptr<T> shared(T* object) {
  return std::shared_ptr<T>(object, [](T* last) {
    const Gil gil;
    if (gil) delete last;  // else nothing of Python can be freed any more
  });
}

// Takes the current Python error as an exception object with its traceback.
inline Ref take_error() {
#if PY_VERSION_HEX >= 0x030C0000
  return Ref::taken(PyErr_GetRaisedException());
#else
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value != nullptr && trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return Ref::taken(value);
#endif
}

// Makes an exception object the current Python error, with the traceback that it has.
inline void set_error(Ref error) {
#if PY_VERSION_HEX >= 0x030C0000
  PyErr_SetRaisedException(error.release());
#else
  PyObject* type = Ref::to(reinterpret_cast<PyObject*>(Py_TYPE(error.get()))).release();
  PyObject* trace = PyException_GetTraceback(error.get());
  PyErr_Restore(type, error.release(), trace);
#endif
}

// Leaves C++ with the current Python error, as if Python code called by torch had raised it.
[[noreturn]] inline void throw_to_job() {
  python_error thrown;
  thrown.persist();
  throw thrown;
}

}  // namespace hangscope
