"""What others than the ranks tell: the monitor, NCCL's RAS, torch elastic."""
