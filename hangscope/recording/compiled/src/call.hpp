// One call of an operator: it becomes a record, and its Work is watched.
//
// What has been seen before is done here. Whatever is new (a group, a plan, a stack) or rare is
// Python's business, which knows how everything is recorded: see `Recorder`.
#pragma once
#include "entries.hpp"
#include "meter.hpp"

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>

namespace torch::jit {
TORCH_PYTHON_API pybind11::object toPyObject(c10::IValue value);
}

namespace hangscope {

using Arguments = c10::ArrayRef<c10::IValue>;

// Where an operator keeps what we read, and what Python does for it; see `OpSpec`.
struct Operator {
  int group, reduce_op;  // positions; -1: none
  bool p2p, blocking, gloo_counts;
  Ref learn;   // (args, reduce op) -> (state, plan or None), or None: not to be recorded
  Ref issued;  // (token, work) -> None
  Ref raised;  // (token, exception) -> None
  Plans plans{};
};

// Reads Python's `Plan`; false with a Python error.
inline bool read_plan(PyObject* fields, Plan& plan) {
  const auto number = [fields](Py_ssize_t at) {
    PyObject* item = PyTuple_GetItem(fields, at);
    return item == nullptr ? -1 : PyLong_AsLongLong(item);
  };
  plan.flags = static_cast<std::uint32_t>(number(0));
  plan.step = number(1);
  plan.root = static_cast<std::int32_t>(number(2));
  plan.peer = static_cast<std::int32_t>(number(3));
  plan.timeout_ms = number(4);
  plan.signature = static_cast<std::uint32_t>(number(5));
  PyObject* agreement = PyTuple_GetItem(fields, 6);
  plan.agreement = agreement == nullptr ? 0 : PyLong_AsUnsignedLongLong(agreement);
  plan.input_numel = number(7);
  plan.output_numel = number(8);
  plan.on_cuda = PyTuple_GetItem(fields, 9) == Py_True;
  return !PyErr_Occurred();
}

// A `Pending` entry whose Work is not known yet; none with a Python error.
inline Ref entry_of(const Stored& stored, const Ref& state) {
  Ref list = Ref::taken(PyList_New(5));
  if (!list) return list;
  PyList_SET_ITEM(list.get(), 0, PyLong_FromUnsignedLongLong(stored.record_id));
  PyList_SET_ITEM(list.get(), 1, Ref::to(Py_None).release());
  PyList_SET_ITEM(list.get(), 2, PyLong_FromLongLong(stored.seq));
  PyList_SET_ITEM(list.get(), 3, PyLong_FromUnsignedLong(stored.flags));
  PyList_SET_ITEM(list.get(), 4, Ref(state).release());
  return list;
}

// The recording that is under way, if any; its kernels are registered once in a process. Changed
// with the GIL only.
struct Current {
  std::atomic<bool> listening{false};
  std::shared_ptr<Session> session;
};
inline Current& current() {
  static auto* const one = new Current();  // never destroyed, as kernels are not
  return *one;
}

class Call {
 public:
  // `number`: of the operator.
  explicit Call(std::size_t number) : number_(number) {}

  // The operator is about to be called; returns whether that is on record.
  bool begin(Arguments args) {
    const Meter meter;
    const Gil gil;
    // By the time this thread has the GIL it may be over.
    if (!gil || !current().session || !current().session->listening) return false;
    session_ = current().session;
    operator_ = session_->operators.at(number_);
    python_ = session_->python;
    guarded([&] { return record(args); });
    return stored_.has_value();
  }

  // The operator has returned, and this is the last of its results.
  void issued(const c10::IValue* result) {
    const Meter meter;
    if (stored_->flags & layout::UNOBSERVED && !operator_->gloo_counts) return;
    const Gil gil;
    if (gil && session_->python) guarded([&] { return watch(result); });
  }

  // The operator has raised.
  void raised(const std::exception_ptr& error) {
    const Gil gil;
    if (gil && session_->python) guarded([&] { return tell(error); });
  }

 private:
  // Calls what returns false with a Python error, or throws. Nothing of that reaches the job, except
  // what is the job's own.
  template <class F>
  void guarded(F&& body) const {
    bool done = false;
    try {
      done = body();
    } catch (pybind11::error_already_set& error) {
      error.restore();
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    if (!done && !settle(*python_)) throw_to_job();
  }

  // This and the functions below return false with a Python error.
  bool record(Arguments args) {
    static thread_local PlanKey key;
    const void* identity = group_in(args);
    const std::int64_t reduction = reduce_op_in(args);
    const auto found = session_->groups.find(identity);
    if (found != session_->groups.end()) group_ = found->second;
    if (group_ && !group_->recorded) return true;
    const bool has_key = group_ && make_key(args, reduction, key);
    const Plan* known = has_key ? operator_->plans.find(key) : nullptr;
    Plan plan;
    if (known != nullptr) {
      plan = *known;  // a copy, because Python code below may change what is known
    } else {
      bool wanted = true;
      if (!learn(args, identity, reduction, plan, wanted)) return false;
      if (!wanted) return true;
      if (make_key(args, reduction, key)) operator_->plans.remember(key.bytes(), plan);
    }
    if (plan.on_cuda && !note_capture()) return false;
    std::uint32_t stack = 0;
    if (!add_stack(plan, stack)) return false;
    stored_ = session_->ring.store(group_->counters(), plan, stack);
    return true;
  }

  bool has(Arguments args, int position) const {
    return 0 <= position && static_cast<std::size_t>(position) < args.size() &&
           args[position].isObject();
  }

  const void* group_in(Arguments args) const {
    if (!has(args, operator_->group)) return nullptr;
    return args[operator_->group].toCustomClass<c10d::ProcessGroup>().get();
  }

  std::int64_t reduce_op_in(Arguments args) const {
    if (!has(args, operator_->reduce_op)) return -1;
    return static_cast<std::int64_t>(args[operator_->reduce_op].toCustomClass<c10d::ReduceOp>()->op_);
  }

  // Not a failure if it returns false: the plan must not be remembered then.
  bool make_key(Arguments args, std::int64_t reduction, PlanKey& key) const {
    key.begin(static_cast<std::uint64_t>(group_->counters().index), reduction);
    for (int i = 0; i < static_cast<int>(args.size()); i++)
      if (i != operator_->group && i != operator_->reduce_op && !key.add(args[i])) return false;
    return true;
  }

  // Asks Python for the group and the plan.
  bool learn(Arguments args, const void* identity, std::int64_t reduction, Plan& plan,
             bool& wanted) {
    Ref list = Ref::taken(PyTuple_New(static_cast<Py_ssize_t>(args.size())));
    if (!list) return false;
    for (std::size_t i = 0; i < args.size(); i++)
      PyTuple_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i),
                       torch::jit::toPyObject(args[i]).release().ptr());
    Ref answer = Ref::taken(PyObject_CallFunction(operator_->learn.get(), "OL", list.get(),
                                                  static_cast<long long>(reduction)));
    if (!answer) return false;
    wanted = !answer.is_none();
    if (!wanted) return true;
    PyObject* fields = nullptr;
    PyObject* state = nullptr;
    if (!PyArg_ParseTuple(answer.get(), "OO", &state, &fields)) return false;
    group_ = Group::of(Ref::to(state));
    if (!group_) return false;
    if (identity != nullptr && group_->is_in_python()) session_->groups[identity] = group_;
    if (PyErr_Occurred()) return false;
    wanted = fields != Py_None;
    return !wanted || read_plan(fields, plan);
  }

  bool note_capture() const {
    Ref capturing = Ref::taken(PyObject_CallNoArgs(python_->is_capturing.get()));
    if (!capturing) return false;
    if (capturing.get() != Py_True) return true;
    return bool(Ref::taken(PyObject_CallNoArgs(python_->note_capture.get())));
  }

  // The number of the stack, and what follows from it for the record's flags.
  bool add_stack(Plan& plan, std::uint32_t& stack) const {
    const bool wanted = !python_->stack_of.is_none();
    if (!wanted && !operator_->p2p) return true;
    Ref frame = Stacks::frame_here();
    const bool own_thread = bool(frame);
    if (operator_->p2p && own_thread && !add_manner(plan, frame)) return false;
    if (!wanted) return true;
    // A C++ thread (autograd, say) has no Python frames: the main thread's show what led here.
    if (!own_thread && session_->main_thread != nullptr)
      frame = Stacks::frame_of(session_->main_thread);
    if (!frame) return true;
    session_->stacks.walk(frame);
    if (const std::uint32_t* known = session_->stacks.find()) {
      stack = *known;
    } else if (!learn_stack(frame, own_thread, stack)) {
      return false;
    }
    return stack < layout::HANDLING || unmark(plan, stack);
  }

  bool learn_stack(const Ref& frame, bool own_thread, std::uint32_t& stack) const {
    auto walked = session_->stacks.set_aside();
    Ref marked = Ref::taken(PyObject_CallFunctionObjArgs(python_->stack_of.get(), frame.get(),
                                                         own_thread ? Py_True : Py_False, nullptr));
    if (!marked) return false;
    stack = static_cast<std::uint32_t>(PyLong_AsUnsignedLong(marked.get()));
    if (PyErr_Occurred()) return false;
    session_->stacks.remember(std::move(walked), stack);
    return true;
  }

  // Whether a send or receive is waited for at once: only its caller tells.
  bool add_manner(Plan& plan, const Ref& frame) const {
    Ref flags = Ref::taken(PyObject_CallOneArg(python_->manner.get(), frame.get()));
    if (!flags) return false;
    plan.flags |= static_cast<std::uint32_t>(PyLong_AsUnsignedLong(flags.get()));
    return !PyErr_Occurred();
  }

  // An exception is being handled, or the process is on its way out.
  bool unmark(Plan& plan, std::uint32_t& stack) const {
    Ref answer = Ref::taken(PyObject_CallFunction(python_->unmarked.get(), "k",
                                                  static_cast<unsigned long>(stack)));
    unsigned long number = 0, flag = 0;
    if (!answer || !PyArg_ParseTuple(answer.get(), "kk", &number, &flag)) return false;
    stack = static_cast<std::uint32_t>(number);
    plan.flags |= static_cast<std::uint32_t>(flag);
    return true;
  }

  bool watch(const c10::IValue* result) const {
    const bool is_polled = !(stored_->flags & layout::UNOBSERVED);
    if (!is_polled && !group_->counters().observable) return true;
    Work work;
    if (result != nullptr && result->isObject()) work = result->toCustomClass<c10d::Work>();
    Ref boxed = work ? Ref::taken(box(session_->boxed_work, std::move(work))) : Ref::to(Py_None);
    Ref entry = entry_of(*stored_, group_->state);
    if (!boxed || !entry) return false;
    if (operator_->p2p || operator_->blocking || boxed.is_none())
      return bool(Ref::taken(PyObject_CallFunctionObjArgs(operator_->issued.get(), entry.get(),
                                                          boxed.get(), nullptr)));
    if (!is_polled && !drop_a_lost_one()) return false;
    PyObject* watched_by = is_polled ? group_->pending.get() : python_->boxed.get();
    if (PyObject_Size(watched_by) >= static_cast<Py_ssize_t>(layout::DRAIN_AT) &&
        !Ref::taken(PyObject_CallOneArg(python_->drain.get(), group_->state.get())))
      return false;
    PyList_SetItem(entry.get(), 1, boxed.release());
    return (!is_polled ||
            Ref::taken(PyObject_CallOneArg(group_->append_pending.get(), entry.get()))) &&
           Ref::taken(PyObject_CallOneArg(python_->append_boxed.get(), entry.get()));
  }

  // Each operation that cannot be polled takes one away for which nobody can wait any more.
  bool drop_a_lost_one() const {
    const auto is_one = [this](const Entry& entry) { return is_lost(*session_, entry); };
    Ref lost;
    return take(python_->boxed.get(), LOOK_AT, is_one, lost);
  }

  bool tell(const std::exception_ptr& error) const {
    Ref object = python_form_of(error);
    Ref entry = entry_of(*stored_, group_->state);
    return object && entry &&
           Ref::taken(PyObject_CallFunctionObjArgs(operator_->raised.get(), entry.get(),
                                                   object.get(), nullptr));
  }

  static Ref python_form_of(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (python_error& thrown) {
      return Ref::to(thrown.value);
    } catch (pybind11::error_already_set& thrown) {
      return Ref::to(thrown.value().ptr());
    } catch (...) {
      torch::translate_exception_to_python(error);
      return take_error();
    }
  }

  const std::size_t number_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<Operator> operator_;
  std::shared_ptr<const Callbacks> python_;
  std::shared_ptr<Group> group_;
  std::optional<Stored> stored_;
};

}  // namespace hangscope
