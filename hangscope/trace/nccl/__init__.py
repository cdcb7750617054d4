"""What NCCL told about the devices, brought together with the recorded operations."""
