"""The recorder's public functions: start, stop, dump, record, phase."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hangscope.recording import device_events
from hangscope.recording.identity import (
    place_from_arguments,
    ring_identity,
    run_directory,
    run_id_from_environment,
)
from hangscope.recording.markers import MONITOR_OF
from hangscope.recording.monitor_start import MonitorStart, is_first_of_node
from hangscope.recording.native_dumps import keep_native_dumps
from hangscope.recording.ring_location import discard, open_ring
from hangscope.recording.session import Session
from hangscope.recording.settings import settings_from_process
from hangscope.recording.warn_once import warn_once
from hangscope.recording.watcher import HEARTBEAT_INTERVAL_S
from hangscope.ring.job_place import JobPlace, place_from_environment
from hangscope.ring.process_identity import OWNER
from hangscope.ring.run_directory import opened

_session: Session | None = None
_dumps_variable: str | None = None


def current_session() -> Session | None:
    """This process's active recording, or None; a parent's recording does not count after fork."""
    session = _session
    if session is None or session.pid != os.getpid():
        return None
    return session


def start(*, rank: int = -1, world_size: int = -1) -> bool:
    """Begin recording in this process: what ``HANGSCOPE=1`` does at the end of ``import torch``.

    Parameters
    ----------
    rank, world_size:
        Used if neither launcher variables nor a process group tell this process's rank.

    Returns
    -------
    bool
        Whether this process is recording now. On failure, prints one line to stderr and returns
        False; never raises and never stops the job.
    """
    global _session, _dumps_variable
    if current_session() is not None:
        return True
    try:
        settings = settings_from_process()
        place = _place(rank, world_size)
        run_id = run_id_from_environment(os.environ)
        directory, own_choice = run_directory(os.environ, run_id)
        identity = ring_identity(
            place,
            run_id,
            timeout_s=settings.timeout_s,
            heartbeat_interval_s=HEARTBEAT_INTERVAL_S,
        )
        ring = open_ring(directory, identity, settings.buffer)
        try:
            session = Session(ring, settings, start)
            session.start()
        except BaseException:
            discard(directory, ring)  # it would look like a rank that never issued anything
            raise
    except Exception as error:
        warn_once(f"not recording, the job goes on: {_explain(error)}{_advice(error)}")
        return False
    _session = session
    os.environ[OWNER] = str(os.getpid())
    try:
        _dumps_variable = keep_native_dumps(directory, os.environ, identity.torch_version)
    except Exception as error:
        warn_once(f"torch's own dumps stay where they are: {_explain(error)}")
    if settings.nccl_plugin:
        first = place.local_rank == 0
        say = warn_once if first else lambda line: None
        try:
            device_events.switch_on(os.environ, ring.path, os.getpid(), say)
        except Exception as error:
            warn_once(f"NCCL's plugin is not loaded: {_explain(error)}")
    try:
        monitor = MonitorStart(directory, run_id, place, settings, link=own_choice)
        if is_first_of_node(place, ring.path):
            monitor.start()
        elif place.is_numbered and monitor.is_wanted:
            session.watcher.on_beats.append(monitor.stand_in(ring.path))
    except Exception as error:
        warn_once(f"no monitor: {_explain(error)}; the recording goes on without one")
    return True


def stop() -> None:
    """End recording in this process; what was recorded stays in the run directory."""
    global _session
    session, _session = current_session(), None
    if session is not None:
        os.environ.pop(OWNER, None)
        os.environ.pop(MONITOR_OF, None)
        if _dumps_variable is not None:
            os.environ.pop(_dumps_variable, None)
        for end in (session.stop, partial(device_events.switch_off, os.environ)):
            try:
                end()
            except Exception as error:
                session.guard(error)


def dump(path: str | os.PathLike[str] | None = None) -> Path:
    """Write this rank's record now, as a Flight Recorder dump (version 2.10).

    Parameters
    ----------
    path:
        File to write; by default ``flight_recorder_<rank>`` in the run directory.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    RuntimeError
        If this process does not record.
    """
    session = current_session()
    if session is None:
        raise RuntimeError(
            "this process does not record; set HANGSCOPE=1 or call hangscope.start()"
        )
    from hangscope.report.flight_recorder import dump_bytes  # lazily: only on request
    from hangscope.trace.merging.merge import merge
    from hangscope.trace.rings.read import read_ring

    session.recorder.catch_up()
    fragment = read_ring(session.ring.path)
    rank = fragment.facts.rank
    dumped = dump_bytes(merge([fragment]), rank)
    if path is not None:
        Path(path).write_bytes(dumped)
        return Path(path)
    target = session.ring.path.with_name(f"flight_recorder_{rank}")
    with opened(target.parent) as folder, open(folder.fresh_file(target.name), "wb") as file:
        file.write(dumped)
    return target


@contextlib.contextmanager
def phase(name: str, detail: str = "") -> Iterator[None]:
    """Say what this rank is doing outside collectives, for the duration of a block.

    Costs two stores; does nothing if this process is not recording.
    """
    session = current_session()
    if session is None or session.failed:
        yield
        return
    key = None
    try:
        key = session.phases.enter(name, detail)
    except Exception as error:
        session.guard(error)
    try:
        yield
    finally:
        try:
            if key is not None and not session.failed:
                session.phases.leave(key)
        except Exception as error:
            session.guard(error)


@contextlib.contextmanager
def record(
    operation: str,
    tensors: Any = (),
    *,
    group: Any = None,
    ranks: Sequence[int] | None = None,
    desc: str = "",
) -> Iterator[None]:
    """Record an operation that bypasses ``torch.distributed`` (pynccl, NVSHMEM, custom kernels).

    Parameters
    ----------
    operation:
        ``"<backend>:<operation>"``, such as ``"pynccl:all_reduce"``.
    tensors:
        A tensor or a sequence of tensors; only shapes and dtypes are read.
    group:
        The process group whose members take part, or a name of your own for the communicator.
    ranks:
        Global ranks that take part; by default those of ``group``, or of the whole job.
    desc:
        A description of the communicator.

    The operation counts as complete when the block ends. End the block when the result is known to
    be available, or accept that "complete" means "issued".
    """
    session = current_session()
    if session is None or session.failed:
        yield
        return
    token = None
    try:
        token = session.manual().begin(operation, tensors, group, ranks, desc)
    except Exception as error:
        session.guard(error)
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        try:
            if token is not None and not session.failed:
                session.manual().end(token, succeeded=succeeded)
        except Exception as error:
            session.guard(error)


def _place(rank: int, world_size: int) -> JobPlace:
    if rank < 0:
        rank, world_size = _place_in_default_group() or (rank, world_size)
    place = place_from_environment(os.environ)
    if place is not None and (rank < 0 or rank == place.rank):
        return place
    rank = max(rank, 0)
    return place_from_arguments(rank, max(world_size, rank + 1), os.environ)


def _place_in_default_group() -> tuple[int, int] | None:
    """Rank and world size if the default group was created before recording began."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.get_rank(), dist.get_world_size()


def _advice(error: BaseException) -> str:
    """What the user can do if the run directory is the problem."""
    if isinstance(error, OSError) and error.filename:
        return "; set HANGSCOPE_DIR to a directory with room that this user may write"
    return ""


def _explain(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"
