"""Reports on ranks by other parties: the monitor, NCCL's RAS, torch elastic, py-spy."""
