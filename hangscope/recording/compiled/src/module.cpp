// `hangscope.recording.compiled` as Python sees it: Counters, BoxedWork, Recording, Waiter, guard,
// inside, metered, unbox, unguard.
#include "guard.hpp"
#include "kernel.hpp"
#include "waits.hpp"

namespace hangscope {
namespace {

PyTypeObject *g_counters = nullptr, *g_boxed_work = nullptr;

struct Recording {
  PyObject_HEAD
  std::shared_ptr<Session> session;
  std::vector<std::string> names;  // of its session's operators
};

Recording& of(PyObject* self) { return *reinterpret_cast<Recording*>(self); }

// A recording's session; none with a Python error if it has not begun.
Session* session_of(PyObject* self) {
  if (!of(self).session) PyErr_SetString(PyExc_RuntimeError, "this recording has not begun");
  return of(self).session.get();
}

// Kernels no longer call this session.
void take_out(const std::shared_ptr<Session>& session) {
  session->listening = false;
  if (current().session != session) return;
  current().listening = false;
  current().session.reset();
}

PyThreadState* main_thread_of(unsigned long number) {
  PyThreadState* thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  while (thread != nullptr && thread->thread_id != number) thread = PyThreadState_Next(thread);
  return thread;
}

int init_recording(PyObject* self, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"memory", "slots_at", "slot_count", "main_thread", "callbacks",
                                nullptr};
  Py_buffer memory;
  unsigned long long slots_at = 0, slot_count = 0;
  unsigned long main_thread = 0;
  PyObject* given = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "w*KKkO!", const_cast<char**>(names), &memory,
                                   &slots_at, &slot_count, &main_thread, &PyDict_Type, &given))
    return -1;
  if (of(self).session) PyErr_SetString(PyExc_RuntimeError, "this recording has begun already");
  const std::uint64_t size = static_cast<std::uint64_t>(memory.len);
  if (slots_at < layout::HEADER_BYTES || slots_at > size || slots_at % 8 || !slot_count ||
      slot_count > (size - slots_at) / layout::SLOT_BYTES)
    PyErr_SetString(PyExc_ValueError, "the slots do not lie in the memory");
  Callbacks python;
  if (PyErr_Occurred() || !python.read(given)) {
    PyBuffer_Release(&memory);
    return -1;
  }
  of(self).session = shared(new Session(memory, slots_at, slot_count, std::move(python),
                                        g_boxed_work, main_thread_of(main_thread)));
  return 0;
}

PyObject* new_recording(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&of(self).session) std::shared_ptr<Session>();
  new (&of(self).names) std::vector<std::string>();
  return self;
}

void free_recording(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (of(self).session) {
    take_out(of(self).session);
    of(self).session->close();
  }
  of(self).names.~vector();
  of(self).session.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

template <class F>
PyObject* guarded(F&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

// add(name, group, reduce op, p2p, blocking, gloo counts, learn, issued, raised)
PyObject* add_operator(PyObject* self, PyObject* args) {
  return guarded([&]() -> PyObject* {
    const char* name = nullptr;
    int group = -1, reduce_op = -1, p2p = 0, blocking = 0, gloo_counts = 0;
    PyObject *learn = nullptr, *issued = nullptr, *raised = nullptr;
    if (!PyArg_ParseTuple(args, "siipppOOO", &name, &group, &reduce_op, &p2p, &blocking,
                          &gloo_counts, &learn, &issued, &raised))
      return nullptr;
    Session* session = session_of(self);
    if (session == nullptr) return nullptr;
    of(self).names.emplace_back(name);
    session->operators.push_back(
        shared(new Operator{group, reduce_op, p2p != 0, blocking != 0, gloo_counts != 0,
                            Ref::to(learn), Ref::to(issued), Ref::to(raised)}));
    Py_RETURN_NONE;
  });
}

// The kernels of the operators that were added call this recording from now on.
PyObject* install(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    if (session_of(self) == nullptr) return nullptr;
    register_kernels(of(self).names);
    current().session = of(self).session;
    current().listening = of(self).session->listening.load();
    Py_RETURN_NONE;
  });
}

// They do so no more; calls in flight finish.
PyObject* remove_kernels(PyObject* self, PyObject*) {
  if (session_of(self) == nullptr) return nullptr;
  take_out(of(self).session);
  Py_RETURN_NONE;
}

// Lets go of everything of Python's.
PyObject* close_recording(PyObject* self, PyObject*) {
  if (session_of(self) == nullptr) return nullptr;
  take_out(of(self).session);
  of(self).session->close();
  Py_RETURN_NONE;
}

// write(state, plan, stack) -> token, for what does not pass the dispatcher
PyObject* write(PyObject* self, PyObject* args) {
  PyObject *state = nullptr, *fields = nullptr;
  unsigned long stack = 0;
  Plan plan;
  if (!PyArg_ParseTuple(args, "O!O!k", g_counters, &state, &PyTuple_Type, &fields, &stack)) return nullptr;
  if (!read_plan(fields, plan)) return nullptr;
  Session* session = session_of(self);
  if (session == nullptr) return nullptr;
  const Stored stored = session->ring.store(*reinterpret_cast<Counters*>(state), plan,
                                            static_cast<std::uint32_t>(stack));
  return entry_of(stored, Ref::to(state)).release();
}

// forget(state): Python's object of this group is gone, its address may be reused
PyObject* forget(PyObject* self, PyObject* state) {
  Session* session = session_of(self);
  if (session == nullptr) return nullptr;
  auto& groups = session->groups;
  for (auto at = groups.begin(); at != groups.end();)
    at = at->second->state.get() == state ? groups.erase(at) : std::next(at);
  Py_RETURN_NONE;
}

// finish(record id, flags, *, succeeded) -> time: marks a record as finished
PyObject* finish(PyObject* self, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"record_id", "flags", "succeeded", nullptr};
  unsigned long long record_id = 0;
  unsigned int flags = 0;
  int succeeded = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "KI$p", const_cast<char**>(names), &record_id,
                                   &flags, &succeeded))
    return nullptr;
  Session* session = session_of(self);
  if (session == nullptr) return nullptr;
  return PyLong_FromLongLong(session->ring.finish(record_id, flags, succeeded != 0));
}

// completed(state, sequence number, time): a collective has finished
PyObject* completed(PyObject* self, PyObject* args) {
  PyObject* state = nullptr;
  long long seq = 0, now = 0;
  if (!PyArg_ParseTuple(args, "O!LL", g_counters, &state, &seq, &now)) return nullptr;
  Session* session = session_of(self);
  if (session == nullptr || !complete(*session, state, seq, now)) return nullptr;
  Py_RETURN_NONE;
}

// waiter(original) -> what stands in for `Work.wait`
PyObject* waiter(PyObject* self, PyObject* original) {
  return guarded([&]() -> PyObject* {
    return session_of(self) == nullptr ? nullptr : method_for(of(self).session, original);
  });
}

PyObject* get_listening(PyObject* self, void*) {
  Session* session = session_of(self);
  return session == nullptr ? nullptr : PyBool_FromLong(session->listening);
}

int set_listening(PyObject* self, PyObject* value, void*) {
  const int truth = value == nullptr ? 0 : PyObject_IsTrue(value);
  Session* session = session_of(self);
  if (truth < 0 || session == nullptr) return -1;
  session->listening = truth == 1;
  if (current().session.get() == session) current().listening = truth == 1;
  return 0;
}

PyMethodDef recording_methods[] = {
    {"add", add_operator, METH_VARARGS, nullptr},
    {"install", install, METH_NOARGS, nullptr},
    {"remove", remove_kernels, METH_NOARGS, nullptr},
    {"close", close_recording, METH_NOARGS, nullptr},
    {"write", write, METH_VARARGS, nullptr},
    {"forget", forget, METH_O, nullptr},
    {"finish", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(finish)),
     METH_VARARGS | METH_KEYWORDS, nullptr},
    {"completed", completed, METH_VARARGS, nullptr},
    {"waiter", waiter, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef recording_properties[] = {
    {"listening", get_listening, set_listening, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot recording_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_recording)},
    {Py_tp_init, reinterpret_cast<void*>(init_recording)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_recording)},
    {Py_tp_methods, recording_methods},
    {Py_tp_getset, recording_properties},
    {0, nullptr},
};

PyType_Spec recording_spec = {
    "hangscope.recording.compiled.Recording", sizeof(Recording), 0, Py_TPFLAGS_DEFAULT,
    recording_slots,
};

PyObject* unbox(PyObject*, PyObject* boxed) {
  if (!PyObject_TypeCheck(boxed, g_boxed_work)) {
    PyErr_SetString(PyExc_TypeError, "a BoxedWork is needed");
    return nullptr;
  }
  return guarded([&] { return unboxed(boxed); });
}

// inside() -> "kernel" or "wait" for each thread that is inside an operator or a wait, by its number
PyObject* inside(PyObject*, PyObject*) {
  return guarded([]() -> PyObject* {
    Ref found = Ref::taken(PyDict_New());
    if (!found) return nullptr;
    for (const auto& [number, where] : Inside::threads()) {
      const Ref key = Ref::taken(PyLong_FromUnsignedLong(number));
      const char* name = where == Inside::Where::kernel ? "kernel" : "wait";
      const Ref value = Ref::taken(PyUnicode_FromString(name));
      if (!key || !value || PyDict_SetItem(found.get(), key.get(), value.get()) != 0)
        return nullptr;
    }
    return found.release();
  });
}

// leave(): the interpreter is about to shut down
PyObject* leave(PyObject*, PyObject*) {
  Gil::leave();
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"guard", guard, METH_O, nullptr},
    {"leave", leave, METH_NOARGS, nullptr},
    {"inside", inside, METH_NOARGS, nullptr},
    {"metered", metered, METH_NOARGS, nullptr},
    {"unbox", unbox, METH_O, nullptr},
    {"unguard", unguard, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, HANGSCOPE_MODULE, nullptr, -1, functions, nullptr, nullptr, nullptr,
    nullptr,
};

bool add_type(PyObject* module, const char* name, PyType_Spec& spec,
              PyTypeObject** kept = nullptr) {
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) return false;
  if (kept != nullptr) *kept = reinterpret_cast<PyTypeObject*>(type);
  Py_INCREF(type);
  return PyModule_AddObject(module, name, type) == 0;
}

}  // namespace
}  // namespace hangscope

PyMODINIT_FUNC HANGSCOPE_INIT() {
  using namespace hangscope;
  PyObject* module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
  if (!add_type(module, "Counters", counters_spec, &g_counters) ||
      !add_type(module, "BoxedWork", boxed_work_spec, &g_boxed_work) ||
      !add_type(module, "Recording", recording_spec) ||
      !add_type(module, "Waiter", waiter_spec, &g_waiter)) {
    Py_DECREF(module);
    return nullptr;
  }
  count_forks();
  pthread_atfork(nullptr, nullptr, Gil::forked);
  const Ref at_exit = Ref::taken(PyImport_ImportModule("atexit"));
  const Ref leave = Ref::taken(PyObject_GetAttrString(module, "leave"));
  if (!at_exit || !leave ||
      !Ref::taken(PyObject_CallMethod(at_exit.get(), "register", "O", leave.get()))) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
