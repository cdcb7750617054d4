#include "values.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace {
template <class T>
void combine_as(int reduction, char* into, const char* from, size_t count) {
  T* out = reinterpret_cast<T*>(into);
  const T* in = reinterpret_cast<const T*>(from);
  for (size_t i = 0; i < count; i++) {
    if (reduction == ncclMax)
      out[i] = std::max(out[i], in[i]);
    else if (reduction == ncclMin)
      out[i] = std::min(out[i], in[i]);
    else
      out[i] = reduction == ncclProd ? T(out[i] * in[i]) : T(out[i] + in[i]);
  }
}

template <class T>
void divide_as(char* values, size_t count, int by) {
  T* all = reinterpret_cast<T*>(values);
  for (size_t i = 0; i < count; i++) all[i] = T(all[i] / by);
}

// Calls with a value of the type that a number of NCCL's stands for.
template <class F>
void with_type(int type, F act) {
  switch (type) {
    case ncclInt8:
      return act(int8_t());
    case ncclUint8:
      return act(uint8_t());
    case ncclInt32:
      return act(int32_t());
    case ncclUint32:
      return act(uint32_t());
    case ncclInt64:
      return act(int64_t());
    case ncclUint64:
      return act(uint64_t());
    case ncclFloat32:
      return act(float());
    case ncclFloat64:
      return act(double());
  }
}
}  // namespace

size_t width(int type) {
  switch (type) {
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      return 1;
  }
}

const char* name_of_type(int type) {
  constexpr const char* kNames[] = {"ncclInt8",    "ncclUint8",    "ncclInt32",    "ncclUint32",
                                    "ncclInt64",   "ncclUint64",   "ncclFloat16",  "ncclFloat32",
                                    "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
  return type >= 0 && type < int(std::size(kNames)) ? kNames[type] : "Unknown";
}

void combine(int type, int reduction, char* into, const char* from, size_t count) {
  with_type(type, [=](auto as) { combine_as<decltype(as)>(reduction, into, from, count); });
}

void divide(int type, char* values, size_t count, int by) {
  with_type(type, [=](auto as) { divide_as<decltype(as)>(values, count, by); });
}
