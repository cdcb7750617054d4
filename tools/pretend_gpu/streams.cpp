// Streams and events of the pretended runtime.
#include <set>

#include "runtime.h"

namespace {
struct Event {
  NodePtr node;
  std::shared_ptr<Capture> capture;  // in which it was recorded
  double at = 0;
};
std::set<Stream*>& g_capturing = *new std::set<Stream*>();

// Work of the host, in the order of a stream.
void call_host(Stream* stream, const std::function<void()>& function) {
  engine().submit(stream, [=] {
    auto node = std::make_shared<Node>();
    node->host = true;
    node->begin = function;
    return node;
  });
}
}  // namespace

void begin_capture(Stream* stream, std::shared_ptr<Capture> capture) {
  std::lock_guard<std::mutex> g(engine().mutex);
  stream->capture = std::move(capture);
  g_capturing.insert(stream);
}
void end_capture(const std::shared_ptr<Capture>& capture) {
  std::lock_guard<std::mutex> g(engine().mutex);
  capture->ended = true;
  for (auto at = g_capturing.begin(); at != g_capturing.end();) {
    if ((*at)->capture != capture) {
      ++at;
      continue;
    }
    (*at)->capture = nullptr;
    at = g_capturing.erase(at);
  }
}

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
  if (stream_of(s)->capture) return cudaErrorStreamCaptureUnsupported;
  return answer(engine().idle(stream_of(s)) ? cudaSuccess : cudaErrorNotReady);
}
API cudaStreamSynchronize(cudaStream_t s) {
  if (stream_of(s)->capture) return cudaErrorStreamCaptureUnsupported;
  engine().wait(stream_of(s));
  return answer(cudaSuccess);
}
API cudaDeviceSynchronize() {
  engine().wait_for_all();
  return answer(cudaSuccess);
}
API cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  auto* event = reinterpret_cast<Event*>(e);
  NodePtr other;
  std::shared_ptr<Capture> capture;
  {
    std::lock_guard<std::mutex> g(engine().mutex);
    other = event->node;
    capture = event->capture;
  }
  Stream* stream = stream_of(s);
  if (capture && capture->ended) return cudaErrorCapturedEvent;
  if (capture) {  // this stream's work belongs to it, too
    begin_capture(stream, capture);
  } else if (stream->capture) {
    return cudaErrorStreamCaptureIsolation;
  } else if (other && !other->done) {
    engine().submit(stream, [=] {
      auto node = std::make_shared<Node>();
      node->after.push_back(other);
      return node;
    });
  }
  return cudaSuccess;
}
API cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void* data, unsigned) {
  call_host(stream_of(s), [=] { f(s, cudaSuccess, data); });
  return cudaSuccess;
}
API cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* data) {
  call_host(stream_of(s), [=] { f(data); });
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
  event->capture = stream->capture;
  event->at = now_s();
  event->node =
      !stream->capture && stream->newest && !stream->newest->done ? stream->newest : nullptr;
  return cudaSuccess;
}
API cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) {
  return cudaEventRecord(e, s);
}
API cudaEventQuery(cudaEvent_t e) {
  auto* event = reinterpret_cast<Event*>(e);
  std::lock_guard<std::mutex> g(engine().mutex);
  if (event->capture) return cudaErrorCapturedEvent;
  return answer(!event->node || event->node->done ? cudaSuccess : cudaErrorNotReady);
}
API cudaEventSynchronize(cudaEvent_t e) {
  NodePtr node;
  {
    std::lock_guard<std::mutex> g(engine().mutex);
    node = reinterpret_cast<Event*>(e)->node;
  }
  engine().wait(node);
  return answer(cudaSuccess);
}
API cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
  auto at = [](cudaEvent_t e) {
    auto* v = reinterpret_cast<Event*>(e);
    return v->node ? v->node->done_s : v->at;
  };
  *ms = float((at(b) - at(a)) * 1e3);
  return cudaSuccess;
}
