"""Posts of Bluesky as text, with the thread that they are in, and which of them are heard. What is not as the lexicons
below app.bsky.feed and app.bsky.embed say is left out of a thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pattern_core.errors import InvalidInput
from pattern_core.sources.source import LINK_CHARS_MAX, SourceFile, SourceKind, take_fields
from pattern_db.columns import Json

POST = "app.bsky.feed.post"
DEPTH, PARENTS_MAX = 6, 80
READ: Mapping[str, int] = {"depth": DEPTH, "parentHeight": PARENTS_MAX}  # of a thread
NODES_MAX = 1_000
PARENTS_SHOWN, LEVELS_SHOWN, REPLIES_SHOWN, IMAGES_SHOWN = 10, 3, 6, 4
TEXT_CHARS_MAX = 3_000  # of a post
SHOWN_CHARS_MAX = 1_500  # of each other post of a thread
ALT_CHARS_MAX = 300  # of an image's description, and of a link's title
FILTERS: Mapping[str, str] = {
    "friends": "handles or DIDs of people with posts that need not pass what follows, unless excluded",
    "authors": "the only other people who are heard; none: all",
    "exclude_authors": "people; a thread with one of them is not read at all",
    "mentions_only": "whether posts must mention the account",
    "words": "words of which a post must have one",
    "exclude_words": "words that no post may have; other answers with one are left out of the thread",
    "languages": "languages, such as en, of posts that say theirs",
}

Post = Mapping[str, Any]  # `app.bsky.feed.defs#postView`


def take_filters(kind: SourceKind, config: Mapping[str, Json], defaults: Mapping[str, Json]) -> dict[str, Json]:
    """Return a configuration with its defaults, as `take_fields`, also of the filters that a kind has.

    Raises:
        InvalidInput: as `take_fields`, or a filter is not a list of texts.
    """
    filters: dict[str, Json] = {
        name: False if name == "mentions_only" else [] for name in FILTERS if name in kind.fields
    }
    found = take_fields(kind, config, {**defaults, **filters})
    for name in filters:
        if isinstance(found[name], list) and not all(isinstance(one, str) and one for one in found[name]):
            raise InvalidInput(f"`{name}` is a list of texts: {kind.fields[name]}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A post with those above it, the first one first (None: one that cannot be shown), and other answers around it,
    the nearest ones first. `authors` are of all posts that are there, also of those that the account may not see.
    """

    post: Post
    parents: Sequence[Post | None] = ()
    around: Sequence[Post] = ()
    authors: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, view: Mapping[str, Any], uri: str) -> Thread | None:
        """Return the thread of the post `uri`, from what `getPostThread` shows of it or its parent; None if it is gone.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: that is not as the protocol says.
        """
        nodes, near = _below(view)
        post = next((one for one in map(_readable, nodes) if one and one["uri"] == uri), None)
        if post is None:
            return None
        chain, above = list[Mapping[str, Any]](), view if at(view, "post", "uri") != uri else view.get("parent")
        while isinstance(above, Mapping) and len(chain) < PARENTS_MAX:
            chain.append(above)
            above = above.get("parent")
        parents = [_readable(one) for one in reversed(chain)]
        known = {one["uri"] for one in parents if one} | {uri}
        around = [one for one in map(_readable, nodes[:near]) if one and one["uri"] not in known]
        authors = _maps([at(one, "post", "author") or one.get("author") for one in (*nodes, *chain)])
        return cls(post=post, parents=parents, around=around, authors=authors)

    @property
    def above(self) -> list[Post]:
        """Those that can be shown, down to the post. What posts say is their authors' word, so the first one need not
        be what they say.
        """
        return [one for one in (*self.parents, self.post) if one]

    def is_refused(self, config: Mapping[str, Json]) -> bool:
        """Return whether someone or something excluded is in it; what is in other answers is only left out."""
        return any(is_one_of(config["exclude_authors"], one) for one in self.authors) or any(
            _has(config["exclude_words"], words(one)) for one in self.above
        )

    def is_meant(self, config: Mapping[str, Json], me: str, reason: str) -> bool:
        """Return whether a post of which the account was notified for this reason is meant for it, or is a friend's."""
        is_answer = bool(self.parents) and at(self.parents[-1], "author", "did") == me
        is_said = is_answer or reason != "reply" or mentions(self.post["record"], me)
        return is_said or is_one_of(config["friends"], self.post["author"])

    def shown(self, config: Mapping[str, Json], me: str, *, is_known: bool = False) -> str:
        """Return the post as an agent reads it, with its thread; of one that `is_known` only what is directly above."""

        def said(one: Post | None) -> str:
            if one is None:
                return "[a post that is deleted or hidden]"
            mark = "[YOU] " if one["author"]["did"] == me else ""
            shown = line(words(one, config["exclude_authors"]), SHOWN_CHARS_MAX)
            return _indented(f"{mark}@{one['author']['handle']}: {shown}")

        text = words(self.post, config["exclude_authors"]) or "[a post without words]"
        if not self.parents and not self.around:
            return text
        above, first = [said(one) for one in self.parents], 0 if is_known else 1
        if (left_out := len(above) - (1 if is_known else PARENTS_SHOWN)) > 0:
            above[first : left_out + first] = [f"[{left_out} posts are not shown{' again' * is_known}]"]
        heard = [one for one in self.around if not _has(config["exclude_words"], words(one))]
        below = [said(one) for one in heard[:REPLIES_SHOWN]]
        if len(heard) > REPLIES_SHOWN:
            below.append(f"[{len(heard) - REPLIES_SHOWN} more answers are not shown]")
        if len(heard) < len(self.around):
            below.append(f"[answers hidden by filters: {len(self.around) - len(heard)}]")
        parts = {"Earlier in this thread": above, "The post": [_indented(text)]}
        parts |= {} if is_known else {"Other answers in this thread": below}
        return "\n\n".join("\n".join([f"{title}:", *lines]) for title, lines in parts.items() if lines)

    def images(self, *, is_known: bool) -> list[SourceFile]:
        """Return the images of the post, then of those above it unless it `is_known`."""
        found = list[SourceFile]()
        for post in [self.post] if is_known else self.above[::-1]:
            embed = post.get("embed")
            for one in _maps(at(embed, "images") or at(embed, "media", "images")):
                if 0 < len(ref := line(one.get("thumb"), LINK_CHARS_MAX)) <= LINK_CHARS_MAX:
                    found.append(SourceFile(name=f"image-{len(found) + 1}", ref=ref))
        return found[:IMAGES_SHOWN]


def _indented(text: str) -> str:
    """Return a text with no line that looks like another post."""
    return "\n  ".join(text.splitlines())


def _below(view: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], int]:
    """Return a view of a thread and all below it, level by level; and how many of these are on the levels to show."""
    nodes, level, near = list[Mapping[str, Any]](), [view], 0
    for depth in range(DEPTH + 1):
        nodes = [*nodes, *level][:NODES_MAX]
        near = len(nodes) if depth <= LEVELS_SHOWN else near
        level = [each for one in level for each in _maps(one.get("replies"))]
    return nodes, near


def _readable(view: Mapping[str, Any]) -> Post | None:
    """Return the post of a view if it has what each must have."""
    named = (at(view, "post", "uri"), at(view, "post", "author", "did"), at(view, "post", "author", "handle"))
    is_named = all(isinstance(one, str) for one in named)
    return view["post"] if is_named and isinstance(at(view, "post", "record"), Mapping) else None


def passes(config: Mapping[str, Json], author: Mapping[str, Any], record: Mapping[str, Any], me: str = "") -> bool:
    """Return whether a post is heard by itself: what is excluded is not, then friends are, then the rest counts."""
    said = line(record.get("text"), TEXT_CHARS_MAX)
    if is_one_of(config["exclude_authors"], author) or _has(config["exclude_words"], said):
        return False
    if is_one_of(config["friends"], author):
        return True
    if (config["authors"] and not is_one_of(config["authors"], author)) or (
        config.get("mentions_only") and not mentions(record, me)
    ):
        return False
    if config["words"] and not _has(config["words"], said):
        return False
    spoken = [line(one, 20).casefold() for one in _list(record.get("langs"))]
    wanted = [str(one).casefold() for one in config["languages"]]
    return not wanted or not spoken or any(one.partition("-")[0] in wanted or one in wanted for one in spoken)


def is_one_of(names: Sequence[Json], author: Mapping[str, Any]) -> bool:
    """Return whether an author is one of those with these handles or DIDs."""
    own = {str(author.get(key)).casefold() for key in ("did", "handle")}
    return any(str(name).removeprefix("@").casefold() in own for name in names)


def mentions(record: Mapping[str, Any], did: str) -> bool:
    """Return whether a post mentions an account: its facets say so, not its words."""
    return any(
        feature.get("did") == did for one in _maps(record.get("facets")) for feature in _maps(one.get("features"))
    )


def words(post: Post, exclude_authors: Sequence[Json] = ()) -> str:
    """Return what a post says, and what it has besides words."""
    said, embed = [line(post["record"].get("text"), TEXT_CHARS_MAX)], post.get("embed")
    if isinstance(embed, Mapping):
        said += _embedded(embed, exclude_authors)
    return "\n".join(filter(None, said))


def _embedded(embed: Mapping[str, Any], exclude_authors: Sequence[Json]) -> Iterator[str]:
    match line(embed.get("$type")).removeprefix("app.bsky.embed.").partition("#")[0]:
        case "images":
            images = _maps(embed.get("images"))
            yield f"[images: {len(images)}]"
            yield from (f"[image: {alt}]" for one in images[:IMAGES_SHOWN] if (alt := line(one.get("alt"))))
        case "external" if isinstance(link := embed.get("external"), Mapping):
            yield f"[link: {line(link.get('title'))} {line(link.get('uri'), 1_000)}]"
        case "video":
            yield f"[video: {line(embed.get('alt'))}]"
        case "record" if isinstance(quote := embed.get("record"), Mapping):
            author, value = quote.get("author"), quote.get("value")
            if not isinstance(author, Mapping) or not isinstance(value, Mapping):
                yield "[quotes something that cannot be shown]"
            elif is_one_of(exclude_authors, author):
                yield "[quotes something that is left out]"
            else:
                yield f"[quotes @{line(author.get('handle'))}: {line(value.get('text'), TEXT_CHARS_MAX)}]"
        case "recordWithMedia":
            for part in _maps([embed.get("media"), embed.get("record")]):
                kind = line(part.get("$type")) or "record"
                # A part has no parts of its own: that would be without end.
                yield from _embedded({**part, "$type": kind * ("recordWithMedia" not in kind)}, exclude_authors)
        case _:
            yield "[something that cannot be shown]"


def at(value: object, *keys: str) -> Any:
    """Return what is at these keys within a value, None if anything on the way is not there."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _has(excluded: Sequence[Json], said: str) -> bool:
    return any(str(word).casefold() in said.casefold() for word in excluded)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _maps(value: object) -> list[Mapping[str, Any]]:
    return [one for one in _list(value) if isinstance(one, Mapping)]


def line(value: object, chars_max: int = ALT_CHARS_MAX) -> str:
    """Return a text of bounded length; nothing for what is not a text."""
    text = value if isinstance(value, str) else ""
    return text if len(text) <= chars_max else f"{text[:chars_max]}…"
