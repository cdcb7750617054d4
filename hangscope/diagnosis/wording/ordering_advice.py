"""Fixes for ranks that issue different operations, or the same ones in different orders."""

from __future__ import annotations

from hangscope.diagnosis.wording.playbook import Advice


def mismatch(aspect: str, *, guarded: bool = False) -> Advice:
    """Members that issued incompatible operations; ``aspect`` is that of the `Mismatch`.

    ``guarded``: one side's call site was never reached by the other side.
    """
    if aspect == "op":
        if guarded:
            return Advice(
                "run the collective on every rank, or on none, and guard only its side effect "
                "with `if rank == 0`",
                "D21, D19",
            )
        return Advice("make every member issue the same operations in the same order", "D19, D21")
    if aspect == "numel":
        return Advice(
            "give every member tensors of the same size: pad the last batch, or gather the sizes "
            "first",
            "D19, D22",
        )
    if aspect == "dtype":
        return Advice(
            "cast to one dtype before the collective; under FSDP set param, reduce and buffer "
            "dtypes alike on every rank",
            "D14, D19",
        )
    if aspect == "device":
        return Advice(
            "move the tensors to the same device on every member: a group with a backend for each "
            "(cpu:gloo,cuda:nccl) silently accepts either",
            "D19",
        )
    if aspect == "history":
        return Advice(
            "record more (HANGSCOPE_BUFFER) and run again: the first difference has been "
            "overwritten",
            "D19",
        )
    if aspect == "root":
        return Advice(
            "pass the same src or dst on every member: it is a global rank, even in a subgroup "
            "(dist.get_global_rank, or group_src and group_dst)",
            "D19",
        )
    return Advice("pass the same reduce operation on every member", "D19")


def out_of_step(ranks: str) -> Advice:
    """``ranks`` are at a line where the others have been before."""
    return Advice(
        f"all ranks run that line: look for what made {ranks} repeat or skip an operation "
        "(a caught exception, a retry, `continue`, a different number of steps)",
        "D19, D20",
    )


def left_out(ranks: str, title: str) -> Advice:
    """``ranks`` reached something else without ``title``, in which others wait for them."""
    return Advice(
        f"look for what made {ranks} skip or postpone {title} (a branch, a caught exception, "
        "`continue`): all ranks must use the groups, and issue their sends and receives, in the "
        "same order",
        "D19, D21",
    )


def left_block(ranks: str) -> Advice:
    """``ranks`` are in the ``__exit__`` of a ``with`` block that the others are still inside."""
    return Advice(
        f"look for an exception that ended the `with` block on {ranks} alone: what runs when a "
        "block ends must not wait for the others",
        "D20, D19",
    )


def one_of_many(ranks: str) -> Advice:
    """Sizes differ at a line that issues a different size each time, like a loop over
    parameters."""
    return Advice(
        f"that line passes a different size each time: look for what {ranks} skipped, repeated or "
        "took in a different order there (a missing key, a skipped layer, a layer or buffer that "
        "depends on train or eval mode, iteration over a set)",
        "D19, D8",
    )


def finalizer() -> Advice:
    """A collective in ``__del__``."""
    return Advice(
        "move the collective out of __del__: Python frees objects at different moments on each "
        "rank; close them explicitly, on all ranks in the same step",
        "D19, D21",
    )


def world_again(ranks: str) -> Advice:
    """Default groups, one created later than the other."""
    return Advice(
        f"{ranks} and the others are in different worlds: call destroy_process_group and "
        "init_process_group again on all ranks, or on none",
        "D19, D21",
    )


def guarded_or_early(ranks: str) -> Advice:
    """``ranks`` are at a line that is new to all, while the others repeat what all have done."""
    return Advice(
        "run the collective on every rank, or on none, and guard only its side effect with "
        f"`if rank == 0`; if it comes after a loop, {ranks} left that loop early or skipped a step "
        "(`continue`, a caught exception): let all ranks decide that together",
        "D21, D19, D9",
    )


def inside_one_call(ranks: str, line: str) -> Advice:
    """All ranks are in one call of ``line``, below which only installed packages differ."""
    return Advice(
        f"all ranks are inside {line}, and none of the program's own lines issues that: what is "
        f"decided in there on {ranks} alone (early stopping, a limit of batches or time, an "
        "evaluation or a checkpoint that is due) must be decided by all ranks together",
        "D9, D21",
    )


def crossed_handles(line: str) -> Advice:
    """One line that uses groups of the same members, but a different one on each rank."""
    return Advice(
        f"{line} uses a different group on one side, with the same members: create the groups in "
        "the same order on every rank (dist.new_group tells them apart by their order); if that is "
        "so already, take them in the same order at that line",
        "D19",
    )


def splits() -> Advice:
    """An all-to-all whose members announce sizes that contradict each other."""
    return Advice(
        "exchange the split sizes first (an all_to_all of the counts): what one member sends to "
        "another must be what that one expects from it",
        "D19",
    )


def ring_of_waits(verb: str) -> Advice:
    """All ranks of a cycle issue the same half of a pair first."""
    return Advice(
        f"every rank of the cycle waits in {verb} before it does its other half: let some of them "
        "start with the other half, or issue both at once (isend and irecv, batch_isend_irecv); if "
        "that order is a pipeline's schedule, compare the stages and micro-batches of these ranks",
        "D19",
    )


def new_groups() -> Advice:
    """Ranks in different calls of ``new_group``."""
    return Advice(
        "call new_group for every group on every rank and in the same order, even on ranks that "
        "are not members of it",
        "D19, D21",
    )


def leave_together() -> Advice:
    """A rank that left the program by itself: because of a signal, an exception or its end."""
    return Advice(
        "a signal or an exception reaches one rank only: let it set a flag, all-reduce the flag "
        "in every step, and save or exit on all ranks in the same step",
        "D21, D19",
    )


def two_threads() -> Advice:
    """Operations of one group from several threads of a rank."""
    return Advice(
        "two threads issue operations in this group, so their order differs from rank to rank: "
        "give the thread a group of its own (dist.new_group)",
        "D19",
    )


def pool_of_threads() -> Advice:
    """Collectives submitted to a pool, as ``asyncio.to_thread`` does."""
    return Advice(
        "what is submitted to a thread pool runs in a different order on each rank: await each "
        "collective before submitting the next, or give each its own group (dist.new_group)",
        "D19",
    )


def communication_hook() -> Advice:
    """DDP communication hooks that do not issue the same on every rank."""
    return Advice(
        "a DDP communication hook issues it: register the same hook with the same settings "
        "(approximation rank, start step, groups) on every rank, and in the same step",
        "D8, D19",
    )


def inside_join() -> Advice:
    """A rank at the end of ``with Join`` has to match what the others issue inside it."""
    return Advice(
        "ranks that are done wait at the end of `with Join`, and take part only in the collectives "
        "of what was passed to it: move every other collective (metrics, barriers) out of that "
        "block, or wrap what issues it in a Joinable",
        "D9, D19",
    )


def buckets() -> Advice:
    """Gradient buckets of different sizes under one number, or one that a rank never reduced."""
    return Advice(
        "use the same parameters on every rank in every step: a branch that one rank skips, or a "
        "loss without some output, leaves gradient buckets out (find_unused_parameters=True only "
        "if a branch is skipped on purpose)",
        "D8, D19",
    )
