// What a process does for its communicators beside the device: it delivers messages where sockets
// connect the members, notices that peers have gone, and tells a profiler plugin what the device
// has done. One thread does all of this; it stops with its process, and for each communicator at its
// first error.
#pragma once
#include <vector>

#include "transfer.h"

using Transfers = std::vector<std::shared_ptr<Transfer>>;

// Begins to do all this for a communicator.
void serve(ncclComm* comm);
// Waits until its operations have finished, and what they have posted has been delivered.
void drain(ncclComm* comm);

// Operations are about to be launched together: they are told of, and watched from now on.
void announce(const Transfers& transfers);
// Whether a graph has to announce its operations at each launch, which only the host can do.
bool is_announced(const ncclComm* comm);
