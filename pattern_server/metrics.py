"""Counts of the whole server, in the text format of Prometheus; the one file that knows its library.

Counting is adding to a number; families and samples are made on demand. No label holds a user's, an agent's or a
constellation's name, and of names of models and tools only the first `NAMES_MAX` are kept apart.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import trio

from pattern_core.models.model import Usage
from pattern_core.runtime import Meters

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NAMES_MAX = 100  # different models, and different tools; the rest is "other"
SAMPLE_S = 1.0  # between two looks at the event loop's lag
SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

_NAME = re.compile(r"[A-Za-z0-9_.:/@-]{1,64}")
_OTHER = "other"


class _Names(dict[str, str]):
    """The names that are kept apart, each for itself, so that no label can grow without bound or hold a sentence."""

    def __missing__(self, name: str) -> str:
        if len(self) >= NAMES_MAX or not _NAME.fullmatch(name):
            return _OTHER
        self[name] = name
        return name


class _Histogram:
    """How many values fell between the bounds, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        return list(zip((*map(str, self.bounds), "+Inf"), accumulate(map(float, self.counts)), strict=True))


class Metrics(Meters):
    """The server's counts: those that constellations report, and its own. All methods are cheap."""

    def __init__(self) -> None:
        super().__init__()
        # By provider, what its gate says of itself; numbers only are shown.
        self.gates: Callable[[], Mapping[str, Mapping[str, object]]] = dict
        self._models = _Names()
        self._tools = _Names()
        self._turns: Counter[tuple[str, ...]] = Counter()
        self._steps: Counter[tuple[str, ...]] = Counter()
        self._tokens: Counter[tuple[str, ...]] = Counter()
        self._money: Counter[tuple[str, ...]] = Counter()
        self._unpriced: Counter[tuple[str, ...]] = Counter()
        self._calls: Counter[tuple[str, ...]] = Counter()
        self._answers: Counter[tuple[str, ...]] = Counter()
        self._states: Mapping[str, int] = {}
        self._turn_seconds = _Histogram(SECONDS)
        self._step_seconds = _Histogram(SECONDS)
        self._call_seconds = _Histogram(SECONDS)
        self._lag = _Histogram(LAG_SECONDS)
        self._registry: CollectorRegistry | None = None

    def turn_ended(self, status: str, seconds: float) -> None:
        """Count a turn that ended with a terminal `TurnStatus` value, `seconds` after it was started."""
        self._turns[(status,)] += 1
        self._turn_seconds.observe(seconds)

    def step_done(self, provider: str, model: str, seconds: float) -> None:
        """Count a model's decision that is stored, `seconds` after it was asked."""
        self._steps[self._models[provider], self._models[model]] += 1
        self._step_seconds.observe(seconds)

    def tokens(self, provider: str, model: str, usage: Usage, microdollars: int | None) -> None:
        """Count what one model call took; money is None where the price is not known."""
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
        self._call_seconds.observe(seconds)

    def answered(self, status: int) -> None:
        """Count an answer, by the class of its HTTP status ("2xx" …)."""
        self._answers[(f"{status // 100}xx",)] += 1

    async def sample_lag(self) -> None:
        """See, until cancelled, how much later than asked for this task is woken: what every other task waits too."""
        while True:
            due = trio.current_time() + SAMPLE_S
            await trio.sleep_until(due)
            self._lag.observe(max(0.0, trio.current_time() - due))

    def text(self, states: Mapping[str, int]) -> bytes:
        """Return all counts as Prometheus reads them, with those of constellations by their `states`.

        The first call loads the library, which takes a tenth of a second.
        """
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        if self._registry is None:
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
            ProcessCollector(registry=self._registry)
        self._states = states
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the families with their samples. Called by the library."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        model = ("provider", "model")
        counts: tuple[tuple[str, str, Sequence[str], Mapping[tuple[str, ...], int]], ...] = (
            ("turns", "Turns by how they ended.", ("status",), self._turns),
            ("steps", "Decisions of models that were stored.", model, self._steps),
            ("llm_tokens", "Tokens by kind; the kinds do not overlap.", (*model, "kind"), self._tokens),
            ("llm_microdollars", "Cost in millionths of a dollar, where the price is known.", model, self._money),
            ("llm_unpriced_calls", "Model calls whose price is not known.", model, self._unpriced),
            ("tool_calls", "Tool calls by how they ended.", ("tool", "outcome"), self._calls),
            ("commits", "Transactions of journals on disk.", (), {(): self.commits}),
            ("http_responses", "Answers by class of status.", ("status",), self._answers),
        )
        for name, words, labels, samples in counts:
            family = CounterMetricFamily(f"pattern_{name}", words, labels=labels)
            for values, count in sorted(samples.items()):
                family.add_metric(values, count)
            yield family
        words = "Constellations by state; those that are parked are not counted."
        states = GaugeMetricFamily("pattern_constellations", words, labels=("state",))
        for state, count in self._states.items():
            states.add_metric((state,), count)
        yield states
        yield GaugeMetricFamily("pattern_agents_working", "Agents that have work now.", value=self.working)
        words = "What the gate of each provider says of itself."
        gates = GaugeMetricFamily("pattern_model_gate", words, labels=("provider", "what"))
        for provider, figures in sorted(self.gates().items()):
            for what, value in sorted(figures.items()):
                if isinstance(value, int | float):
                    gates.add_metric((provider, what), value)
        yield gates
        durations = (
            ("turn_seconds", "From a turn's start to its end.", self._turn_seconds),
            ("step_seconds", "From a model's being asked to its stored decision.", self._step_seconds),
            ("tool_call_seconds", "From a tool call's start to its end.", self._call_seconds),
            ("loop_lag_seconds", "How much later than asked for a task is woken.", self._lag),
        )
        for name, words, seconds in durations:
            buckets = seconds.buckets()
            yield HistogramMetricFamily(f"pattern_{name}", words, buckets=buckets, sum_value=seconds.total)
