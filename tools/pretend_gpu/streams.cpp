// Streams, events and graphs of the pretended runtime. Graphs can be captured and launched, and do
// nothing.
#include <utility>

#include "runtime.h"

namespace {
thread_local cudaStreamCaptureMode g_mode = cudaStreamCaptureModeGlobal;

struct Event {
  NodePtr node;
  double at = 0;
};
}  // namespace

API cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int priority) {
  auto* t = new Stream();
  t->priority = priority;
  *s = reinterpret_cast<cudaStream_t>(t);
  return cudaSuccess;
}
API cudaStreamCreateWithFlags(cudaStream_t* s, unsigned f) {
  return cudaStreamCreateWithPriority(s, f, 0);
}
API cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithPriority(s, 0, 0); }
API cudaStreamGetPriority(cudaStream_t s, int* p) {
  *p = stream_of(s)->priority;
  return cudaSuccess;
}
API cudaStreamQuery(cudaStream_t s) {
  return engine().idle(stream_of(s)) ? cudaSuccess : cudaErrorNotReady;
}
API cudaStreamSynchronize(cudaStream_t s) {
  engine().wait(stream_of(s));
  return cudaSuccess;
}
API cudaDeviceSynchronize() {
  engine().wait_for_all();
  return cudaSuccess;
}
API cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  auto* event = reinterpret_cast<Event*>(e);
  NodePtr other;
  {
    std::lock_guard<std::mutex> g(engine().mutex);
    other = event->node;
  }
  if (other && !other->done) {
    auto node = std::make_shared<Node>();
    node->after.push_back(other);
    engine().enqueue(stream_of(s), node);
  }
  return cudaSuccess;
}
API cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void* data, unsigned) {
  auto node = std::make_shared<Node>();
  node->begin = [=] { f(s, cudaSuccess, data); };
  engine().enqueue(stream_of(s), node);
  return cudaSuccess;
}
API cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* data) {
  auto node = std::make_shared<Node>();
  node->begin = [=] { f(data); };
  engine().enqueue(stream_of(s), node);
  return cudaSuccess;
}
API cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* c) {
  *c = stream_of(s)->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* c, unsigned long long* id,
                             cudaGraph_t* g,
                             const cudaGraphNode_t** d SINCE_13(const cudaGraphEdgeData**),
                             size_t* n) {
  *c = stream_of(s)->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = 1;
  if (g) *g = reinterpret_cast<cudaGraph_t>(1);
  if (d) *d = nullptr;
  if (n) *n = 0;
  return cudaSuccess;
}
API cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  stream_of(s)->capturing = true;
  return cudaSuccess;
}
#if CUDART_VERSION >= 12030
API cudaStreamBeginCaptureToGraph(cudaStream_t s, cudaGraph_t, const cudaGraphNode_t*,
                                  const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode) {
  stream_of(s)->capturing = true;
  return cudaSuccess;
}
#endif
API cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* g) {
  stream_of(s)->capturing = false;
  *g = reinterpret_cast<cudaGraph_t>(1);
  return cudaSuccess;
}
API cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* m) {
  std::swap(*m, g_mode);
  return cudaSuccess;
}
API cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* n) {
  *n = 1;
  return cudaSuccess;
}
API cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t* SINCE_13(cudaGraphEdgeData*),
                                 size_t* n) {
  *n = 0;
  return cudaSuccess;
}
API cudaGraphInstantiateWithFlags(cudaGraphExec_t* e, cudaGraph_t, unsigned long long) {
  *e = reinterpret_cast<cudaGraphExec_t>(1);
  return cudaSuccess;
}

// events
API cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = reinterpret_cast<cudaEvent_t>(new Event());
  return cudaSuccess;
}
API cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
API cudaEventDestroy(cudaEvent_t e) {
  delete reinterpret_cast<Event*>(e);
  return cudaSuccess;
}
API cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  auto* event = reinterpret_cast<Event*>(e);
  std::lock_guard<std::mutex> g(engine().mutex);
  auto* stream = stream_of(s);

  event->at = now_s();
  event->node = stream->newest && !stream->newest->done ? stream->newest : nullptr;
  return cudaSuccess;
}
API cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) {
  return cudaEventRecord(e, s);
}
API cudaEventQuery(cudaEvent_t e) {
  auto* event = reinterpret_cast<Event*>(e);
  std::lock_guard<std::mutex> g(engine().mutex);
  return !event->node || event->node->done ? cudaSuccess : cudaErrorNotReady;
}
API cudaEventSynchronize(cudaEvent_t e) {
  NodePtr node;
  {
    std::lock_guard<std::mutex> g(engine().mutex);
    node = reinterpret_cast<Event*>(e)->node;
  }
  engine().wait(node);
  return cudaSuccess;
}
API cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
  auto at = [](cudaEvent_t e) {
    auto* v = reinterpret_cast<Event*>(e);
    return v->node ? v->node->done_s : v->at;
  };
  *ms = float((at(b) - at(a)) * 1e3);
  return cudaSuccess;
}
