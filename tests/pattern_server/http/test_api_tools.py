"""What other people's tools make of the API's description: a generated client works, and a fuzzer finds nothing."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.pattern_server.http.test_openapi import described, operations
from tests.pattern_server.place import Place

# Ids, since fuzzing renames what it may. What it deletes is not there, so that the rest of the run has what it needs.
# A refusal of valid data is expected: a schema cannot say which cursor, template or rule is known, or that two fields
# exclude each other.
SETTINGS = """
[parameters]
"path.c" = "{c}"
"path.a" = "{a}"
"path.f" = "{f}"
"path.t" = "{t}"
"path.label" = "human"
[[operations]]
include-method = "DELETE"
parameters = {{ "path.c" = "{c}", "path.a" = "gone", "path.f" = "gone" }}
[[operations]]
include-operation-id = "constellations.delete"
parameters = {{ "path.c" = "gone" }}
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "412", "422"]
[[operations]]
include-path-regex = "^/v1/"
checks.positive_data_acceptance = {{ expected-statuses = ["2xx", "400", "401", "403", "404", "409"] }}
"""


FUZZ_EXAMPLES = int(os.environ.get("PATTERN_FUZZ_EXAMPLES", "1"))  # of each operation


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed; `make test` installs it")


@needs("schemathesis")
@pytest.mark.slow
async def test_a_fuzzer_finds_no_answer_that_is_not_described(home: Place, tmp_path: Path) -> None:
    admin, where = home.admin, "/constellations/home"
    ids = {
        "c": (await admin.get(where)).json()["id"],
        "a": (await admin.get(f"{where}/agents/ada")).json()["id"],
        "f": (await admin.post(f"{where}/folders", json={"name": "books"})).json()["id"],
        "t": (await home.say("Hello")).json()["turn_id"],
    }
    (tmp_path / "schemathesis.toml").write_text(SETTINGS.format(**ids), encoding="utf-8")
    options = [
        "--checks=all",
        "--phases=examples,coverage,fuzzing",
        f"--max-examples={FUZZ_EXAMPLES}",
        "--seed=1",
        "--no-color",
    ]
    token = f"Authorization: Bearer {home.parts.local_token}"
    # Endless streams, and what a request of the Model Context Protocol may be, which is not described here.
    others = r"--exclude-path-regex=(\{[ct]\}/events|/ws)$|^/mcp/"
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{home.url}/openapi.json", "-H", token, others]
    with trio.fail_after(300 + 60 * FUZZ_EXAMPLES):
        done = await trio.run_process([*command, *options], cwd=tmp_path, capture_stdout=True, check=False)
    report = done.stdout.decode()
    assert done.returncode == 0, report
    assert f"Tested: {len(operations()) - 5}" in report, report


@needs("openapi_python_client")
async def test_a_generated_client_reads_answers_and_problems(
    home: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, config = import_module("openapi_python_client"), import_module("openapi_python_client.config")
    others = (
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/webp",
        "application/vnd.ipld.car",
        "application/vnd.sqlite3",
    )
    data = dict.fromkeys(others, "application/octet-stream")
    options = config.Config.from_sources(
        config.ConfigFile(post_hooks=[], content_type_overrides=data),
        config.MetaType.NONE,
        document_source=tmp_path / "openapi.json",
        file_encoding="utf-8",
        overwrite=True,
        output_path=tmp_path / "pattern_client",
    )
    (tmp_path / "openapi.json").write_text(json.dumps(described()), encoding="utf-8")
    assert list(await trio.to_thread.run_sync(lambda: generator.generate(config=options))) == []
    monkeypatch.syspath_prepend(str(tmp_path))
    for one in operations():
        tag, name = one["operationId"].split(".")
        assert import_module(f"pattern_client.api.{tag}.{tag}_{name}").sync_detailed
    made = import_module("pattern_client").AuthenticatedClient(base_url=home.url, token=home.parts.local_token)
    with made as client:

        async def asked(operation: str, **fields: Any) -> Any:
            call = import_module(f"pattern_client.api.{operation}").sync
            return await trio.to_thread.run_sync(lambda: call(client=client, **fields))

        page = await asked("agents.agents_list", c="home")
        assert [agent.name for agent in page.items] == ["ada"]
        missing = await asked("agents.agents_get", c="home", a="bob")
        assert (type(missing).__name__, missing.code, missing.status) == ("Problem", "not_found", 404)
