/* The file into which the plugin writes; `hangscope/ring/device_layout.py` describes it.
 *
 * No function here allocates, locks or makes a system call, except `device_ring_open`.
 */
#ifndef HANGSCOPE_DEVICE_RING_H
#define HANGSCOPE_DEVICE_RING_H

#include <stdint.h>

enum {
  RING_VERSION = 1,
  HEADER_BYTES = 4096,
  COMMUNICATORS = 1024,
  OPERATIONS = 4096,
  LINKS = 8192
};

enum { OPERATION_P2P = 1, OPERATION_REPLAYED = 2, OPERATION_GRAPH_UNKNOWN = 4 };

struct ring_header {
  char magic[8]; /* written last: a file without it is not yet a ring */
  uint32_t version, header_bytes;
  uint32_t communicator_bytes, communicator_count;
  uint32_t operation_bytes, operation_count;
  uint32_t link_bytes, link_count;
  uint64_t communicators_at, operations_at, links_at, file_bytes;
  int64_t created_ns;
  int32_t pid;
  uint32_t interface; /* the version of NCCL's profiler interface: 3 to 6 */
  char before_counters[1024 - 88];
  /* One cache line for each counter: different threads count. */
  uint64_t communicators_used, communicators_refused, rest_of_line[6];
  uint64_t operations_used, rest_of_line_2[7];
  uint64_t links_used, rest_of_line_3[7];
};

struct communicator {
  uint32_t commit; /* 1 once the entry is complete */
  int32_t ranks, rank, nodes; /* 0 ranks: NCCL does not say */
  uint64_t hash;
  int64_t created_ns, destroyed_ns;
  uint64_t collectives, pairs, replays; /* ever enqueued: not replayed ones, sends and receives,
                                            replayed collectives */
  int64_t proxy_ns; /* the newest event from a proxy thread */
  uint32_t proxy_state, reserved;
  char name[48];
};

struct operation {
  uint64_t id;
  uint64_t seq, count;
  int64_t enqueued_ns, begun_ns, ended_ns; /* host clock; 0: not yet */
  uint64_t device_begun_ns, device_ended_ns; /* device clock; of a graph replay: stale */
  uint32_t communicator; /* index + 1 */
  int32_t root_or_peer;
  uint16_t channels; /* 0: NCCL does not say */
  uint16_t channels_begun, channels_ended, flags;
  char func[16], datatype[12], algorithm[12];
  uint64_t commit; /* the id again, written last */
};

struct link { /* what a proxy does for one operation on one channel in one direction */
  uint64_t id, operation;
  int64_t changed_ns;
  int32_t peer; /* rank in the communicator */
  uint16_t channel;
  uint8_t is_send, state; /* NCCL's number of the newest step's state; 0: none yet */
  uint32_t steps, steps_begun, steps_ended, communicator;
  int64_t created_ns;
  uint64_t commit;
};

struct device_ring {
  struct ring_header *header;
  struct communicator *communicators;
  struct operation *operations;
  struct link *links;
};

int64_t now_ns(void);

/* The ring of this process, created at the first call; NULL without a path to write to, in a
 * process that was forked from the one which made it, or if the file cannot be made. */
struct device_ring *device_ring_open(uint32_t interface);

/* The ring of this process if there is one. */
struct device_ring *device_ring(void);

#endif
