// What follows from an operator's arguments alone, remembered under everything it depends on.
#pragma once
#include "constants.hpp"
#include "ring.hpp"

#include <ATen/core/ivalue.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>

namespace hangscope {

// The key of a call: its arguments as bytes, without process group and reduce op.
class PlanKey {
 public:
  void begin(std::uint64_t group, std::int64_t reduce_op) {
    bytes_.clear();
    put(group);
    put(reduce_op);
  }

  // Adds an argument; false if a plan that depends on it must not be remembered.
  bool add(const c10::IValue& value) {
    put(static_cast<std::uint64_t>(tag_of(value)));
    if (value.isTensor()) return add_tensor(value.toTensor());
    if (value.isInt()) return put(value.toInt());
    if (value.isBool()) return put(static_cast<std::int64_t>(value.toBool()));
    if (value.isNone()) return true;
    if (value.isList()) {
      const auto items = value.toListRef();
      put(static_cast<std::uint64_t>(items.size()));
      for (const c10::IValue& item : items)
        if (!add(item)) return false;
      return true;
    }
    return false;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  // Lists of tensors and of numbers have tags of their own; all that matters is what they hold.
  static int tag_of(const c10::IValue& value) {
    return value.isTensor() ? 1 : value.isInt() ? 2 : value.isBool() ? 3 : value.isNone() ? 4 : 5;
  }

  bool add_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return put(std::uint64_t{0});
    const c10::DispatchKeySet keys = tensor.key_set();
    if (keys.has(c10::DispatchKey::Python) || tensor.is_meta() || tensor.layout() != c10::kStrided ||
        keys.has(c10::DispatchKey::NestedTensor) ||
        tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
      return false;
    const auto sizes = tensor.sizes();
    put(static_cast<std::uint64_t>(tensor.device().type()) << 48 |
        static_cast<std::uint64_t>(tensor.scalar_type()) << 32 | (sizes.size() + 1));
    for (std::int64_t size : sizes) put(size);
    return true;
  }

  template <class T>
  bool put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return true;
  }

  std::string bytes_;
};

class Plans {
 public:
  const Plan* find(const PlanKey& key) const {
    auto found = known_.find(key.bytes());
    return found == known_.end() ? nullptr : &found->second;
  }

  void remember(const std::string& key, const Plan& plan) {
    if (known_.size() >= layout::MAX_PLANS) known_.clear();
    known_.emplace(key, plan);
  }

 private:
  std::unordered_map<std::string, Plan> known_;
};

}  // namespace hangscope
