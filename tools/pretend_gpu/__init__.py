"""Runs torch's own NCCL code on a machine without a GPU.

``python -m tools.pretend_gpu FOLDER -- COMMAND ...`` runs a command with a CUDA build of torch on
top of stub libraries (`tools.pretend_gpu.build`).
"""
