// What the pretended NCCL needs of CUDA's header, to be built without it.
#pragma once
typedef struct CUstream_st* cudaStream_t;
typedef enum { cudaSuccess = 0 } cudaError_t;
struct cudaGraphEdgeData;
#define CUDART_VERSION 13000
extern "C" cudaError_t cudaGetDevice(int* device);
