// A ring that somebody shortens must not end the process. Touching a page that is gone raises
// SIGBUS; the handler here puts empty memory in its place, and recording stops soon after. Every
// other SIGBUS goes to the job's own handler, also to one that was installed later.
#pragma once
#include "python.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace hangscope {

class Guard {
 public:
  // Guards this memory from now on, in front of whatever handler there is. Returns whether a part of
  // it was lost. To be called again and again, as the job may install a handler at any time.
  static bool protect(std::uintptr_t begin, std::size_t bytes) {
    if (begin_ != begin) lost_ = false;
    end_ = begin + bytes;
    begin_ = begin;
    struct sigaction now {};
    if (sigaction(SIGBUS, nullptr, &now) == 0 && !is_ours(now)) {
      // Never freed: a handler may be reading it in another thread.
      const auto* behind = new struct sigaction(now);
      if (original_ == nullptr) original_ = behind;
      behind_ = behind;
      struct sigaction ours {};
      ours.sa_sigaction = handle;
      ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
      sigaction(SIGBUS, &ours, nullptr);
    }
    return lost_;
  }

  static void remove() {
    begin_ = end_ = 0;
    struct sigaction now {};
    if (behind_ != nullptr && sigaction(SIGBUS, nullptr, &now) == 0 && is_ours(now))
      sigaction(SIGBUS, behind_, nullptr);
  }

 private:
  static bool is_ours(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) && action.sa_sigaction == handle;
  }

  static void handle(int number, siginfo_t* info, void* context) {
    const int kept = errno;
    if (!replaced(info)) forward(number, info, context);
    errno = kept;
  }

  static bool replaced(const siginfo_t* info) {
    const auto place = reinterpret_cast<std::uintptr_t>(info->si_addr);
    const std::uintptr_t begin = begin_, end = end_;
    if (info->si_code <= 0 || place < begin || place >= end) return false;  // or somebody sent it
    void* got = mmap(reinterpret_cast<void*>(begin), end - begin, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (got == MAP_FAILED) return false;
    lost_ = true;
    return true;
  }

  static void forward(int number, siginfo_t* info, void* context) {
    const auto frame = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    const pid_t self = static_cast<pid_t>(syscall(SYS_gettid));
    // A handler that was installed later may call the one before it, which is this one: then it is
    // the turn of the one before that. A handler that has left by a jump is above us on the stack.
    const bool again = thread_ == self && frame < frame_;
    if (!again) {
      frame_ = frame;
      thread_ = self;
    }
    const struct sigaction* next = again ? original_.load() : behind_.load();
    const bool default_action = !(next->sa_flags & SA_SIGINFO) && next->sa_handler == SIG_DFL;
    const bool ignored = !(next->sa_flags & SA_SIGINFO) && next->sa_handler == SIG_IGN;
    if (ignored && info->si_code <= 0) return;
    if (default_action || ignored) {  // the kernel ignores no fault, either
      struct sigaction deadly {};
      deadly.sa_handler = SIG_DFL;
      sigaction(number, &deadly, nullptr);
      if (info->si_code <= 0) syscall(SYS_tgkill, getpid(), self, number);
      return;  // a fault happens again, and ends the process as it would have
    }
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, number);
    if (next->sa_flags & SA_NODEFER) pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
    if (next->sa_flags & SA_SIGINFO)
      next->sa_sigaction(number, info, context);
    else
      next->sa_handler(number);
    if (!again) thread_ = 0;
  }

  static inline std::atomic<std::uintptr_t> begin_{0}, end_{0}, frame_{0};
  static inline std::atomic<pid_t> thread_{0};
  static inline std::atomic<bool> lost_{false};
  static inline std::atomic<const struct sigaction*> original_{nullptr}, behind_{nullptr};
};

// guard(memory) -> whether a part of it was lost
inline PyObject* guard(PyObject*, PyObject* memory) {
  Py_buffer view;
  if (PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE) != 0) return nullptr;
  const bool lost =
      Guard::protect(reinterpret_cast<std::uintptr_t>(view.buf), static_cast<std::size_t>(view.len));
  PyBuffer_Release(&view);
  return PyBool_FromLong(lost);
}

inline PyObject* unguard(PyObject*, PyObject*) {
  Guard::remove();
  Py_RETURN_NONE;
}

}  // namespace hangscope
