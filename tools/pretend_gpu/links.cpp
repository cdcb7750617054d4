#include "links.h"

#include <errno.h>
#include <poll.h>
#include <strings.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace {
constexpr int kFirstPort = 32768, kPorts = 28000;

std::mutex& g_mutex = *new std::mutex();  // threads outlive everything
char g_last[256];  // of the whole process, as torch asks for it

int number(const char* name) {
  const char* value = getenv(name);
  return value ? atoi(value) : 0;
}

bool prints_warnings() {
  const char* level = getenv("NCCL_DEBUG");
  if (!level) return false;
  for (const char* prints : {"WARN", "INFO", "TRACE"})
    if (!strcasecmp(level, prints)) return true;
  return false;
}
}  // namespace

bool linked_by_sockets() {
  static const bool sockets = [] {
    const char* links = getenv("PRETEND_LINKS");
    return links && !strcmp(links, "sockets");
  }();
  return sockets;
}

void Endpoint::open() {
  static std::atomic<int> opened{0};
  host = number("RANK") + 1;
  port = kFirstPort + (getpid() * 131 + 7 * opened++) % kPorts;
  pid = getpid();
}

std::string Endpoint::name() const {
  return "10.0.0." + std::to_string(host) + "<" + std::to_string(port) + ">";
}

bool Links::lost(const Endpoint& peer, size_t place) {
  if (peer.closed) return true;
  if (!peer.pid) return false;  // it has not come yet
  if (processes_.size() <= place) processes_.resize(place + 1, -1);
  int& process = processes_[place];
  if (process < 0) process = int(syscall(SYS_pidfd_open, int(peer.pid), 0));
  if (process < 0) return errno == ESRCH;
  pollfd asked{process, POLLIN, 0};
  return poll(&asked, 1, 0) > 0;
}

void warn(const char* where, const std::string& words) {
  std::lock_guard<std::mutex> guard(g_mutex);
  snprintf(g_last, sizeof g_last, "%s", words.c_str());
  if (!prints_warnings()) return;
  char host[64] = "", date[32];
  gethostname(host, sizeof host - 1);
  *strchrnul(host, '.') = 0;
  const time_t now = time(nullptr);
  tm local;
  strftime(date, sizeof date, "%F %T", localtime_r(&now, &local));
  printf("\n[%s] %s:%d:%ld [%d] %s NCCL WARN %s\n", date, host, getpid(), syscall(SYS_gettid),
         number("LOCAL_RANK"), where, g_last);
  fflush(stdout);
}

const char* last_warning() { return g_last; }
