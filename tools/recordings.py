"""The fixtures to record: which program, which fault, and what must be said of it.

The expectations were written from the programs, not from what HangScope said.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Recording:
    """One fixture.

    ``kind``: ``rings``, ``native`` (the dumps of torch's own recorder) or ``logs`` (what torchrun
    printed). ``at``: ``stall`` (nothing moves any more, or everybody has ended) or ``running``
    (after a few seconds, while it moves).
    """

    name: str
    story: str
    program: str
    fault: str
    world: int
    verdict: str
    culprits: tuple[int, ...] = ()
    playbook: str | None = None
    rank: int = 1
    kind: str = "rings"
    at: str = "stall"
    mention: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    kill_on_failure: bool = True
    skip_ranks: tuple[int, ...] = ()
    confidence: str | None = None


def _R(*args: object, **kwargs: object) -> Recording:  # noqa: N802
    return Recording(*args, **kwargs)  # type: ignore[arg-type]


RECORDINGS = (
    # -- data parallel ---------------------------------------------------------------------
    _R("d8-unused-parameters", "rank 1 skips a branch of the model once; DDP raises in its next step",
       "ddp", "unused", 4, "rank_crashed", (1,), "D8", mention=("RuntimeError",)),
    _R("d8-unused-in-last-step", "rank 2 skips a branch in the last step and goes on to the metrics while the others wait for its gradients",
       "ddp", "unused-last", 4, "deadlock_cycle", (2,), None, rank=2, mention=("validate",)),
    _R("d9-uneven-loader", "rank 1 has two batches less, destroys its group and ends",
       "ddp", "uneven", 4, "rank_exited", (1,), "D9", mention=("rank 1",)),
    _R("d22-uneven-loader-eval", "rank 3 has two batches less and is in validation while the others train",
       "ddp", "uneven-eval", 4, "deadlock_cycle", (3,), None, rank=3, mention=("validate",)),
    _R("d22-loader-asleep", "rank 2's loader reads from a mount that is gone",
       "ddp", "loader", 4, "missing_rank", (2,), "D22", rank=2, mention=("next_batch",)),
    _R("loader-asleep-16-ranks", "rank 11 of 16 reads from a mount that is gone",
       "ddp", "loader", 16, "missing_rank", (11,), "D22", rank=11, mention=("next_batch",)),
    _R("loader-lock", "rank 0 takes the lock of its cache twice",
       "ddp", "thread-lock", 2, "missing_rank", (0,), None, rank=0, mention=("lock_cache",)),
    _R("endless-loop", "rank 3 spins in a Python loop whose end was forgotten",
       "ddp", "spin", 4, "missing_rank", (3,), None, rank=3, mention=("augment",)),
    _R("gil-holder", "rank 1 sits in a C function that does not give the GIL back",
       "ddp", "gil", 4, "missing_rank", (1,), None, mention=("hold_the_gil", "GIL")),
    _R("stopped", "rank 2 is stopped by SIGSTOP",
       "ddp", "stop", 4, "missing_rank", (2,), None, rank=2, mention=("stopped",)),
    _R("d20-nan", "rank 1 raises because its loss is NaN",
       "ddp", "nan", 4, "rank_crashed", (1,), "D20", mention=("FloatingPointError", "NaN")),
    _R("d20-nan-skipped", "rank 1 skips a step because its loss is NaN, and is one step ahead of the others at the end",
       "ddp", "nan-skip", 4, "deadlock_cycle", (1,), None, mention=("validate",)),
    _R("d20-out-of-memory", "rank 2 cannot allocate a tensor",
       "ddp", "oom", 4, "rank_crashed", (2,), "D20", rank=2, mention=("allocate memory",)),
    _R("d20-exception", "rank 3 finds a sample without a label",
       "ddp", "raise", 4, "rank_crashed", (3,), "D20", rank=3, mention=("ValueError", "1337", "next_batch")),
    _R("d20-exception-no-launcher", "rank 0 raises and nothing ends the others",
       "ddp", "raise", 4, "rank_crashed", (0,), "D20", rank=0, mention=("ValueError",), kill_on_failure=False),
    _R("d20-sigkill", "rank 1 is killed with SIGKILL, torchrun stops the others",
       "ddp", "kill", 4, "rank_crashed", (1,), "D20", mention=("SIGKILL",)),
    _R("d20-sigkill-8-ranks", "rank 5 of 8 is killed with SIGKILL, nothing stops the others",
       "ddp", "kill", 8, "rank_crashed", (5,), "D20", rank=5, mention=("SIGKILL",), kill_on_failure=False),
    _R("d20-segfault", "rank 0 follows a null pointer",
       "ddp", "segfault", 2, "rank_crashed", (0,), "D20", rank=0, mention=("SIGSEGV",)),
    _R("exit-status-3", "rank 2 leaves by sys.exit(3)",
       "ddp", "exit-code", 4, "rank_crashed", (2,), "D20", rank=2, mention=("3",)),
    _R("os-exit", "rank 3 leaves through os._exit(0)",
       "ddp", "os-exit", 4, "rank_exited", (3,), None, rank=3),
    _R("d21-guarded-validation", "rank 0 alone validates",
       "ddp", "val-guard", 4, "shape_mismatch", (0,), "D21", rank=0, mention=("validate",)),
    _R("d21-guarded-logging", "rank 0 alone averages the loss for its log line",
       "ddp", "log-guard", 4, "shape_mismatch", (0,), "D21", rank=0, mention=("log_loss",)),
    _R("d21-guarded-checkpoint", "rank 0 alone calls the barrier of the checkpoint",
       "ddp", "ckpt-guard", 4, "collective_mismatch", (0,), "D21", rank=0, mention=("save_checkpoint", "barrier")),
    _R("checkpoint-on-full-disk", "rank 0 writes a checkpoint for ever while the others wait in its barrier",
       "ddp", "ckpt-slow", 4, "missing_rank", (0,), "D23", rank=0, mention=("write_shards",)),
    _R("d23-slow-but-alive", "rank 1 needs 0.7 s a step longer than the others",
       "ddp", "slow", 4, "healthy", at="running", extra=("--steps", "100")),
    _R("never-initialised", "rank 3 waits before init_process_group",
       "ddp", "no-init", 4, "missing_rank", (3,), None, rank=3, mention=("wait_for_ever",)),
    _R("never-started", "the process of rank 2 was never started",
       "ddp", "none", 4, "rank_lost", (2,), None, skip_ranks=(2,)),
    _R("lost-in-new-group", "rank 1 does not call new_group while the others are in it",
       "ddp", "new-group", 4, "missing_rank", (1,), None, mention=("new_group",)),
    _R("ahead-in-destroy", "rank 2 ends its epoch early, destroys its group and uploads its logs for ever",
       "ddp", "destroy", 4, "missing_rank", (2,), "D9", rank=2, mention=("upload_logs",)),
    _R("killed-before-destroy", "rank 1 is killed before the last barrier",
       "ddp", "destroy-kill", 4, "rank_crashed", (1,), "D20", mention=("SIGKILL",), kill_on_failure=False),
    _R("quiescent", "all ranks have finished the last barrier and upload logs for ever",
       "ddp", "quiescent", 4, "quiescent"),
    _R("wrapped-ring", "rank 1's loader sleeps after rings of 32 records have wrapped many times",
       "ddp", "loader", 4, "missing_rank", (1,), "D22", mention=("next_batch",), environment={"HANGSCOPE_BUFFER": "32"}),
    _R("wrapped-mismatch", "rank 2 calls another operation after rings of 24 records have wrapped",
       "mismatch", "op", 4, "collective_mismatch", (2,), "D19", rank=2, environment={"HANGSCOPE_BUFFER": "24"}),
    _R("no-stacks", "rank 2's loader sleeps, recorded without stacks",
       "ddp", "loader", 4, "missing_rank", (2,), None, rank=2, environment={"HANGSCOPE_STACKS": "0"}),
    _R("healthy-ddp", "data-parallel training to its end", "ddp", "none", 4, "healthy"),
    _R("healthy-ddp-running", "data-parallel training under way", "ddp", "none", 4, "healthy",
       at="running", extra=("--steps", "2000")),
    # -- each kind of mismatch --------------------------------------------------------------
    _R("d19-operation", "rank 2 broadcasts where the others all-reduce",
       "mismatch", "op", 4, "collective_mismatch", (2,), "D19", rank=2, mention=("broadcast", "all_reduce")),
    _R("d19-shape", "rank 1 reduces 12 elements, the others 8",
       "mismatch", "shape", 4, "shape_mismatch", (1,), "D19", mention=("12", "8")),
    _R("d19-dtype", "rank 3 reduces doubles, the others floats",
       "mismatch", "dtype", 4, "dtype_mismatch", (3,), "D19", rank=3, mention=("Double", "Float")),
    _R("d19-root", "rank 1 broadcasts from itself, the others from rank 0",
       "mismatch", "root", 4, "argument_mismatch", (1,), "D19", mention=("root",)),
    _R("d19-reduce-op", "rank 2 takes the maximum, the others the sum",
       "mismatch", "reduce-op", 4, "argument_mismatch", (2,), "D19", rank=2, mention=("MAX",)),
    _R("d19-extra-collective", "rank 1 reduces something more than the others",
       "mismatch", "extra", 4, "collective_mismatch", (1,), "D19", mention=("mix",)),
    _R("d19-skipped-collective", "rank 1 leaves a reduction out",
       "mismatch", "skipped", 4, "collective_mismatch", (1,), "D19", mention=("all_reduce",)),
    _R("d19-half-against-half", "ranks 2 and 3 broadcast, ranks 0 and 1 all-reduce: nothing decides",
       "mismatch", "half", 4, "collective_mismatch", (0, 1, 2, 3), "D19", confidence="ambiguous"),
    _R("d19-three-ways", "ranks 2 and 3 of six each reduce another size than the rest",
       "mismatch", "three-ways", 6, "shape_mismatch", (2, 3), "D19", rank=2),
    _R("d19-reduce-scatter", "rank 2 scatters its reduction, the others keep it whole",
       "mismatch", "gather-scatter", 4, "collective_mismatch", (2,), "D19", rank=2, mention=("reduce_scatter",)),
    _R("d19-object-collective", "rank 1 does not come to all_gather_object",
       "mismatch", "object", 4, "missing_rank", (1,), None, mention=("publish",)),
    _R("healthy-collectives", "all kinds of collectives to the end", "mismatch", "none", 4, "healthy"),
    # -- several groups ----------------------------------------------------------------------
    _R("order-inversion", "rank 2 uses two groups in the opposite order",
       "groups", "crossed", 6, "deadlock_cycle", (2,), "D19", rank=2),
    _R("order-inversion-8-ranks", "rank 5 of 8 uses two groups in the opposite order",
       "groups", "crossed", 8, "deadlock_cycle", (5,), "D19", rank=5),
    _R("order-inversion-halves", "odd ranks use two groups in the opposite order: nothing decides",
       "groups", "crossed-half", 4, "deadlock_cycle", (0, 1, 2, 3), "D19", confidence="ambiguous"),
    _R("grid-cascade", "rank 3's tokenizer waits; its row waits for it, and the columns for the row",
       "groups", "cascade", 8, "missing_rank", (3,), None, rank=3, mention=("tokenize",)),
    _R("grid-cascade-16-ranks", "rank 9 of 16 waits; rows and columns stand one after another",
       "groups", "cascade", 16, "missing_rank", (9,), None, rank=9, mention=("tokenize",)),
    _R("grid-mismatch", "rank 4 broadcasts in its column where the others all-reduce",
       "groups", "sub-op", 8, "collective_mismatch", (4,), "D19", rank=4, mention=("dp0", "broadcast")),
    _R("grid-crash", "rank 6 of 8 raises a device error",
       "groups", "crash", 8, "rank_crashed", (6,), "D20", rank=6, mention=("illegal memory access",)),
    _R("healthy-grid", "rows, columns and a global norm to the end", "groups", "none", 8, "healthy"),
    # -- pipelines -----------------------------------------------------------------------------
    _R("pipeline-skipped-send", "stage 1 forgets one send, the next stage waits for it",
       "pipeline", "skip-send", 4, "p2p_unmatched", (1,), "D19", mention=("recv",)),
    _R("pipeline-skipped-recv", "stage 2 forgets one recv and is ahead of its neighbour for ever",
       "pipeline", "skip-recv", 4, "p2p_unmatched", (2,), "D19", rank=2),
    _R("pipeline-circle", "every stage receives before it sends",
       "pipeline", "circle", 4, "deadlock_cycle", (0, 1, 2, 3), None, mention=("rotate",)),
    _R("pipeline-stage-asleep", "stage 2 of 6 waits in its forward pass; bubbles stop the others one by one",
       "pipeline", "asleep", 6, "missing_rank", (2,), None, rank=2, mention=("compute",)),
    _R("pipeline-killed", "stage 1 is killed with SIGKILL",
       "pipeline", "kill", 4, "rank_crashed", (1,), "D20", mention=("SIGKILL",), kill_on_failure=False),
    _R("pipeline-halo-skipped", "rank 2 leaves out its halo exchange, its neighbours wait",
       "pipeline", "batch-skip", 4, "p2p_unmatched", (2,), None, rank=2),
    _R("healthy-pipeline", "a pipeline to its end", "pipeline", "none", 4, "healthy"),
    # -- sharded and tensor parallel -------------------------------------------------------------
    _R("fsdp-cascade", "rank 1's file server does not answer; the others wait in an all-gather",
       "sharded", "loader", 4, "missing_rank", (1,), None, mention=("read_shard",)),
    _R("fsdp-skipped-layer", "rank 2 skips a block, so its all-gather is another's",
       "sharded", "skip-layer", 4, "shape_mismatch", (2,), "D19", rank=2),
    _R("fsdp-guarded-evaluation", "rank 0 alone evaluates, which under FSDP is a collective",
       "sharded", "eval-guard", 4, "shape_mismatch", (0,), None, rank=0, mention=("evaluate",)),
    _R("fsdp-killed", "rank 3 is killed in a forward pass",
       "sharded", "kill", 4, "rank_crashed", (3,), "D20", rank=3, mention=("SIGKILL",)),
    _R("hsdp-cascade", "rank 5 of a mesh of 4 replicas x 2 shards waits for its file server",
       "sharded", "loader", 8, "missing_rank", (5,), None, rank=5, extra=("--kind", "hsdp"), mention=("read_shard",)),
    _R("tensor-parallel-cascade", "rank 3 of 4 x 2 waits; its tensor-parallel peer and then all replicas stand",
       "sharded", "loader", 8, "missing_rank", (3,), None, rank=3, extra=("--kind", "tp"), mention=("read_shard",)),
    _R("tensor-parallel-crash", "rank 2 of 2 x 2 gets an input/output error",
       "sharded", "raise", 4, "rank_crashed", (2,), "D20", rank=2, extra=("--kind", "tp"), mention=("Input/output error",)),
    _R("healthy-fsdp", "FSDP2 to its end", "sharded", "none", 4, "healthy"),
    _R("healthy-tensor-parallel", "tensor x data parallel to its end", "sharded", "none", 4, "healthy", extra=("--kind", "tp")),
    # -- native dumps ----------------------------------------------------------------------------
    _R("native-loader-asleep", "rank 2's loader sleeps; torch's own recorder on every rank",
       "ddp", "loader", 4, "missing_rank", (2,), None, rank=2, kind="native"),
    _R("native-operation", "rank 1 broadcasts where the others all-reduce; torch's own recorder",
       "mismatch", "op", 4, "collective_mismatch", (1,), "D19", kind="native", mention=("broadcast",)),
    _R("native-shape", "rank 3 reduces another size; torch's own recorder",
       "mismatch", "shape", 4, "shape_mismatch", (3,), "D19", rank=3, kind="native"),
    _R("native-order-inversion", "rank 2 uses two groups in the opposite order; torch's own recorder",
       "groups", "crossed", 6, "deadlock_cycle", (2,), None, rank=2, kind="native"),
    _R("native-grid-cascade", "rank 5 of 8 waits; torch's own recorder",
       "groups", "cascade", 8, "missing_rank", (5,), None, rank=5, kind="native"),
    _R("native-pipeline-asleep", "stage 1 of 4 sleeps; torch's own recorder",
       "pipeline", "asleep", 4, "missing_rank", (1,), None, kind="native"),
    _R("native-one-dump-missing", "rank 2 was stopped and left no dump; the others did",
       "ddp", "stop", 4, "rank_lost", (2,), None, rank=2, kind="native"),
    _R("native-healthy", "dumps of a job that moves", "mismatch", "none", 4, "healthy",
       kind="native", at="running", extra=("--steps", "2000")),
    # -- logs only -------------------------------------------------------------------------------
    _R("log-exception", "all that is left is torchrun's log: rank 2 raised",
       "ddp", "raise", 4, "rank_crashed", (2,), "D20", rank=2, kind="logs", mention=("ValueError",)),
    _R("log-sigkill", "all that is left is torchrun's log: rank 1 was killed",
       "ddp", "kill", 4, "rank_crashed", (1,), "D20", kind="logs", mention=("SIGKILL",)),
    _R("log-detail-mismatch", "TORCH_DISTRIBUTED_DEBUG=DETAIL found that rank 1 calls something else",
       "mismatch", "op", 4, "collective_mismatch", (1,), "D19", kind="logs",
       environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "HANGS_TIMEOUT_S": "15"}),
    _R("log-detail-shape", "TORCH_DISTRIBUTED_DEBUG=DETAIL found that rank 3 brings another size",
       "mismatch", "shape", 4, "shape_mismatch", (3,), "D19", rank=3, kind="logs",
       environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "HANGS_TIMEOUT_S": "15"}),
    _R("log-monitored-barrier", "rank 2 sleeps; DETAIL's monitored barrier says who did not come",
       "ddp", "loader", 4, "missing_rank", (2,), None, rank=2, kind="logs",
       environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "HANGS_TIMEOUT_S": "8"}),
    _R("log-unused-parameters", "torchrun's log of the reducer's complaint on rank 1",
       "ddp", "unused", 4, "rank_crashed", (1,), "D8", kind="logs"),
)  # fmt: skip
