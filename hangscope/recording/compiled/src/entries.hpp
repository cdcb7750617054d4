// The unfinished operations that completion.py keeps, as C++ sees them.
#pragma once
#include "session.hpp"

#include <algorithm>

namespace hangscope {

// How many of the oldest unfinished operations are looked at here, before Python is asked.
constexpr Py_ssize_t LOOK_AT = 32;

// What completion.py keeps of an unfinished operation, a list, see `Pending` in groups.py.
struct Entry {
  PyObject* list;

  long long number(Py_ssize_t at) const { return PyLong_AsLongLong(PyList_GET_ITEM(list, at)); }
  std::uint64_t record_id() const { return static_cast<std::uint64_t>(number(0)); }
  PyObject* work() const { return PyList_GET_ITEM(list, 1); }
  long long seq() const { return number(2); }
  std::uint32_t flags() const { return static_cast<std::uint32_t>(number(3)); }
  PyObject* state() const { return PyList_GET_ITEM(list, 4); }
  bool is_p2p() const { return flags() & layout::P2P; }
};

// Takes the first of the oldest entries of a deque that is wanted, or none, out of it. False with a
// Python error.
template <class F>
inline bool take(PyObject* entries, Py_ssize_t most, F&& is_wanted, Ref& found) {
  const Py_ssize_t count = std::min(PyObject_Size(entries), most);
  if (count < 0) return false;
  for (Py_ssize_t at = 0; at < count; at++) {
    Ref item = Ref::taken(PySequence_GetItem(entries, at));
    if (!item) return false;
    if (!is_wanted(Entry{item.get()})) continue;
    if (PySequence_DelItem(entries, at) != 0) return false;
    found = std::move(item);
    return true;
  }
  return true;
}

// The Work of an entry that is still boxed, otherwise none.
inline const Work* boxed_work_of(const Session& session, const Entry& entry) {
  if (Py_TYPE(entry.work()) != session.boxed_work) return nullptr;
  return &reinterpret_cast<BoxedWork*>(entry.work())->work;
}

// Whether nobody can wait for an operation any more, as only this entry refers to its Work. Then
// nothing would tell when one ends that cannot be polled.
inline bool is_lost(const Session& session, const Entry& entry) {
  const Work* boxed = boxed_work_of(session, entry);
  return entry.flags() & layout::UNOBSERVED && boxed != nullptr && boxed->use_count() == 1;
}

}  // namespace hangscope
