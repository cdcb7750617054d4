// Graphs of the pretended runtime: what streams queue during a capture is executed at each launch.
#include <utility>

#include "runtime.h"

namespace {
thread_local cudaStreamCaptureMode g_mode = cudaStreamCaptureModeGlobal;

// A graph and its executables are the same; handles are never reused.
using Graph = std::shared_ptr<Capture>;
Graph& graph_of(void* handle) { return *static_cast<Graph*>(handle); }

cudaStreamCaptureStatus status(const Stream* stream) {
  return stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
}
}  // namespace

API cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* c) {
  *c = status(stream_of(s));
  return cudaSuccess;
}
API cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* c, unsigned long long* id,
                             cudaGraph_t* g,
                             const cudaGraphNode_t** d SINCE_13(const cudaGraphEdgeData**),
                             size_t* n) {
  const Stream* stream = stream_of(s);
  *c = status(stream);
  if (id) *id = stream->capture ? stream->capture->id : 0;
  if (g) *g = nullptr;  // nodes cannot be added to it
  if (d) *d = nullptr;
  if (n) *n = 0;
  return cudaSuccess;
}
API cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  static std::atomic<unsigned long long> captures{0};
  begin_capture(stream_of(s), std::make_shared<Capture>(Capture{++captures}));
  return cudaSuccess;
}
API cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* g) {
  auto* graph = new Graph(stream_of(s)->capture);
  if (!*graph) return cudaErrorIllegalState;
  end_capture(*graph);
  *g = reinterpret_cast<cudaGraph_t>(graph);
  return cudaSuccess;
}
API cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* m) {
  std::swap(*m, g_mode);
  return cudaSuccess;
}
// Kernels that do nothing are not kept; a graph of nothing else is not empty.
API cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t* nodes, size_t* n) {
  if (nodes) return cudaErrorNotSupported;
  *n = graph_of(g)->work.size() + 1;
  return cudaSuccess;
}
API cudaGraphInstantiateWithFlags(cudaGraphExec_t* e, cudaGraph_t g, unsigned long long) {
  *e = reinterpret_cast<cudaGraphExec_t>(new Graph(graph_of(g)));
  return cudaSuccess;
}
API cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
  engine().launch(stream_of(s), *graph_of(e));
  return cudaSuccess;
}
API cudaGraphDestroy(cudaGraph_t g) {
  delete &graph_of(g);
  return cudaSuccess;
}
API cudaGraphExecDestroy(cudaGraphExec_t e) {
  delete &graph_of(e);
  return cudaSuccess;
}
