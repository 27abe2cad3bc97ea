"""`pattern export markdown`: a constellation as a folder for people, with its files and images next to the texts."""

from __future__ import annotations

import json
import mimetypes
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from urllib.parse import quote

from pattern_db import files
from pattern_db.enums import CONSTELLATION_OWNER as EVERYONE
from pattern_server.cli.client import Json, ServerFailed
from pattern_server.cli.command import ExitCode, Home
from pattern_server.cli.output import DONE, SKIPPED, Output, cut, in_line

TOOL_CHARS_MAX = 2_000  # of a tool's arguments or result
NAME_CHARS_MAX = 80
_UNSAFE = re.compile(r"[^\w.,()+-]+|^\.+")


async def export_markdown(home: Home, output: Output, target: Path) -> ExitCode:
    """Write the folder `target`, which must not exist: all of it or nothing. Files that cannot be read are listed."""
    with files.emptied(target.with_name(f".{target.name}.unfinished")) as beside:
        book = _Book(home, beside)
        await book.write()
        beside.rename(target)
    data, left_out = {"file": str(target), "skipped": book.skipped}, [f"  Left out: {one}" for one in book.skipped]
    output.result(data, f"Exported {home.name} to {target}.", *left_out)
    return SKIPPED if book.skipped else DONE


class _Book:
    """The pages of one constellation, in a folder."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.skipped: list[str] = []
        self._home = home
        self._folder = folder
        self._taken: set[str] = set()  # paths in lower case, as some disks compare them

    async def write(self) -> None:
        kinds = ("agents", "groups", "folders", "tasks", "schedules")
        agents, groups, folders, tasks, schedules = [await self._home.pages(kind) for kind in kinds]
        names = {agent["id"]: agent["name"] for agent in agents}
        texts = {
            "Agents": [await self._agent(agent) for agent in agents],
            "Groups": [await self._group(group, names) for group in groups],
            "Memory of all agents": await self._memory(EVERYONE),
            "Tasks": [f"- {one['title']} ({one['status']}) {(one['due_at'] or '')[:16]}" for one in tasks],
            "Schedules": [f"- {one['name']} ({one['status']}): {in_line(one['message'])}" for one in schedules],
            "Calendar": [await self._attach("[calendar.ics]", "calendar.ics", "calendar", "export")],
            "Files": [],
        }
        for folder in (folder["name"] for folder in folders):
            for file in await self._home.pages("folders", folder, "files"):
                place = self._free("files", folder, *(parts := file["name"].split("/")))
                link = await self._attach(f"[{folder}/{file['name']}]", place, "folders", folder, "files", *parts)
                texts["Files"].append(f"- {link}")
        self._page("README.md", self._home.name, "", texts)

    async def _agent(self, agent: Json) -> str:
        """Write the pages of an agent; return the line that leads to them."""
        below, name, titles = ("agents", agent["id"]), agent["name"], dict[str, str]()
        page = self._free("agents", f"{name}.md")
        for archived in (False, True):
            found = await self._home.pages(*below, "sessions", archived=archived)
            titles |= {one["id"]: one["title"] or one["id"] for one in found}
        said: Mapping[tuple[str, str], list[Json]] = defaultdict(list)
        for row in (await self._home.pages(*below, "messages"))[::-1]:
            month = ("", f"Main conversation {row['created_at'][:7]}")
            said[(session, titles[session]) if (session := row["session_id"]) in titles else month].append(row)
        texts = {"Instructions": [_quoted(agent["system_prompt"])], "Memory": await self._memory(agent["id"])}
        texts |= {"Conversations": [], "Archive": []}
        for (_, title), rows in said.items():
            talk = self._free(*Path(page).with_suffix("").parts, f"{title}.md")
            self._page(talk, title, "", {name: [await self._said(row, name) for row in rows]})
            texts["Conversations"].append(f"- {_link(title, talk.removeprefix('agents/'))}, messages: {len(rows)}")
        for one in await self._home.pages(*below, "archival", include_superseded=True):
            until = f" to {one['valid_to'][:10]}" if one["valid_to"] else ""
            texts["Archive"] += [f"{(one['valid_from'] or one['created_at'])[:10]}{until}:", _quoted(one["content"])]
        about = f"{agent['description'] or ''}\n\n{agent['model_provider']}/{agent['model_name']}, {agent['status']}"
        self._page(page, name, about, texts)
        return f"- {_link(name, page)} {agent['description'] or ''}".rstrip()

    async def _group(self, group: Json, names: Mapping[str, str]) -> str:
        page = self._free("groups", f"{group['name']}.md")
        said = (await self._home.pages("groups", group["id"], "messages"))[::-1]
        talk = [await self._said(row, row["agent"] or "agent") for row in said]
        texts = {"Memory": await self._memory(group["id"]), "Conversation": talk}
        members = ", ".join(names.get(one["agent_id"], "?") for one in group["members"])
        self._page(page, group["name"], f"{group['description'] or ''}\n\n{group['pattern_type']}: {members}", texts)
        return f"- {_link(group['name'], page)}: {members}"

    async def _memory(self, owner: str) -> list[str]:
        blocks = await self._home.pages("agents", owner, "memory")
        return [f"### {one['label']}\n\n{_quoted(one['content'])}" for one in blocks if one["agent_id"] == owner]

    async def _said(self, row: Json, name: str) -> str:
        """Return a message; its images are attached."""
        who = {"assistant": name, "tool": row.get("tool_name")}.get(row["role"], row["role"])
        texts = [cut(row["content"] or "", TOOL_CHARS_MAX if row["role"] == "tool" else len(row["content"] or ""))]
        for part in row.get("parts") or ():
            if part["type"] == "tool_call":
                arguments = json.dumps(part["arguments"], ensure_ascii=False)
                texts.append(f"· {part['tool']} {cut(arguments, TOOL_CHARS_MAX)}")
            elif part["type"] == "image" and (digest := part.get("digest")):
                file = f"images/{digest}{mimetypes.guess_extension(part.get('media_type') or '') or ''}"
                texts.append(await self._attach("![an image]", file, "images", digest, up="../../"))
        return f"**{who}**, {row['created_at'][:16]}\n\n" + _quoted("\n\n".join(filter(None, texts)))

    async def _attach(self, link: str, file: str, *below: str, up: str = "") -> str:
        """Download a file, once; return a link to it that begins so."""
        path = self._folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if not path.exists():
                await self._home.download(path, *below)
        except ServerFailed as error:
            self.skipped.append(f"{file}: {error.message}")
            return f"{link} (not available)"
        return f"{link}({quote(up + file)})"

    def _free(self, *names: str) -> str:
        """Return a path of these names that no other page or file has."""
        path = Path(*(_UNSAFE.sub("-", name).lstrip("-") or "-" for name in names))
        tries = (f"{path.parent}/{path.stem[:NAME_CHARS_MAX]}{f'-{no}' * (no > 1)}{path.suffix}" for no in count(1))
        found = next(one for one in tries if one.lower() not in self._taken)
        self._taken.add(found.lower())
        return found

    def _page(self, path: str, title: str, about: str, texts: Mapping[str, Sequence[str]]) -> None:
        parts = [f"# {title}", *filter(None, [about.strip()])]
        for name, lines in texts.items():
            parts += [f"## {name}", ("\n" if lines[0][0] == "-" else "\n\n").join(lines)] if lines else []
        (self._folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self._folder / path).write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _link(title: str, path: str) -> str:
    return f"[{title}]({quote(path)})"


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines()) or "> (empty)"
