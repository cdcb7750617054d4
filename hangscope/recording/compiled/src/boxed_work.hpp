// A Work that Python holds without knowing it: making Python's own object of it takes half a
// microsecond, and most are never asked for.
#pragma once
#include "python.hpp"

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

#include <new>

namespace hangscope {

using Work = c10::intrusive_ptr<c10d::Work>;

struct BoxedWork {
  PyObject_HEAD
  Work work;
};

inline void free_boxed_work(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<BoxedWork*>(self)->work.~Work();
  type->tp_free(self);
  Py_DECREF(type);
}

inline PyType_Slot boxed_work_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(free_boxed_work)},
    {0, nullptr},
};

inline PyType_Spec boxed_work_spec = {
    "hangscope.recording.compiled.BoxedWork",
    sizeof(BoxedWork),
    0,
    Py_TPFLAGS_DEFAULT,
    boxed_work_slots,
};

inline PyObject* box(PyTypeObject* type, Work work) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) new (&reinterpret_cast<BoxedWork*>(self)->work) Work(std::move(work));
  return self;
}

// Python's `Work` of a boxed one; the same object for as long as somebody holds it.
inline PyObject* unboxed(PyObject* boxed) {
  return pybind11::cast(reinterpret_cast<BoxedWork*>(boxed)->work).release().ptr();
}

}  // namespace hangscope
