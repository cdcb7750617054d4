"""What the monitor tells Prometheus or an OpenTelemetry collector of this node's ranks.

**In**: the group tables of the rings, which the monitor reads anyway, and what it has reported.
**Out**: `standing.Standing`, a moment's figures; `families` makes metrics of them; `exporters`
hands these out: over HTTP, as a file for the node exporter, or to a collector.

**Rules.** Nothing is imported or started unless ``HANGSCOPE_METRICS`` asks for it. Exporters have
threads of their own, so that nobody who asks can keep the monitor from looking.

**Imported by** `hangscope.monitor.watch`.
"""
