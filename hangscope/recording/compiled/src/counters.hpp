// The numbers of a process group, which Python (the base class of `GroupState`) and C++ share.
#pragma once
#include "python.hpp"

#include <structmember.h>

#include <cstddef>

namespace hangscope {

struct Counters {
  PyObject_HEAD
  long long index;  // in the ring's group table + 1; 0: none
  long long cells;  // where its entry begins, in eight-byte cells
  long long collective_seq, seq_before;
  long long p2p_seq;
  long long op_id, published;
  unsigned long long history, history_before;
  unsigned long long coalescing_thread;
  long long coalesced_kinds;
  long long completed, highest_done, failed_seq;
  char observable;
};

inline PyMemberDef counters_members[] = {
    {"index", T_LONGLONG, offsetof(Counters, index), 0, nullptr},
    {"cells", T_LONGLONG, offsetof(Counters, cells), 0, nullptr},
    {"collective_seq", T_LONGLONG, offsetof(Counters, collective_seq), 0, nullptr},
    {"seq_before", T_LONGLONG, offsetof(Counters, seq_before), 0, nullptr},
    {"p2p_seq", T_LONGLONG, offsetof(Counters, p2p_seq), 0, nullptr},
    {"op_id", T_LONGLONG, offsetof(Counters, op_id), 0, nullptr},
    {"published", T_LONGLONG, offsetof(Counters, published), 0, nullptr},
    {"history", T_ULONGLONG, offsetof(Counters, history), 0, nullptr},
    {"history_before", T_ULONGLONG, offsetof(Counters, history_before), 0, nullptr},
    {"coalescing_thread", T_ULONGLONG, offsetof(Counters, coalescing_thread), 0, nullptr},
    {"coalesced_kinds", T_LONGLONG, offsetof(Counters, coalesced_kinds), 0, nullptr},
    {"completed", T_LONGLONG, offsetof(Counters, completed), 0, nullptr},
    {"highest_done", T_LONGLONG, offsetof(Counters, highest_done), 0, nullptr},
    {"failed_seq", T_LONGLONG, offsetof(Counters, failed_seq), 0, nullptr},
    {"observable", T_BOOL, offsetof(Counters, observable), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

inline PyType_Slot counters_slots[] = {
    {Py_tp_members, counters_members},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {0, nullptr},
};

inline PyType_Spec counters_spec = {
    "hangscope.recording.compiled.Counters",
    sizeof(Counters),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    counters_slots,
};

}  // namespace hangscope
