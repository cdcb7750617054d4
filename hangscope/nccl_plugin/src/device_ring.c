#include "device_ring.h"

#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(struct communicator) == 128, "the reader's size of a communicator");
_Static_assert(sizeof(struct operation) == 128, "the reader's size of an operation");
_Static_assert(sizeof(struct link) == 64, "the reader's size of a link");
_Static_assert(offsetof(struct ring_header, communicators_used) == 1024, "as the reader has it");
_Static_assert(offsetof(struct ring_header, links_used) == 1152, "as the reader has it");
_Static_assert(sizeof(struct ring_header) <= HEADER_BYTES, "the header has outgrown its place");

static const char PATH_VARIABLE[] = "HANGSCOPE_INTERNAL_DEVICE_RING";
static const char MAGIC[8] = {'H', 'S', 'N', 'C', 'C', 'L', 0, 1};

static struct device_ring ring;
static struct device_ring *active; /* NULL while nothing may be written */
static int tried;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

struct device_ring *device_ring(void) {
  return __atomic_load_n(&active, __ATOMIC_ACQUIRE);
}

/* In a forked child: the file is the parent's. A rank that the child becomes has its own path. */
static void forked(void) {
  active = NULL;
  tried = 0;
  pthread_mutex_init(&opening, NULL);
}

static void describe(struct ring_header *header, uint32_t interface, uint64_t bytes) {
  header->version = RING_VERSION;
  header->header_bytes = HEADER_BYTES;
  header->communicator_bytes = sizeof(struct communicator);
  header->communicator_count = COMMUNICATORS;
  header->operation_bytes = sizeof(struct operation);
  header->operation_count = OPERATIONS;
  header->link_bytes = sizeof(struct link);
  header->link_count = LINKS;
  header->communicators_at = HEADER_BYTES;
  header->operations_at = header->communicators_at + sizeof(struct communicator) * COMMUNICATORS;
  header->links_at = header->operations_at + sizeof(struct operation) * OPERATIONS;
  header->file_bytes = bytes;
  header->created_ns = now_ns();
  header->pid = getpid();
  header->interface = interface;
  uint64_t magic;
  memcpy(&magic, MAGIC, sizeof magic);
  __atomic_store_n((uint64_t *)(void *)header->magic, magic, __ATOMIC_RELEASE);
}

/* Its blocks are reserved now, so a full disk shows here and not as a SIGBUS in training. */
static void *mapped(const char *path, uint64_t bytes) {
  int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return NULL;
  void *memory = MAP_FAILED;
  if (posix_fallocate(file, 0, (off_t)bytes) == 0)
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  close(file);
  if (memory != MAP_FAILED) return memory;
  unlink(path);
  return NULL;
}

/* The path for this very process: children inherit the variable, "PID:PATH", but not the file. */
static const char *own_path(void) {
  const char *given = getenv(PATH_VARIABLE);
  char *rest = NULL;
  if (given == NULL || strtol(given, &rest, 10) != getpid()) return NULL;
  return rest[0] == ':' && rest[1] == '/' ? rest + 1 : NULL;
}

static struct device_ring *create(uint32_t interface) {
  const char *path = own_path();
  if (path == NULL) return NULL;
  uint64_t bytes = HEADER_BYTES + sizeof(struct communicator) * COMMUNICATORS +
                   sizeof(struct operation) * OPERATIONS + sizeof(struct link) * LINKS;
  char *memory = mapped(path, bytes);
  if (memory == NULL) return NULL;
  ring.header = (struct ring_header *)(void *)memory;
  describe(ring.header, interface, bytes);
  ring.communicators = (struct communicator *)(void *)(memory + ring.header->communicators_at);
  ring.operations = (struct operation *)(void *)(memory + ring.header->operations_at);
  ring.links = (struct link *)(void *)(memory + ring.header->links_at);
  static int watched;
  if (!watched++ && pthread_atfork(NULL, NULL, forked) != 0) return NULL;
  return &ring;
}

struct device_ring *device_ring_open(uint32_t interface) {
  pthread_mutex_lock(&opening);
  if (!tried) {
    tried = 1;
    __atomic_store_n(&active, create(interface), __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&opening);
  return device_ring();
}
