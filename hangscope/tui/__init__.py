"""The Textual application: timelines, live and post-mortem.

**In**: paths, or a run that is going on. **Out**: a screen: who waits for whom, the timeline of
every rank, stacks, source, who is late; or one picture of it (``--screenshot``).

* `snapshot` is one look at a job, indexed for drawing: made outside the UI's thread, and
  immutable, so that no pane sees half of two looks.
* `app` has the panes and the refreshing; `commands`, `screens`, `search`, `pane_bar` the keys.
* `timeline`, `paint`, `sequence`, `lines`: drawing of rows that are visible, and of no others; a
  list of ten thousand ranks costs what a screen costs.
* `verdict`, `ranks`, `details`, `trees`, `source`, `late`, `status`: one file per pane.
* `theme`, `few_colours`: colours, also where a terminal has sixteen.

**Rules.** Nothing is diagnosed here; panes show a diagnosis and its trace. Texts from a trace are
escaped before they become markup. A refresh never blocks a key.

**Imported by** the command line only; imports `report`, `lateness`, `diagnosis`, `trace` and
`ring`.
"""
