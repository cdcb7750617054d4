"""The straggler scores of nvidia-resiliency-ext on the simulated jobs of `tools.stragglers`.

``pip install nvidia-resiliency-ext``; nothing of it needs a GPU but its kernel scores. It is given
what it asks for, and what HangScope does not need: the job's computation of each step, instrumented
as a section. Score and judgement are the package's own; only the minimum over ranks, which it takes
with an all-reduce, is taken here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SECTION = "compute"
DEFAULT, STRICT = 0.75, 0.95
"""Its default threshold, and one that would see a rank that is 10 % slower."""


def named_by_sections(work_s: npt.NDArray[np.float64], threshold: float) -> tuple[int, ...]:
    """The ranks that it calls stragglers.

    Parameters
    ----------
    work_s:
        Seconds each rank computes in each step, shape ``[steps, ranks]``.
    threshold:
        A score below it names a rank.

    Raises
    ------
    ImportError
        If the package is not installed.
    """
    from nvidia_resiliency_ext.straggler import (  # type: ignore[import-not-found]
        Report,
        Statistic,
    )
    from nvidia_resiliency_ext.straggler.reporting import (  # type: ignore[import-not-found]
        ReportGenerator,
    )

    generator = ReportGenerator(["relative_perf_scores"])
    medians = np.median(work_s, axis=0)
    reference = {SECTION: float(medians.min())}
    scores = {
        rank: generator._compute_sections_perf_scores(
            {SECTION: {Statistic.MED: float(median)}}, reference
        )[SECTION]
        for rank, median in enumerate(medians)
    }
    nodes = dict.fromkeys(scores, "node")
    report = Report({}, {SECTION: scores}, {}, {}, nodes, {}, {}, 0.0, True, None)
    found = report.identify_stragglers(section_rel_threshold=threshold)
    ids = found["straggler_sections_relative"].get(SECTION, set())
    return tuple(sorted(one.rank for one in ids))
