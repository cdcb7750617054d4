"""Converts a Diagnosis and its Trace to what people and tools read.

**In**: a `hangscope.diagnosis.model.Diagnosis`, and the trace for what has a time. **Out**:

* `text`: the report in a terminal and in the job's log, one screen;
* `json`: schema ``hangscope/diagnosis/2``, field by field the model's;
* `html`: one page for a ticket, without scripts from elsewhere;
* `perfetto`: a timeline for ui.perfetto.dev; `flight_recorder`: dumps that `torchfrtrace` reads;
* `lateness`, `heat_map`: who makes everybody wait.

`timeline`, `wait_graph`, `stack_tree`, `spans` and `formatting` are what these share;
`source_lines` quotes the job's own source files, and no others.

**Rules.** Nothing is decided here: a report shows what the diagnosis says, and every text from a
trace goes through `escape` first, for it may hold control characters, markup or links. Sizes are
bounded: a job of ten thousand ranks gets one screen, too.

**Imported by** `monitor`, `tui`, `replay`, the command line and notebooks; imports `diagnosis`,
`lateness` and `trace`.
"""
