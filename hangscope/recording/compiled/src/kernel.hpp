// The kernel that every c10d operator gets at the dispatch key BackendSelect.
#pragma once
#include "call.hpp"
#include "inside.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

namespace hangscope {

class Kernel final : public c10::OperatorKernel {
 public:
  Kernel(std::shared_ptr<Session> session, std::shared_ptr<Operator> op)
      : session_(std::move(session)), operator_(std::move(op)) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const c10::DispatchKeySet rest =
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
    if (!session_->listening || is_finalizing()) {
      handle.redispatchBoxed(rest, stack);
      return;
    }
    // The kernel may be removed while its operator waits: nothing of it is used after that.
    Call call(session_, operator_);
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
  std::shared_ptr<Session> session_;
  std::shared_ptr<Operator> operator_;
};

}  // namespace hangscope
