"""What a constellation does by itself: what waiting schedules cost, a start with many that are due soon, and how long
the file of a long past takes to migrate.

The start is measured against one with a single constellation in the same rounds.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import apsw
import trio

from pattern_db import template
from pattern_db.columns import iso
from pattern_db.connection import Connection, open_connection
from pattern_db.migrate import Migrations, migrations_of
from pattern_server.files import DATABASE_NAME
from tests.bench.report import Figure
from tests.bench.server import cpu_s
from tests.bench.world import NOW, words, world
from tests.scenarios.server import Server, serving

SCHEDULES = 10_000
IDLE_S = 10.0
FIRED = 300  # of them
REGISTERED, DUE_SOON = 10_000, 1_000
STARTS = 5
TURNS = 100_000
BEFORE_GROUPS = 29  # the version of a file that knows neither groups nor schedules
HOUR_S = 3_600


def measure() -> list[Figure]:
    """All figures."""
    return [*trio.run(_schedules), *trio.run(_starts), _migration()]


async def _schedules() -> list[Figure]:
    """CPU of heartbeats that wait, and of those that are due and find nothing new."""
    async with world() as bench:
        database, agent = bench.constellation.database, bench.agents[0]
        plan = {"every": float(HOUR_S), "when": [{"kind": "inbox"}]}
        await bench.constellation.schedules.create(name="s", target=agent, message="Look around.", plan=plan)
        await database.write(_multiply)
        await trio.sleep(1)
        before = time.process_time()
        await trio.sleep(IDLE_S)
        waiting = (time.process_time() - before) / IDLE_S
        before = time.process_time()
        await database.write(_make_due, iso(time.time_ns() // 1_000_000))
        bench.constellation.timers.changed()
        while (await database.read(_count_occurrences)) < FIRED:
            await trio.sleep(0.2)
        each_s = (time.process_time() - before) / FIRED
    share = waiting + each_s * SCHEDULES / HOUR_S
    note = f"{SCHEDULES:,} heartbeats, each once an hour; one that is due takes {each_s * 1_000:.2f} ms"
    return [Figure(name="schedules that find nothing new: CPU", unit="of a core", values=[share], most=0.01, note=note)]


def _multiply(connection: Connection) -> None:
    numbers = f"WITH RECURSIVE n (i) AS (VALUES (2) UNION ALL SELECT i + 1 FROM n WHERE i < {SCHEDULES})"
    connection.execute(
        f"{numbers} INSERT INTO schedule (id, name, message, created_at, updated_at, agent_id, status, plan, seen)"
        " SELECT 'sch_' || i, i, message, created_at, updated_at, agent_id, status, plan, seen FROM schedule, n"
    )
    connection.execute(f"{numbers} INSERT INTO timer SELECT kind, 'sch_' || i, due_at, payload FROM timer, n")


def _make_due(connection: Connection, now: str) -> None:
    connection.execute(
        "UPDATE timer SET due_at = ?1, payload = (SELECT plan ->> '$.starts_at' FROM schedule WHERE id = ref)"
        " WHERE ref <= (SELECT ref FROM timer ORDER BY ref LIMIT 1 OFFSET ?2)",
        (now, FIRED - 1),
    )


def _count_occurrences(connection: Connection) -> int:
    found: int = connection.execute("SELECT count(*) FROM schedule_occurrence").get
    return found


async def _starts() -> list[Figure]:
    """Time until a server is ready, with one constellation and with many, and its CPU until then."""
    seconds: dict[int, list[float]] = {1: [], REGISTERED: []}
    spent: dict[int, list[float]] = {1: [], REGISTERED: []}
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        for count in seconds:
            await _register(Path(folder) / str(count), count)
        for _ in range(STARTS + 1):
            for count, values in seconds.items():
                server = Server(Path(folder) / str(count))
                began = time.perf_counter()
                await server.start()
                values.append(time.perf_counter() - began)
                spent[count].append(cpu_s(server))
                server.terminate()
    few, many = (values[1:] for values in seconds.values())
    one, all_ = (statistics.median(values[1:]) for values in spent.values())
    note = f"{DUE_SOON:,} of them due within the hour; {all_:.2f} s of CPU, {one:.2f} s with one constellation"
    name = f"start to ready with {REGISTERED:,} constellations"
    return [Figure(name=name, unit="s", values=many, most=1.0, baseline=statistics.median(few), note=note)]


async def _register(folder: Path, count: int) -> None:
    """Make a data directory with so many constellations, which share one file: only the first is opened."""
    folder.mkdir()
    async with serving(folder) as server, server.client() as client:
        (await client.post("/constellations", json={"name": "first"})).raise_for_status()
        server.terminate()
    with closing(open_connection(folder / "global.db")) as connection:
        cursor = connection.execute("SELECT * FROM constellations")
        names = [name for name, _ in cursor.get_description()]
        known = {name: str(value) for name, value in zip(names, cursor.fetchall()[0], strict=True)}
        root = folder / "constellations"
        due_at = iso(time.time_ns() // 1_000_000 + 1_800_000)
        insert = f"INSERT INTO constellations VALUES ({', '.join('?' * len(names))})"
        with connection:
            for number in range(1, count):
                new_id = f"{known['id'][:-5]}{number:05}"
                due = due_at if number <= DUE_SOON else None
                path = known["db_path"].replace(known["id"], new_id)
                new = {**known, "id": new_id, "name": f"c{number}", "db_path": path, "next_due_at": due}
                connection.execute(insert, tuple(new.values()))
                (root / new_id).mkdir()
                os.link(root / known["id"] / DATABASE_NAME, root / new_id / DATABASE_NAME)


def _migration() -> Figure:
    """Seconds to bring a file with a long past to the newest version, its verified copy included."""
    shipped = migrations_of("constellation")
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as name:
        folder = Path(name)
        for migration in shipped.all[:BEFORE_GROUPS]:
            (folder / migration.file).write_text(migration.sql)
        path = folder / "pattern.db"
        template.create(path, Migrations(folder), now=NOW)
        with closing(open_connection(path)) as connection, connection:
            _remember(connection, TURNS)
        size = path.stat().st_size // 1024 // 1024
        began = time.perf_counter()
        shipped.migrate(path, backup_to=folder / "backup.db", now=NOW)
        values = [time.perf_counter() - began]
    return Figure(
        name=f"migrating {TURNS:,} turns", unit="s", values=values, most=60, note=f"{size} MiB, with the copy"
    )


def _remember(connection: apsw.Connection, count: int) -> None:
    """Store turns of one step: two messages, four events, a step and its usage each."""
    connection.execute(
        "INSERT INTO agents (id, name, model_provider, model_name, system_prompt, config, enabled_tools, created_at,"
        " updated_at) VALUES ('agt_ada', 'ada', 'p', 'm', '', '{}', '[]', ?1, ?1)",
        (NOW,),
    )
    numbers = f"WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    connection.execute(
        f"{numbers} INSERT INTO turn (key, id, agent_id, sender, status, batch_id, seed, steps, created_at, started_at,"
        " ended_at, first_event) SELECT i, printf('turn_%026d', i), 'agt_ada', 'user:usr_ann', 'completed',"
        " printf('%019d', 2 * i), i, 1, ?1, ?1, ?1, 4 * i - 3 FROM n",
        (NOW,),
    )
    connection.execute(
        f"{numbers} INSERT INTO event (turn, name, data, created_at) SELECT i, value, json_object('text', ?2), ?1"
        """ FROM n, json_each('["turn.queued", "turn.started", "message", "turn.completed"]') ORDER BY i""",
        (NOW, words(100, 1)),
    )
    connection.execute(
        f"{numbers} INSERT INTO step (turn, no, attempt, status, provider, model, cursor, prefix_hash, request_hash,"
        " started_at, ended_at, prompt_tokens, prompt_stable, prompt_volatile, history_from, history_count,"
        " history_tokens) SELECT i, 1, 1, 'done', 'p', 'm', printf('%019d', 2 * i), zeroblob(16), zeroblob(16), ?1, ?1,"
        " 900, zeroblob(16), zeroblob(16), '', 2, 800 FROM n",
        (NOW,),
    )
    connection.execute(
        f"{numbers} INSERT INTO usage (turn, agent_id, step, attempt, provider, model, input_tokens, output_tokens, at)"
        " SELECT i, 'agt_ada', 1, 1, 'p', 'm', 900, 100, ?1 FROM n",
        (NOW,),
    )
    texts = [words(200, seed) for seed in range(1_000)]
    connection.executemany(
        "INSERT INTO messages (id, agent_id, position, batch_id, sequence_in_batch, role, content, batch_type,"
        " created_at) VALUES (?, 'agt_ada', ?, ?, ?, ?, ?, 'user_request', ?)",
        (
            (f"msg_{row:026}", f"{row:019}", f"{row - row % 2:019}", row % 2, role, texts[row % 1_000], NOW)
            for row in range(2, 2 * count + 2)
            for role in (("user", "assistant")[row % 2],)
        ),
    )
