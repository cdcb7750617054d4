// What the files of the pretended runtime share.
#pragma once
#include <cuda_runtime_api.h>

#include "engine.h"

#define API extern "C" cudaError_t

// A parameter that CUDA 13 has added.
#if CUDART_VERSION >= 13000
#define SINCE_13(parameter) , parameter
#else
#define SINCE_13(parameter)
#endif

// The stream behind a handle; null is the default stream of the thread's device.
Stream* stream_of(cudaStream_t handle);

// What a call returns that a device answers: once an assertion has failed on it, always that.
cudaError_t answer(cudaError_t otherwise);

// What a stream queues becomes part of a capture, or, for all its streams, does so no more.
void begin_capture(Stream* stream, std::shared_ptr<Capture> capture);
void end_capture(const std::shared_ptr<Capture>& capture);
