// The kernel that every c10d operator gets at the dispatch key BackendSelect.
#pragma once
#include "call.hpp"
#include "inside.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace hangscope {

class Kernel final : public c10::OperatorKernel {
 public:
  // `number`: of its operator.
  explicit Kernel(std::size_t number) : number_(number) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const c10::DispatchKeySet rest =
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
    if (!current().listening) {
      handle.redispatchBoxed(rest, stack);
      return;
    }
    Call call(number_);
    if (!call.begin(torch::jit::last(*stack, handle.schema().arguments().size()))) {
      handle.redispatchBoxed(rest, stack);
      return;
    }
    const std::size_t below = stack->size() - handle.schema().arguments().size();
    try {
      const Inside::Mark mark(Inside::Where::kernel);
      handle.redispatchBoxed(rest, stack);
    } catch (...) {
      call.raised(std::current_exception());
      throw;
    }
    call.issued(stack->size() > below ? &stack->back() : nullptr);
  }

 private:
  const std::size_t number_;
};

// Registers the kernels of these operators, in this order, the first time that it is called. They
// are never taken away: another thread may have looked one up and be about to call it.
inline void register_kernels(const std::vector<std::string>& names) {
  static const auto* const registered = new std::vector<std::string>(names);
  static const auto* const library = [&names] {
    auto made = std::make_unique<torch::Library>(torch::Library::IMPL, "c10d",
                                                 c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
    for (std::size_t number = 0; number < names.size(); number++)
      made->impl(names[number].c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                            std::make_unique<Kernel>(number)));
    return made.release();
  }();
  (void)library;
  if (names != *registered) throw std::runtime_error("the operators of c10d have changed");
}

}  // namespace hangscope
