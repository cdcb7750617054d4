"""torch's own NCCL code on a machine without a GPU.

``python -m tools.pretend_gpu FOLDER -- COMMAND ...`` runs a command with a CUDA build of torch. The
libraries below it are stand-ins (`tools.pretend_gpu.build`).
"""
