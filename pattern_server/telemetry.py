"""Traces of turns for OpenTelemetry, by its conventions for generative AI; the one file that knows its library. It is
imported only if an address for traces is configured.

The spans of a turn are made from its rows when it has ended, so turns cost the same with traces and without, and a turn
that waited for a person, or continued after a restart, is one trace. Ids are digests, so the turn of an agent that
was asked by another one is below that one's turn. No attribute has the text of a message, argument, result or error.

Sources: OpenTelemetry's semantic conventions for generative AI, `gen_ai.*` (in development); W3C Trace Context.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from importlib.metadata import version
from typing import NamedTuple

import trio
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pattern_core.constellation import Constellation
from pattern_core.errors import NotFound
from pattern_core.events import TERMINAL
from pattern_db.columns import unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import EffectStatus, TurnStatus
from pattern_db.errors import RowNotFound
from pattern_db.journal import steps, turns, usage
from pattern_db.journal.turns import TurnRow

LINKS_MAX = 10_000  # turns of which the trace is known that their request belongs to
FLUSH_S = 5.0  # for the spans that were not exported when the server stops
_UNFAILED = (TurnStatus.COMPLETED, TurnStatus.CANCELLED)
_VENDORS = {"google": "gcp.gemini"}  # providers that the conventions call by another name


class _SpanDraft(NamedTuple):
    """A span below that of its turn. `place` is unique within the turn; times are unix ms."""

    place: str
    name: str
    began_ms: int
    ended_ms: int
    error: str | None
    attributes: Mapping[str, object]
    kind: SpanKind = SpanKind.INTERNAL


class Telemetry:
    """Exports the spans of ended turns, by default to an address (OTLP over HTTP). The library exports in a thread, and
    drops spans that its bounded queue has no room for.
    """

    trace_id = span_id = 0  # of the next span: this is also the library's generator of ids

    def __init__(self, endpoint: str, exporter: SpanExporter | None = None) -> None:
        release = version("pattern-server")
        resource = Resource.create({"service.name": "pattern", "service.version": release})
        self._provider = TracerProvider(resource=resource, id_generator=self, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("pattern", release)
        self._links: OrderedDict[str, SpanContext] = OrderedDict()

    def generate_trace_id(self) -> int:
        """Return the id of the next trace. Called by the library."""
        return self.trace_id

    def generate_span_id(self) -> int:
        """Return the id of the next span. Called by the library."""
        return self.span_id

    def is_trace_id_random(self) -> bool:
        """Return that digests are as good as random bits. Called by the library."""
        return True

    def link(self, turn_id: str, traceparent: str | None) -> None:
        """Make a turn part of the trace that its request names in the header `traceparent`, if it does."""
        context = TraceContextTextMapPropagator().extract({"traceparent": traceparent or ""}, Context())
        given = trace.get_current_span(context).get_span_context()
        if given.is_valid:
            self._links[turn_id] = given
            if len(self._links) > LINKS_MAX:
                self._links.popitem(last=False)

    async def follow(self, constellation: Constellation) -> None:
        """Export the spans of turns that end from now on, until cancelled.

        Raises:
            StorageFailed: the disk failed.
        """
        async for event in constellation.events.subscribe(after=constellation.events.latest):
            if event.name not in TERMINAL or event.turn_id is None:
                continue
            with suppress(RowNotFound, NotFound):  # deleted since
                line, below = await constellation.database.read(_read, event.turn_id)
                turn = line[0]
                find = constellation.roster.get if turn.group_id is None else constellation.groups.get
                name = (await find(turn.group_id or turn.agent_id)).name
                self._export([one.id for one in line], [_of_turn(turn, name, constellation.id), *below])

    def _export(self, line: list[str], spans: list[_SpanDraft]) -> None:
        """Export a turn's spans, its own first. `line` are the ids of the turn and of those that led to it."""
        given = self._links.get(line[-1])
        trace_id = _digest(line[-1], 16) if given is None else given.trace_id
        flags = TraceFlags(TraceFlags.SAMPLED) if given is None else given.trace_flags
        own, *others = [SpanContext(trace_id, _digest(each, 8), is_remote=False, trace_flags=flags) for each in line]
        parent = others[0] if others else given or trace.INVALID_SPAN_CONTEXT
        for span in spans:
            self.trace_id, self.span_id = trace_id, _digest(line[0] + span.place, 8)
            above = trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())
            told = {**span.attributes, "error.type": span.error}
            known = {name: value for name, value in told.items() if value is not None}
            made = self._tracer.start_span(span.name, above, span.kind, known, start_time=span.began_ms * 1_000_000)
            if span.error is not None:
                made.set_status(StatusCode.ERROR)
            made.end(span.ended_ms * 1_000_000)
            parent = own

    async def aclose(self) -> None:
        """Export what waits, for at most `FLUSH_S`."""
        with trio.move_on_after(FLUSH_S, shield=True):
            await trio.to_thread.run_sync(self._provider.shutdown, abandon_on_cancel=True)


def _read(connection: Connection, turn_id: str) -> tuple[list[TurnRow], list[_SpanDraft]]:
    """Return a turn with those that led to it, nearest first, and the spans below its own."""
    line = [turns.by_id(connection, turn_id)]
    while (above := line[-1].parent_turn) is not None:
        line.append(turns.by_key(connection, above))
    return line, [*_model_calls(connection, line[0].key), *_tool_calls(connection, line[0].key)]


def _of_turn(turn: TurnRow, name: str, constellation_id: str) -> _SpanDraft:
    error = None
    if turn.status not in _UNFAILED:
        error = str((json.loads(turn.error) if turn.error else {}).get("code", turn.status))
    operation, kind = ("invoke_agent", "agent") if turn.group_id is None else ("invoke_workflow", "workflow")
    attributes = {
        "gen_ai.operation.name": operation,
        f"gen_ai.{kind}.name": name,
        "gen_ai.agent.id": turn.agent_id or None,
        "gen_ai.conversation.id": turn.session_id or turn.group_id or turn.agent_id,
        "pattern.constellation.id": constellation_id,
        "pattern.turn.id": turn.id,
        "pattern.turn.status": turn.status,
    }
    began_ms = unix_ms(turn.started_at or turn.created_at)
    ended_ms = began_ms if turn.ended_at is None else unix_ms(turn.ended_at)
    return _SpanDraft("", f"{operation} {name}", began_ms, ended_ms, error, attributes)


def _model_calls(connection: Connection, turn: int) -> Iterator[_SpanDraft]:
    used = {(row.step, row.attempt): row for row in usage.of_model_calls(connection, turn)}
    for step, ended_at in steps.ended_steps(connection, turn):
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": _VENDORS.get(step.provider, step.provider),
            "gen_ai.request.model": step.model,
            "gen_ai.response.finish_reasons": None if step.finish_reason is None else [step.finish_reason],
            "pattern.step": step.no,
            "pattern.attempt": step.attempt,
        }
        if (spent := used.get((step.no, step.attempt))) is not None:
            attributes |= {
                "gen_ai.usage.input_tokens": spent.input_tokens,
                "gen_ai.usage.output_tokens": spent.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": spent.cached_tokens,
                "gen_ai.usage.cache_creation.input_tokens": spent.cache_write_tokens,
                "gen_ai.usage.reasoning.output_tokens": spent.reasoning_tokens,
            }
        times, error = (unix_ms(step.started_at), unix_ms(ended_at)), None if step.status == "done" else step.status
        name, place = f"chat {step.model}", f"/{step.no}/{step.attempt}"
        yield _SpanDraft(place, name, *times, error, attributes, SpanKind.CLIENT)


def _tool_calls(connection: Connection, turn: int) -> Iterator[_SpanDraft]:
    for call, ended_at, lasted_ms in steps.ended_calls(connection, turn):
        tool = call.tool if call.idempotency_key else "unknown"  # not the name of a tool, but words of the model
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.call_id,
        }
        error, ended_ms = None if call.status == EffectStatus.DONE else call.status, unix_ms(ended_at)
        place = f"/{call.step}/call/{call.call}"
        yield _SpanDraft(place, f"execute_tool {tool}", ended_ms - lasted_ms, ended_ms, error, attributes)


def _digest(text: str, size: int) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=size).digest(), "big")
