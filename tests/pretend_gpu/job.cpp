// One rank of a job over the pretended NCCL, without torch. It does what it reads, a line at a time:
//
//   comm NAME RANKS RANK       make a communicator
//   FUNCTION NAME COUNT        AllReduce of floats; AllGather, Broadcast of bytes from rank 0
//   send|recv NAME COUNT PEER  floats
//   capture, captured, replay  what stands between the first two is captured, and replayed
//   hold                       a kernel that never ends
//   sync, sleep MS, stop, exit wait for the device; rest; SIGSTOP for itself; end at once
//   destroy                    all communicators
//   say WORD                   to stdout
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "engine.h"
#include "nccl_api.h"

extern "C" {
ncclResult_t ncclCommInitRank(ncclComm_t*, int, ncclUniqueId, int);
ncclResult_t ncclCommDestroy(ncclComm_t);
ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t);
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
                           cudaStream_t);
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
}

static Stream g_stream;
static auto g_handle = reinterpret_cast<cudaStream_t>(&g_stream);
Stream* stream_of(cudaStream_t) { return &g_stream; }

static ncclUniqueId id_of(const std::string& job, const std::string& name) {
  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  memset(id.internal, '_', 32);
  memcpy(id.internal, (job + name).data(), std::min<size_t>(32, job.size() + name.size()));
  return id;
}

int main(int, char** argv) {
  std::map<std::string, ncclComm_t> comms;
  std::map<std::string, int> ranks;
  std::shared_ptr<Capture> capture;
  std::string line, word, name;
  for (size_t count; std::getline(std::cin, line);) {
    std::istringstream words(line);
    words >> word;
    if (word == "comm") {
      int size, rank;
      words >> name >> size >> rank;
      if (ncclCommInitRank(&comms[name], size, id_of(argv[1], name), rank)) return 2;
      ranks[name] = size;
    } else if (word == "capture") {
      capture = std::make_shared<Capture>(Capture{1});
      g_stream.capture = capture;
    } else if (word == "captured") {
      g_stream.capture = nullptr;
    } else if (word == "replay") {
      engine().launch(&g_stream, *capture);
    } else if (word == "hold") {
      engine().submit(&g_stream, [] {
        auto node = std::make_shared<Node>();
        node->over = [] { return false; };
        return node;
      });
    } else if (word == "sync") {
      engine().wait(&g_stream);
    } else if (word == "sleep") {
      words >> count;
      usleep(count * 1000);
    } else if (word == "stop") {
      raise(SIGSTOP);
    } else if (word == "exit") {
      _exit(0);
    } else if (word == "destroy") {
      for (auto& [_, comm] : comms) ncclCommDestroy(comm);
    } else if (word == "say") {
      words >> word;
      std::cout << word << std::endl;
    } else {
      words >> name >> count;
      ncclComm_t comm = comms.at(name);
      int peer = 0;
      words >> peer;
      float* data = new float[std::max<size_t>(count, 64)]();
      if (word == "AllReduce") {
        std::fill(data, data + count, 1.f);
        ncclAllReduce(data, data, count, ncclFloat32, ncclSum, comm, g_handle);
      } else if (word == "AllGather") {
        ncclAllGather(data, malloc(count * ranks.at(name)), count, ncclInt8, comm, g_handle);
      } else if (word == "Broadcast") {
        ncclBroadcast(data, data, count, ncclInt8, 0, comm, g_handle);
      } else if (word == "send") {
        ncclSend(data, count, ncclFloat32, peer, comm, g_handle);
      } else if (word == "recv") {
        ncclRecv(data, count, ncclFloat32, peer, comm, g_handle);
      } else {
        return 3;
      }
    }
  }
  _exit(0);
}
