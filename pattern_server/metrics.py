"""Counts of the whole server, in the text format of Prometheus; the one file that knows its library.

Counting only adds to a number; families and samples are made on demand. No label holds the name of a user, agent or
constellation, and only the first `NAMES_MAX` names of models and tools have their own label.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import trio

from pattern_core.models.model import Usage
from pattern_core.runtime import Meters
from pattern_db.columns import unix_ms
from pattern_server.backups import Rounds

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from pattern_server.sources import SourceAccounts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NAMES_MAX = 100  # different models, and different tools; the rest is "other"
SAMPLE_S = 1.0  # between two measurements of the event loop's lag
SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
PHASES = ("queue", "prompt", "model", "tool")  # of a turn
STREAMS = ("sse", "websocket")

_NAME = re.compile(r"[A-Za-z0-9_.:/@-]{1,64}")
_OTHER = "other"
_Samples: TypeAlias = Mapping[tuple[str, ...], float]  # by the values of the labels


class _Names(dict[str, str]):
    """The names with their own label, bounded so that labels cannot grow without limit or hold a sentence."""

    def __missing__(self, name: str) -> str:
        if len(self) >= NAMES_MAX or not _NAME.fullmatch(name):
            return _OTHER
        self[name] = name
        return name


class _Histogram:
    """The number of values between the bounds, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        value = max(0.0, value)  # the clock may be set back
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        return list(zip((*map(str, self.bounds), "+Inf"), accumulate(map(float, self.counts)), strict=True))


class Metrics(Meters):
    """The server's counts: those that constellations report, and its own. All methods are cheap."""

    def __init__(self) -> None:
        super().__init__()
        # The state of each provider's gate; only numbers are shown.
        self.gates: Callable[[], Mapping[str, Mapping[str, object]]] = dict
        # When the next timer of any constellation is due, unix ms.
        self.next_due: Callable[[], int | None] = lambda: None
        # The results of the rounds of backups.
        self.backups: Callable[[], Rounds] = Rounds
        # Constellations by state, their failures by code, and their questions to people.
        self.states: Callable[[], Mapping[str, int]] = dict
        self.failures: Callable[[], Mapping[str, int]] = dict
        self.pending_approvals: Callable[[], int] = int
        self.sources: SourceAccounts | None = None
        self.commit_seconds = _Histogram(SHORT_SECONDS)
        self.activation_seconds = _Histogram(SHORT_SECONDS)
        self._models = _Names()
        self._tools = _Names()
        self._turns: Counter[tuple[str, ...]] = Counter()
        self._steps: Counter[tuple[str, ...]] = Counter()
        self._tokens: Counter[tuple[str, ...]] = Counter()
        self._money: Counter[tuple[str, ...]] = Counter()
        self._unpriced: Counter[tuple[str, ...]] = Counter()
        self._calls: Counter[tuple[str, ...]] = Counter()
        self._answers: Counter[tuple[str, ...]] = Counter()
        self._occurrences: Counter[tuple[str, ...]] = Counter()
        self._streams = dict.fromkeys(STREAMS, 0)
        self._dropped: Counter[tuple[str, ...]] = Counter()
        self._turn_seconds = _Histogram(SECONDS)
        self._phases = {phase: _Histogram((*SHORT_SECONDS[:-1], *SECONDS[3:])) for phase in PHASES}
        self._lag = _Histogram(SHORT_SECONDS)
        self._late_seconds = _Histogram(SECONDS)
        self._registry: CollectorRegistry | None = None

    def turn_ended(self, status: str, seconds: float, queue_s: float) -> None:
        """Count a turn that ended with a terminal `TurnStatus` value, `seconds` after it was started; before that it
        waited for `queue_s`.
        """
        self._turns[(status,)] += 1
        self._turn_seconds.observe(seconds)
        self._phases["queue"].observe(queue_s)

    def step_done(self, provider: str, model: str, seconds: float, prompt_s: float) -> None:
        """Count a stored model decision, `seconds` after the model was called; its prompt was ready, and
        stored, after `prompt_s`.
        """
        self._steps[self._models[provider], self._models[model]] += 1
        self._phases["prompt"].observe(prompt_s)
        self._phases["model"].observe(seconds)

    def tokens(self, provider: str, model: str, usage: Usage, microdollars: int | None) -> None:
        """Count the usage of one model call; the cost is None if the price is unknown."""
        labels = (self._models[provider], self._models[model])
        parts = {
            "input": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
            "input_cached": usage.cached_tokens,
            "input_cache_write": usage.cache_write_tokens,
            "output": usage.output_tokens - usage.reasoning_tokens,
            "output_reasoning": usage.reasoning_tokens,
        }
        for kind, count in parts.items():
            self._tokens[(*labels, kind)] += max(0, count)
        if microdollars is None:
            self._unpriced[labels] += 1
        else:
            self._money[labels] += microdollars

    def call_ended(self, tool: str, status: str, seconds: float) -> None:
        """Count a tool call that ended with a terminal `EffectStatus` value."""
        self._calls[self._tools[tool], status] += 1
        self._phases["tool"].observe(seconds)

    def schedule_due(self, late_s: float) -> None:
        """Count a schedule that was decided about, `late_s` after it was due."""
        self._late_seconds.observe(late_s)

    def occurred(self, status: str, count: int) -> None:
        """Count occurrences of schedules by their `OccurrenceStatus` value."""
        self._occurrences[(status,)] += count

    def answered(self, status: int) -> None:
        """Count an answer, by the class of its HTTP status ("2xx" …)."""
        self._answers[(f"{status // 100}xx",)] += 1

    @contextmanager
    def streaming(self, kind: str) -> Iterator[Callable[[], None]]:
        """Count a stream of events, one of `STREAMS`, that is open within the block. Yield a function that counts its
        being ended by the server, because its client is too slow or may not read on, or the constellation stopped.
        """
        self._streams[kind] += 1
        try:
            yield partial(self._dropped.update, [(kind,)])
        finally:
            self._streams[kind] -= 1

    async def sample_lag(self) -> None:
        """Measure the event-loop lag until cancelled: how late this task wakes, as every other task does."""
        while True:
            due = trio.current_time() + SAMPLE_S
            await trio.sleep_until(due)
            self._lag.observe(max(0.0, trio.current_time() - due))

    def text(self) -> bytes:
        """Return all metrics in the format of Prometheus.

        The first call loads the library, which needs a tenth of a second.
        """
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        if self._registry is None:
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
            ProcessCollector(registry=self._registry)
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the families with their samples. Called by the library."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        model, polls = ("provider", "model"), {} if self.sources is None else self.sources.polls
        counts: tuple[tuple[str, str, Sequence[str], _Samples], ...] = (
            ("turns", "Ended turns by status.", ("status",), self._turns),
            ("steps", "Model calls with a stored decision.", model, self._steps),
            ("llm_tokens", "Tokens by kind; the kinds do not overlap.", (*model, "kind"), self._tokens),
            ("llm_microdollars", "Cost in millionths of a dollar, without unpriced calls.", model, self._money),
            ("llm_unpriced_calls", "Model calls with unknown price.", model, self._unpriced),
            ("tool_calls", "Tool calls by status.", ("tool", "outcome"), self._calls),
            ("commits", "Committed journal transactions.", (), {(): self.commits}),
            ("schedule_occurrences", "Occurrences of schedules by status.", ("status",), self._occurrences),
            ("http_responses", "HTTP responses by status class.", ("status",), self._answers),
            ("source_polls", "Questions to sources by outcome.", ("outcome",), _by(polls)),
            ("streams_dropped", "Streams of events that the server ended early.", ("protocol",), self._dropped),
            (
                "constellation_failures",
                "Crashes and errors of constellations.",
                ("code",),
                _by(self.failures()),
            ),
        )
        for name, words, labels, samples in counts:
            family = CounterMetricFamily(f"pattern_{name}", words, labels=labels)
            for values, count in sorted(samples.items()):
                family.add_metric(values, count)
            yield family
        for name, words, labels, figures in self._gauges():
            gauge = GaugeMetricFamily(f"pattern_{name}", words, labels=labels)
            for values, figure in sorted(figures.items()):
                gauge.add_metric(values, figure)
            yield gauge
        durations = (
            ("turn_seconds", "Turn duration.", self._turn_seconds),
            ("commit_seconds", "Duration of transactions that wrote, until they were on disk.", self.commit_seconds),
            ("activation_seconds", "Duration of waking a constellation.", self.activation_seconds),
            ("loop_lag_seconds", "Event-loop lag.", self._lag),
            ("schedule_late_seconds", "How late due schedules were decided about.", self._late_seconds),
        )
        for name, words, seconds in durations:
            buckets = seconds.buckets()
            yield HistogramMetricFamily(f"pattern_{name}", words, buckets=buckets, sum_value=seconds.total)
        words = "Duration of the phases of turns: until a turn starts, each prompt, each model call, each tool call."
        phases = HistogramMetricFamily("pattern_turn_phase_seconds", words, labels=("phase",))
        for phase, seconds in self._phases.items():
            phases.add_metric((phase,), seconds.buckets(), seconds.total)
        yield phases

    def _gauges(self) -> Iterator[tuple[str, str, Sequence[str], _Samples]]:
        """Yield the name, the meaning, the labels and the samples of each gauge."""
        yield "constellations", "Constellations by state, without parked ones.", ("state",), _by(self.states())
        yield "agents_working", "Agents that are working now.", (), {(): self.working}
        words = "Approvals that wait for a person, in constellations that were awake since the start."
        yield "approvals_pending", words, (), {(): self.pending_approvals()}
        yield "stream_clients", "Open streams of events.", ("protocol",), _by(self._streams)
        gates: dict[tuple[str, ...], float] = {
            (provider, what): value
            for provider, figures in self.gates().items()
            for what, value in figures.items()
            if isinstance(value, int | float)
        }
        yield "model_gate", "State of each provider's rate limiter and circuit breaker.", ("provider", "what"), gates
        words = "When the next timer of any constellation is due, in Unix time; no sample if none is."
        yield "next_due_timestamp_seconds", words, (), _moment(self.next_due())
        if self.sources is not None:
            yield "sources", "Sources and channels by state, without paused ones.", ("state",), _by(self.sources.states)
            words = "For how long the source that has failed for longest has failed; 0 if none fails."
            yield "source_lag_seconds", words, (), {(): self.sources.lag_s}
            words = "When the last event of any source came, in Unix time; no sample before the first."
            yield "source_event_timestamp_seconds", words, (), _moment(self.sources.last_event_ms)
        rounds = self.backups()
        for name, words, at in (
            ("complete", "When the last round of backups without a failure began, in Unix time.", rounds.complete_at),
            ("drill", "When a backup was last restored on trial, in Unix time.", rounds.drilled_at),
        ):
            moment = _moment(None if at is None else unix_ms(at))
            yield f"backup_{name}_timestamp_seconds", f"{words} No sample if never.", (), moment
        yield "backup_failures", "What failed in the last round of backups.", (), {(): len(rounds.failed)}


def _by(figures: Mapping[str, float]) -> _Samples:
    """Return samples with one label."""
    return {(value,): figure for value, figure in figures.items()}


def _moment(at_ms: int | None) -> _Samples:
    """Return the sample of a moment in unix milliseconds; none for None."""
    return {} if at_ms is None else {(): at_ms / 1000}
