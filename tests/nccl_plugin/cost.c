/* What the plugin costs per operation: on the host, and in NCCL's proxy thread. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../../hangscope/nccl_plugin/src/interface.h"

enum { ROUNDS = 200, EACH = 1000 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int count, char **arguments) {
  char variable[4096];
  if (count != 3) return 2;
  snprintf(variable, sizeof variable, "%d:%s", getpid(), arguments[2]);
  setenv("HANGSCOPE_INTERNAL_DEVICE_RING", variable, 1);
  void *library = dlopen(arguments[1], RTLD_NOW);
  struct profiler_v5 *plugin = library ? dlsym(library, "ncclProfiler_v5") : NULL;
  void *context = NULL;
  int mask = 0;
  if (!plugin || plugin->init(&context, 1, &mask, "cost", 1, 2, 0, NULL)) return 1;
  static double host[ROUNDS], proxy[ROUNDS];
  static void *handles[EACH];
  for (int round = 0; round < ROUNDS; round++) {
    double began = now();
    for (int n = 0; n < EACH; n++) {
      void *call = NULL, *group = NULL;
      struct event_v5 of = {.type = EVENT_COLL_API};
      plugin->start(context, &call, &of);
      struct event_v5 of_group = {.type = EVENT_GROUP};
      plugin->start(context, &group, &of_group);
      struct event_v5 coll = {.type = EVENT_COLL, .parent = call};
      coll.coll = (struct coll){n, "AllReduce", 0, 0, 1024, 0, "ncclFloat32", 1, 4, "RING", "LL"};
      plugin->start(context, &handles[n], &coll);
      plugin->stop(handles[n]);
      plugin->stop(group);
    }
    double enqueued = now();
    for (int n = 0; n < EACH; n++) {
      void *channel = NULL;
      struct event_v5 of = {.type = EVENT_KERNEL_CH, .parent = handles[n]};
      union state_arguments at = {.device_ns = 1};
      plugin->start(context, &channel, &of);
      plugin->state(channel, STATE_KERNEL_CH_STOP, &at);
      plugin->stop(channel);
    }
    host[round] = (enqueued - began) / EACH;
    proxy[round] = (now() - enqueued) / EACH;
  }
  qsort(host, ROUNDS, sizeof *host, by_value);
  qsort(proxy, ROUNDS, sizeof *proxy, by_value);
  printf("{\"host_ns\": %.1f, \"proxy_ns\": %.1f, \"operations\": 4096}\n", host[ROUNDS / 2],
         proxy[ROUNDS / 2]);
  return 0;
}
