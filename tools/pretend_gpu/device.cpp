// The process that plays the device.
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "engine.h"

namespace {
constexpr size_t kStackBytes = 1 << 20;
std::function<void()>* g_run;  // never destroyed: the device may outlive all else
pid_t g_host;

int device(void*) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NAME, "pretend-device");
  if (getppid() == g_host) (*g_run)();  // else the host has ended in the meantime
  _exit(0);
}
}  // namespace

void start_device(std::function<void()> run) {
  g_run = new std::function<void()>(std::move(run));
  g_host = getpid();
  // The new process uses the thread-local memory of the thread that made it, as it needs some for
  // malloc and errno. That thread does nothing any more, and its end is the device's.
  std::thread([] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);  // Python's handlers are not for the device
    char* stack = static_cast<char*>(mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (clone(device, stack + kStackBytes, CLONE_VM | CLONE_FILES | CLONE_FS, nullptr) < 0) {
      perror("pretended GPU: no process for the device");
      abort();
    }
    for (;;) pause();
  }).detach();
}
