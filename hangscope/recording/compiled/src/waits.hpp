// `Work.wait`, which shows completion and failure where polling cannot: see work_waits.py and
// completion.py. What was issued first is waited for first, as a rule, and that is done here.
#pragma once
#include "entries.hpp"
#include "inside.hpp"
#include "meter.hpp"

#include <limits>

namespace hangscope {

// Sequence number of the oldest collective that is still watched; a huge one if there is none.
inline long long first_unfinished(PyObject* pending) {
  const Py_ssize_t count = PyObject_Size(pending);
  for (Py_ssize_t at = 0; at < count; at++) {
    const Ref item = Ref::taken(PySequence_GetItem(pending, at));
    if (!item) break;
    const Entry entry{item.get()};
    if (!entry.is_p2p()) return entry.seq();
  }
  return std::numeric_limits<long long>::max();
}

// A collective has finished: advances the group's counter to the oldest unfinished one. False with
// a Python error. Nothing in here lets go of the GIL.
inline bool complete(Session& session, PyObject* state, long long seq, long long now) {
  Counters& group = *reinterpret_cast<Counters*>(state);
  if (!group.observable) return true;
  group.highest_done = std::max(group.highest_done, seq);
  long long done = group.highest_done;
  if (done > group.completed) {
    const Ref pending = Ref::taken(PyObject_GetAttrString(state, "pending"));
    if (!pending) return false;
    done = std::min(done, first_unfinished(pending.get()) - 1);
  }
  if (group.failed_seq) done = std::min(done, group.failed_seq - 1);
  if (done > group.completed) session.ring.publish_completed(group, done, now);
  return !PyErr_Occurred();
}

class Wait {
 public:
  Wait(Session& session, const Callbacks& python, PyObject* work)
      : session_(session), python_(python), work_(work) {}

  // The job begins to wait; false if there is a Python error that is meant for it.
  bool begins() const {
    const Meter meter;
    if (PyDict_Size(python_.unwaited.get()) <= 0) return true;
    return Ref::taken(PyObject_CallOneArg(python_.waiting.get(), work_)) || settle(python_);
  }

  // It has waited, or the wait has raised an exception; false as above.
  bool ends(const Ref& error) const {
    const Meter meter;
    bool is_done = false;
    if (!error && !ends_here(is_done)) return settle(python_);
    if (is_done) return true;
    PyObject* given = error ? error.get() : Py_None;
    return Ref::taken(PyObject_CallFunctionObjArgs(python_.waited.get(), work_, given, nullptr)) ||
           settle(python_);
  }

 private:
  // Without Python, if the operation is among the oldest or not watched; false with a Python error.
  bool ends_here(bool& is_done) const {
    const Py_ssize_t count = PyObject_Size(python_.boxed.get());
    Ref entry;
    if (count > 0 && !take_boxed(entry)) return false;
    if (entry) {
      is_done = true;
      return finish(Entry{entry.get()});
    }
    if (count > LOOK_AT) return true;
    const Ref key = Ref::taken(PyLong_FromVoidPtr(work_));
    const int is_watched = key ? PyDict_Contains(python_.watched.get(), key.get()) : -1;
    is_done = is_watched == 0;
    return is_watched >= 0;
  }

  // Takes the operation out of those whose Work is still boxed. None of them need be it.
  bool take_boxed(Ref& found) const {
    const c10d::Work* waited = nullptr;
    try {
      waited = pybind11::cast<c10d::Work*>(pybind11::handle(work_));
    } catch (const pybind11::cast_error&) {
      return true;  // no Work of torch's
    }
    const auto is_waited = [this, waited](const Entry& entry) {
      const Work* boxed = boxed_work_of(session_, entry);
      return boxed != nullptr && boxed->get() == waited;
    };
    return take(python_.boxed.get(), LOOK_AT, is_waited, found);
  }

  bool finish(const Entry& entry) const {
    std::uint32_t flags = entry.flags();
    if (flags & layout::UNOBSERVED) {
      flags &= ~layout::UNOBSERVED;  // this wait has observed it
    } else {
      const Ref pending = Ref::taken(PyObject_GetAttrString(entry.state(), "pending"));
      if (!pending) return false;
      const auto is_same = [&entry](const Entry& other) { return other.list == entry.list; };
      Ref found;
      if (!take(pending.get(), PY_SSIZE_T_MAX, is_same, found)) return false;
      if (!found) return true;  // another thread was faster
    }
    const long long now = session_.ring.finish(entry.record_id(), flags, true);
    return entry.is_p2p() || complete(session_, entry.state(), entry.seq(), now);
  }

  Session& session_;
  const Callbacks& python_;
  PyObject* work_;
};

// What stands in for `Work.wait`.
struct Waiter {
  PyObject_HEAD
  std::shared_ptr<Session> session;
  Ref original;
};

inline PyTypeObject* g_waiter = nullptr;

inline PyObject* wait(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  const std::shared_ptr<Session> session = reinterpret_cast<Waiter*>(self)->session;
  const Ref original = reinterpret_cast<Waiter*>(self)->original;
  const auto recording = [&session] {
    return session->listening ? session->python : std::shared_ptr<const Callbacks>();
  };
  const auto python = recording();
  if (count < 1 || !python) return PyObject_Vectorcall(original.get(), args, count, names);
  if (!Wait(*session, *python, args[0]).begins()) return nullptr;
  Ref result;
  {
    const Inside::Mark mark(Inside::Where::wait);
    result = Ref::taken(PyObject_Vectorcall(original.get(), args, count, names));
  }
  if (result.get() == Py_False) return result.release();  // the wait timed out
  const Ref error = result ? Ref() : take_error();
  // No longer in a forked child, or if another thread's operation has ended the recording.
  const auto still = recording();
  try {
    if (still && !Wait(*session, *still, args[0]).ends(error)) return nullptr;
  } catch (const std::exception& broken) {
    PyErr_SetString(PyExc_RuntimeError, broken.what());
    if (!settle(*still)) return nullptr;
  }
  if (error) set_error(error);
  return result.release();
}

inline PyMethodDef wait_definition = {
    "wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(wait)),
    METH_FASTCALL | METH_KEYWORDS, nullptr,
};

// A method to be put in the place of `original`.
inline PyObject* method_for(std::shared_ptr<Session> session, PyObject* original) {
  Ref self = Ref::taken(g_waiter->tp_alloc(g_waiter, 0));
  if (!self) return nullptr;
  auto& waiter = *reinterpret_cast<Waiter*>(self.get());
  new (&waiter.session) std::shared_ptr<Session>(std::move(session));
  new (&waiter.original) Ref(Ref::to(original));
  const Ref function = Ref::taken(PyCFunction_New(&wait_definition, self.get()));
  return function ? PyInstanceMethod_New(function.get()) : nullptr;
}

inline void free_waiter(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<Waiter*>(self)->session.~shared_ptr();
  reinterpret_cast<Waiter*>(self)->original.~Ref();
  type->tp_free(self);
  Py_DECREF(type);
}

inline PyType_Slot waiter_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(free_waiter)},
    {0, nullptr},
};

inline PyType_Spec waiter_spec = {
    "hangscope.recording.compiled.Waiter", sizeof(Waiter), 0, Py_TPFLAGS_DEFAULT, waiter_slots,
};

}  // namespace hangscope
