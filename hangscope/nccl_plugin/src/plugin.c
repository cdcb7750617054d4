/* A profiler plugin for NCCL that notes how far each operation has got on the device.
 *
 * Every function that NCCL calls, except `init`, must return success, so each one just leaves out
 * what it cannot note. Handles are numbers, not pointers: an event whose entry has been overwritten
 * in the meantime, or that is told in a forked child, is recognised and dropped.
 */
#include <string.h>
#include <unistd.h>

#include "device_ring.h"
#include "interface.h"

#define EXPORTED __attribute__((visibility("default")))

/* A handle: kind in the lowest 4 bits, then the id of an operation, link or communicator. */
enum kind { IGNORED, GROUP, CAPTURED_CALL, OPERATION, CHANNEL, LINK, STEP, CONTROL };

enum {
  MASK_V3 = EVENT_GROUP | EVENT_COLL | EVENT_P2P | EVENT_PROXY_OP | EVENT_PROXY_STEP |
            EVENT_PROXY_CTRL | EVENT_KERNEL_CH,
  MASK_V5 = MASK_V3 | EVENT_COLL_API | EVENT_P2P_API
};

static void *handle_of(enum kind kind, uint64_t id) {
  return (void *)(uintptr_t)(id << 4 | kind);
}

static enum kind kind_of(const void *handle) { return (enum kind)((uintptr_t)handle & 15); }

static uint64_t id_of(const void *handle) { return (uint64_t)(uintptr_t)handle >> 4; }

/* -- entries: each is found only as long as it is still the one that was meant ---------------- */

static struct communicator *communicator_at(struct device_ring *ring, uint64_t number) {
  return number >= 1 && number <= COMMUNICATORS ? &ring->communicators[number - 1] : NULL;
}

static struct operation *operation_at(struct device_ring *ring, uint64_t id) {
  struct operation *operation = &ring->operations[(id - 1) % OPERATIONS];
  return id && __atomic_load_n(&operation->commit, __ATOMIC_ACQUIRE) == id ? operation : NULL;
}

static struct link *link_at(struct device_ring *ring, uint64_t id) {
  struct link *link = &ring->links[(id - 1) % LINKS];
  return id && __atomic_load_n(&link->commit, __ATOMIC_ACQUIRE) == id ? link : NULL;
}

static void copy_text(char *to, size_t room, const char *from) {
  size_t length = from ? strnlen(from, room - 1) : 0;
  memcpy(to, from ? from : "", length);
  memset(to + length, 0, room - length);
}

/* Whatever a proxy thread tells shows that it lives. */
static int64_t proxy_lives(struct device_ring *ring, uint64_t number) {
  int64_t at_ns = now_ns();
  struct communicator *communicator = communicator_at(ring, number);
  if (communicator) __atomic_store_n(&communicator->proxy_ns, at_ns, __ATOMIC_RELAXED);
  return at_ns;
}

/* -- communicators ---------------------------------------------------------------------------- */

static nccl_result new_communicator(void **context, uint32_t interface, const char *name,
                                    uint64_t hash, int nodes, int ranks, int rank) {
  *context = NULL;
  struct device_ring *ring = device_ring_open(interface);
  if (ring == NULL) return NCCL_SYSTEM_ERROR;
  uint64_t index = __atomic_fetch_add(&ring->header->communicators_used, 1, __ATOMIC_RELAXED);
  if (index >= COMMUNICATORS) {
    __atomic_fetch_add(&ring->header->communicators_refused, 1, __ATOMIC_RELAXED);
    return NCCL_SUCCESS;
  }
  struct communicator *new = &ring->communicators[index];
  new->ranks = ranks;
  new->rank = rank;
  new->nodes = nodes;
  new->hash = hash;
  new->created_ns = now_ns();
  copy_text(new->name, sizeof new->name, name);
  __atomic_store_n(&new->commit, 1, __ATOMIC_RELEASE);
  *context = (void *)(uintptr_t)(index + 1);
  return NCCL_SUCCESS;
}

static nccl_result finalize(void *context) {
  struct device_ring *ring = device_ring();
  struct communicator *communicator = ring ? communicator_at(ring, (uintptr_t)context) : NULL;
  if (communicator) __atomic_store_n(&communicator->destroyed_ns, now_ns(), __ATOMIC_RELEASE);
  return NCCL_SUCCESS;
}

/* -- events ----------------------------------------------------------------------------------- */

struct new_operation {
  uint64_t communicator, seq, count;
  const char *func, *datatype, *algorithm;
  int root_or_peer;
  uint16_t channels, flags;
};

static uint64_t *counter_for(struct communicator *communicator, uint16_t flags) {
  if (flags & OPERATION_P2P) return &communicator->pairs;
  return flags & OPERATION_REPLAYED ? &communicator->replays : &communicator->collectives;
}

static void *enqueued(struct device_ring *ring, const struct new_operation *of) {
  uint64_t id = __atomic_add_fetch(&ring->header->operations_used, 1, __ATOMIC_RELAXED);
  struct operation *new = &ring->operations[(id - 1) % OPERATIONS];
  __atomic_store_n(&new->commit, 0, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  new->id = id;
  new->seq = of->seq;
  new->count = of->count;
  new->enqueued_ns = now_ns();
  new->begun_ns = new->ended_ns = 0;
  new->device_begun_ns = new->device_ended_ns = 0;
  new->communicator = (uint32_t)of->communicator;
  new->root_or_peer = of->root_or_peer;
  new->channels = of->channels;
  new->channels_begun = new->channels_ended = 0;
  new->flags = of->flags;
  copy_text(new->func, sizeof new->func, of->func);
  copy_text(new->datatype, sizeof new->datatype, of->datatype);
  copy_text(new->algorithm, sizeof new->algorithm, of->algorithm);
  __atomic_store_n(&new->commit, id, __ATOMIC_RELEASE);
  struct communicator *communicator = communicator_at(ring, of->communicator);
  if (communicator) __atomic_fetch_add(counter_for(communicator, of->flags), 1, __ATOMIC_RELEASE);
  return handle_of(OPERATION, id);
}

static uint16_t flags_of(const void *parent, uint32_t interface) {
  if (interface < 5) return OPERATION_GRAPH_UNKNOWN;
  return kind_of(parent) == CAPTURED_CALL ? OPERATION_REPLAYED : 0;
}

/* NCCL's names begin with "nccl". */
static const char *bare(const char *datatype) {
  return datatype && strncmp(datatype, "nccl", 4) == 0 ? datatype + 4 : datatype;
}

static void *start_coll(struct device_ring *ring, void *context, const struct coll *coll,
                        uint16_t flags) {
  struct new_operation new = {
      .communicator = (uintptr_t)context,
      .seq = coll->seq,
      .count = coll->count,
      .func = coll->func,
      .datatype = bare(coll->datatype),
      .algorithm = coll->algorithm,
      .root_or_peer = coll->root,
      .channels = coll->channels,
      .flags = flags,
  };
  return enqueued(ring, &new);
}

static void *start_p2p(struct device_ring *ring, void *context, const struct p2p *p2p,
                       uint16_t channels, uint16_t flags) {
  struct new_operation new = {
      .communicator = (uintptr_t)context,
      .count = p2p->count,
      .func = p2p->func,
      .datatype = bare(p2p->datatype),
      .root_or_peer = p2p->peer,
      .channels = channels,
      .flags = flags | OPERATION_P2P,
  };
  return enqueued(ring, &new);
}

/* The device has begun an operation on one channel. */
static void *start_channel(struct device_ring *ring, const void *parent, uint64_t device_ns) {
  struct operation *operation =
      kind_of(parent) == OPERATION ? operation_at(ring, id_of(parent)) : NULL;
  if (operation == NULL) return NULL;
  int64_t at_ns = proxy_lives(ring, operation->communicator);
  if (__atomic_fetch_add(&operation->channels_begun, 1, __ATOMIC_RELAXED) == 0) {
    operation->device_begun_ns = device_ns;
    __atomic_store_n(&operation->begun_ns, at_ns, __ATOMIC_RELEASE);
  }
  return handle_of(CHANNEL, id_of(parent));
}

/* The device has ended an operation on one channel. */
static void stop_channel(struct device_ring *ring, const void *handle) {
  struct operation *operation = operation_at(ring, id_of(handle));
  if (operation == NULL) return;
  int64_t at_ns = proxy_lives(ring, operation->communicator);
  uint16_t ended = __atomic_add_fetch(&operation->channels_ended, 1, __ATOMIC_RELAXED);
  if (ended == operation->channels)
    __atomic_store_n(&operation->ended_ns, at_ns, __ATOMIC_RELEASE);
}

static void *start_proxy_op(struct device_ring *ring, void *context, const void *parent,
                            const struct proxy_op *of) {
  /* A proxy may work for another process, whose handles mean nothing here. */
  if (of->pid != ring->header->pid || kind_of(parent) != OPERATION) return NULL;
  int64_t at_ns = proxy_lives(ring, (uintptr_t)context);
  uint64_t id = __atomic_add_fetch(&ring->header->links_used, 1, __ATOMIC_RELAXED);
  struct link *new = &ring->links[(id - 1) % LINKS];
  __atomic_store_n(&new->commit, 0, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  new->id = id;
  new->operation = id_of(parent);
  new->created_ns = new->changed_ns = at_ns;
  new->peer = of->peer;
  new->channel = of->channel;
  new->is_send = of->is_send != 0;
  new->state = 0;
  new->steps = (uint32_t)of->steps;
  new->steps_begun = new->steps_ended = 0;
  new->communicator = (uint32_t)(uintptr_t)context;
  __atomic_store_n(&new->commit, id, __ATOMIC_RELEASE);
  return handle_of(LINK, id);
}

static void *start_step(struct device_ring *ring, const void *parent) {
  struct link *link = kind_of(parent) == LINK ? link_at(ring, id_of(parent)) : NULL;
  if (link == NULL) return NULL;
  link->changed_ns = proxy_lives(ring, link->communicator);
  __atomic_fetch_add(&link->steps_begun, 1, __ATOMIC_RELAXED);
  return handle_of(STEP, id_of(parent));
}

static void stop_step(struct device_ring *ring, const void *handle) {
  struct link *link = link_at(ring, id_of(handle));
  if (link == NULL) return;
  link->changed_ns = proxy_lives(ring, link->communicator);
  __atomic_fetch_add(&link->steps_ended, 1, __ATOMIC_RELAXED);
}

static nccl_result stop(void *handle) {
  struct device_ring *ring = device_ring();
  if (ring == NULL) return NCCL_SUCCESS;
  if (kind_of(handle) == CHANNEL) stop_channel(ring, handle);
  if (kind_of(handle) == STEP) stop_step(ring, handle);
  return NCCL_SUCCESS;
}

static nccl_result state(void *handle, int state, union state_arguments *arguments) {
  struct device_ring *ring = device_ring();
  if (ring == NULL) return NCCL_SUCCESS;
  if (kind_of(handle) == STEP) {
    struct link *link = link_at(ring, id_of(handle));
    if (link == NULL) return NCCL_SUCCESS;
    link->changed_ns = proxy_lives(ring, link->communicator);
    __atomic_store_n(&link->state, (uint8_t)state, __ATOMIC_RELEASE);
  } else if (kind_of(handle) == CONTROL) {
    struct communicator *communicator = communicator_at(ring, id_of(handle));
    proxy_lives(ring, id_of(handle));
    if (communicator) communicator->proxy_state = (uint32_t)state;
  } else if (kind_of(handle) == CHANNEL && state == STATE_KERNEL_CH_STOP && arguments) {
    struct operation *operation = operation_at(ring, id_of(handle));
    if (operation && operation->device_ended_ns < arguments->device_ns)
      operation->device_ended_ns = arguments->device_ns;
  }
  return NCCL_SUCCESS;
}

/* The events that are the same in all versions. */
static void *start_other(struct device_ring *ring, void *context, uint64_t type, void *parent,
                         const struct proxy_op *proxy_op, uint64_t device_ns) {
  switch (type) {
    case EVENT_GROUP: return handle_of(GROUP, 1);
    case EVENT_PROXY_OP: return start_proxy_op(ring, context, parent, proxy_op);
    case EVENT_PROXY_STEP: return start_step(ring, parent);
    case EVENT_PROXY_CTRL: return handle_of(CONTROL, (uintptr_t)context);
    case EVENT_KERNEL_CH: return start_channel(ring, parent, device_ns);
    default: return NULL;
  }
}

/* -- version 3: each event names its communicator ---------------------------------------------- */

static nccl_result init_v3(void **context, int *mask) {
  *mask = MASK_V3;
  return new_communicator(context, 3, NULL, 0, 0, 0, 0);
}

static void identify(struct device_ring *ring, void *context, const struct event_v3 *of) {
  struct communicator *communicator = communicator_at(ring, (uintptr_t)context);
  if (communicator == NULL || communicator->hash) return;
  communicator->rank = of->rank;
  copy_text(communicator->name, sizeof communicator->name, of->of.name);
  __atomic_store_n(&communicator->hash, of->of.hash, __ATOMIC_RELEASE);
}

static nccl_result start_v3(void *context, void **handle, struct event_v3 *of) {
  struct device_ring *ring = device_ring();
  *handle = NULL;
  if (ring == NULL || context == NULL) return NCCL_SUCCESS;
  if (of->type == EVENT_COLL || of->type == EVENT_P2P) identify(ring, context, of);
  if (of->type == EVENT_COLL)
    *handle = start_coll(ring, context, &of->coll, flags_of(NULL, 3));
  else if (of->type == EVENT_P2P)
    *handle = start_p2p(ring, context, &of->p2p, 0, flags_of(NULL, 3));
  else
    *handle = start_other(ring, context, of->type, of->parent, &of->proxy_op, 0);
  return NCCL_SUCCESS;
}

/* -- version 4, and versions 5 and 6, which tell of calls that a graph captured ---------------- */

static nccl_result init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes,
                           int ranks, int rank, log_function log) {
  (void)log;
  *mask = MASK_V3;
  return new_communicator(context, 4, name, hash, nodes, ranks, rank);
}

static nccl_result init_v5(void **context, uint64_t hash, int *mask, const char *name, int nodes,
                           int ranks, int rank, log_function log) {
  (void)log;
  *mask = MASK_V5;
  return new_communicator(context, 5, name, hash, nodes, ranks, rank);
}

static nccl_result init_v6(void **context, uint64_t hash, int *mask, const char *name, int nodes,
                           int ranks, int rank, log_function log) {
  (void)log;
  *mask = MASK_V5;
  return new_communicator(context, 6, name, hash, nodes, ranks, rank);
}

#define START_FROM_V4(name, event, interface)                                             \
  static nccl_result name(void *context, void **handle, struct event *of) {               \
    struct device_ring *ring = device_ring();                                             \
    *handle = NULL;                                                                       \
    if (ring == NULL || context == NULL) return NCCL_SUCCESS;                             \
    uint16_t flags = flags_of(of->parent, interface);                                     \
    if (of->type == EVENT_COLL)                                                           \
      *handle = start_coll(ring, context, &of->coll, flags);                              \
    else if (of->type == EVENT_P2P)                                                       \
      *handle = start_p2p(ring, context, &of->p2p, of->p2p.channels, flags);              \
    else if ((interface) >= 5 && of->type == EVENT_COLL_API)                              \
      *handle = of->coll_api.captured ? handle_of(CAPTURED_CALL, 1) : NULL;               \
    else if ((interface) >= 5 && of->type == EVENT_P2P_API)                               \
      *handle = of->p2p_api.captured ? handle_of(CAPTURED_CALL, 1) : NULL;                \
    else                                                                                  \
      *handle = start_other(ring, context, of->type, of->parent, &of->proxy_op,           \
                            of->kernel_ch.device_ns);                                     \
    return NCCL_SUCCESS;                                                                  \
  }

START_FROM_V4(start_v4, event_v4, 4)
START_FROM_V4(start_v5, event_v5, 5)

EXPORTED struct profiler_v3 ncclProfiler_v3 = {"HangScope", init_v3, start_v3, stop, state,
                                               finalize};
EXPORTED struct profiler_v4 ncclProfiler_v4 = {"HangScope", init_v4, start_v4, stop, state,
                                               finalize};
EXPORTED struct profiler_v5 ncclProfiler_v5 = {"HangScope", init_v5, start_v5, stop, state,
                                               finalize};
EXPORTED struct profiler_v5 ncclProfiler_v6 = {"HangScope", init_v6, start_v5, stop, state,
                                               finalize};
