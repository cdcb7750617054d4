"""Rank and world of this process, rendezvous, start and end of a distributed job.

**In**: the environment that a launcher has made, and the job's store once there is one. **Out**:
`WorldInfo`, process groups that were made or a failure that names the ranks, and a channel between
the monitors of a job's nodes.

* `world`, `hostlist` and `master` work out rank, world and the address that all ranks use, for
  torchrun, Slurm, Open MPI, Hydra and single processes, without communication; `mesh` names the
  parallel dimensions; `launch` is `init_distributed` and `destroy_distributed`;
* `relay` is the process in which torch's store is used for the monitor, which imports no torch;
  `letters` seals what goes through it; `tree` combines the reports of nodes on their way.

**Rules.** Every wait has a deadline. What comes out of the store is a claim: sealed, of limited
size, and checked.

**Imported by** the doctor, the monitor and the command line; imports `barriers`, `environments` and
`trace.digests`.
"""
