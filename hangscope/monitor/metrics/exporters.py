"""Hands metrics out: Prometheus over HTTP or as a file, OTLP. Each library in its own way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from hangscope.monitor.metrics.families import Family, families
from hangscope.monitor.metrics.standing import Standing

VARIABLE = "HANGSCOPE_METRICS"
INSTALL = "pip install 'hangscope[metrics]'"
EVERY_S = 10.0
"""How often a file is written, and a collector told."""
PROMETHEUS, FILE, OTLP = "prometheus", "file", "otlp"


class Exporter(Protocol):
    """Where metrics go."""

    def update(self, standing: Standing) -> None:
        """Take the newest figures; returns at once."""

    def close(self) -> None:
        """Hand out the last figures, and stop."""


def exporter_of(environ: Mapping[str, str]) -> Exporter | None:
    """What the environment asks for; None for nothing.

    ``HANGSCOPE_METRICS`` is a port or ``ADDRESS:PORT`` to serve on, a file ``*.prom`` to write, or
    the ``http(s)://`` URL of an OTLP collector.

    Raises
    ------
    ValueError
        If it is none of these, or a library is missing.
    OSError
        If the port is taken or the file cannot be written.
    """
    asked = environ.get(VARIABLE, "").strip()
    if not asked or asked == "0":
        return None
    try:
        if asked.startswith(("http://", "https://")):
            return _Otlp(asked)
        if asked.endswith(".prom"):
            return _TextFile(asked)
        address, _, port = asked.rpartition(":")
        if not port.isdecimal():
            raise ValueError("give a port, ADDRESS:PORT, a file *.prom or the URL of a collector")
        return _Http(address or "127.0.0.1", int(port))
    except ImportError as error:
        raise ValueError(f"needs {error.name}: {INSTALL}") from None


class _Newest:
    """A collector of `prometheus_client` that tells the newest figures."""

    def __init__(self) -> None:
        self.standing: Standing | None = None

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for family in families(self.standing) if self.standing is not None else ():
            kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
            names = list(family.values[0][0]) if family.values else []
            made = kind(family.name, family.help, labels=names)
            for labels, value in family.values:
                made.add_metric(list(labels.values()), value)
            yield made


class _Http:
    """Serves ``/metrics``."""

    def __init__(self, address: str, port: int) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._newest = _Newest()
        registry = CollectorRegistry()
        registry.register(self._newest)
        self._server, self._thread = start_http_server(port, address, registry)

    def update(self, standing: Standing) -> None:
        self._newest.standing = standing

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1.0)


class _TextFile:
    """Writes a file for the node exporter's textfile collector."""

    def __init__(self, path: str) -> None:
        from prometheus_client import CollectorRegistry

        self._path, self._due_s = path, 0.0
        self._newest = _Newest()
        self._registry = CollectorRegistry()
        self._registry.register(self._newest)

    def update(self, standing: Standing) -> None:
        self._newest.standing = standing
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + EVERY_S
            self._write()

    def close(self) -> None:
        self._write()

    def _write(self) -> None:
        from prometheus_client import write_to_textfile

        write_to_textfile(self._path, self._registry)


class _Otlp:
    """Tells an OpenTelemetry collector, over HTTP."""

    def __init__(self, endpoint: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        target = endpoint if "/v1/" in endpoint else f"{endpoint.rstrip('/')}/v1/metrics"
        self._standing: Standing | None = None
        self._made: set[str] = set()
        exporter = OTLPMetricExporter(endpoint=target, timeout=5)
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=EVERY_S * 1e3)
        resource = Resource.create({"service.name": "hangscope"})
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("hangscope")

    def update(self, standing: Standing) -> None:
        self._standing = standing
        for family in families(standing):
            if family.name not in self._made:
                self._made.add(family.name)
                make: Callable[..., object] = (
                    self._meter.create_observable_counter
                    if family.is_counter
                    else self._meter.create_observable_gauge
                )
                make(family.name, [self._observer(family.name)], description=family.help)

    def close(self) -> None:
        self._provider.shutdown(timeout_millis=5_000)

    def _observer(self, name: str) -> Callable[[object], Iterable[Any]]:
        from opentelemetry.metrics import Observation

        def observe(_: object) -> Iterable[Any]:
            standing = self._standing
            found: list[Family] = [] if standing is None else list(families(standing))
            for family in found:
                if family.name == name:
                    yield from (Observation(value, labels) for labels, value in family.values)

        return observe
