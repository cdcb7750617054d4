"""``python -m tools.pretend_gpu FOLDER -- COMMAND ...``: a command where torch sees eight GPUs."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tools.pretend_gpu.build import MissingToolError, build, environment


def main() -> None:
    """Make the folder where it is not there yet, then become the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.pretend_gpu", description=__doc__)
    parser.add_argument("--torch", default="2.13.0", help="its version, where it is to be fetched")
    parser.add_argument("folder", type=Path, help="2 GB: the CUDA build of torch and stand-ins")
    parser.add_argument("command", nargs="+", help="what to run; PRETEND_GPUS says how many GPUs")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        build(folder, arguments.torch)
    except MissingToolError as error:
        sys.exit(str(error))
    added = environment(folder)
    added["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", os.getcwd())
    os.environ.update(added)
    sys.stdout.flush()
    os.execvp(arguments.command[0], arguments.command)


main()
