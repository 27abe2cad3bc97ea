"""Posts of Bluesky as text, with the thread that they are in, and which of them are heard. What is not as the lexicons
below app.bsky.feed and app.bsky.embed say is left out of a thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pattern_db.columns import Json

DEPTH, PARENTS_MAX = 6, 80  # of a thread that is read
NODES_MAX = 1_000
PARENTS_SHOWN, REPLIES_SHOWN = 10, 6
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A post with those above it, the first one first (None: one that cannot be shown), and other answers around it.

    `hidden` are the DIDs of the authors of posts that the account may not see.
    """

    parents: Sequence[Post | None]
    post: Post
    around: Sequence[Post] = ()
    hidden: Sequence[str] = ()

    @classmethod
    def of(cls, view: Mapping[str, Any], uri: str) -> Thread | None:
        """Return the thread of the post `uri`, from what `getPostThread` shows of it or its parent; None if it is gone.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: that is not as the protocol says.
        """
        nodes = [one for one in _below(view) if one.get("post") is not None]
        post = _readable(next((one["post"] for one in nodes if _uri(one) == uri), None))
        if post is None:
            return None
        parents, above = list[Post | None](), view if _uri(view) != uri else view.get("parent")
        hidden = [_blocked(one) for one in _below(view)]
        while isinstance(above, Mapping) and len(parents) < PARENTS_MAX:
            parents.append(_readable(above.get("post")))
            hidden.append(_blocked(above))
            above = above.get("parent")
        known = {one["uri"] for one in parents if one is not None} | {uri}
        around = [one for one in (_readable(node["post"]) for node in nodes) if one and one["uri"] not in known]
        return cls(parents=parents[::-1], post=post, around=around, hidden=[*filter(None, hidden)])

    @property
    def top(self) -> Post:
        """The first post that can be shown. What posts say is their authors' word, so it need not be what they say."""
        return next((one for one in self.parents if one is not None), self.post)

    def is_refused(self, config: Mapping[str, Json]) -> bool:
        """Return whether someone or something excluded is in it; what is in other answers is only left out."""
        above = [one for one in (*self.parents, self.post) if one is not None]
        authors = [one["author"] for one in (*above, *self.around)] + [{"did": did} for did in self.hidden]
        return any(is_one_of(config["exclude_authors"], one) for one in authors) or any(
            _has(config["exclude_words"], words(one)) for one in above
        )

    def shown(self, config: Mapping[str, Json], me: str) -> str:
        """Return the post as an agent reads it, with its thread."""

        def said(one: Post | None) -> str:
            if one is None:
                return "[a post that is deleted or hidden]"
            mark = "[YOU] " if one["author"]["did"] == me else ""
            shown = _line(words(one, config["exclude_authors"]), SHOWN_CHARS_MAX)
            return _indented(f"{mark}@{one['author']['handle']}: {shown}")

        text = words(self.post, config["exclude_authors"]) or "[a post without words]"
        if not self.parents and not self.around:
            return text
        above = [said(one) for one in self.parents]
        if (left_out := len(above) - PARENTS_SHOWN) > 0:
            above[1 : left_out + 1] = [f"[{left_out} posts are not shown]"]
        heard = [one for one in self.around if not _has(config["exclude_words"], words(one))]
        below = [said(one) for one in heard[:REPLIES_SHOWN]]
        if len(heard) > REPLIES_SHOWN:
            below.append(f"[{len(heard) - REPLIES_SHOWN} more answers are not shown]")
        if len(heard) < len(self.around):
            below.append(f"[answers hidden by filters: {len(self.around) - len(heard)}]")
        parts = {"Earlier in this thread": above, "The post": [_indented(text)], "Other answers in this thread": below}
        return "\n\n".join("\n".join([f"{title}:", *lines]) for title, lines in parts.items() if lines)


def _indented(text: str) -> str:
    """Return a text with no line that looks like another post."""
    return "\n  ".join(text.splitlines())


def _below(view: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a view of a thread and all below it, level by level."""
    level, count = [view], 0
    for _ in range(DEPTH + 1):
        for one in level:
            count += 1
            if count <= NODES_MAX:
                yield one
        level = [
            each
            for one in level
            if isinstance(replies := one.get("replies"), list)
            for each in replies
            if isinstance(each, Mapping)
        ]


def _uri(view: Mapping[str, Any]) -> object:
    post = view.get("post")
    return post.get("uri") if isinstance(post, Mapping) else None


def _blocked(view: Mapping[str, Any]) -> str:
    """Return the author of a post that the account may not see, if that is said; else nothing."""
    author = view.get("author")
    did = author.get("did") if isinstance(author, Mapping) else None
    return did if isinstance(did, str) else ""


def _readable(post: object) -> Post | None:
    """Return a post if it has what each must have."""
    if not isinstance(post, Mapping):
        return None
    author = post.get("author")
    if not isinstance(author, Mapping) or not isinstance(post.get("record"), Mapping):
        return None
    is_named = all(isinstance(one, str) for one in (post.get("uri"), author.get("did"), author.get("handle")))
    return post if is_named else None


def passes(config: Mapping[str, Json], author: Mapping[str, Any], record: Mapping[str, Any], me: str) -> bool:
    """Return whether a post is heard by itself: what is excluded is not, then friends are, then the rest counts."""
    said = _line(record.get("text"), TEXT_CHARS_MAX)
    if is_one_of(config["exclude_authors"], author) or _has(config["exclude_words"], said):
        return False
    if is_one_of(config["friends"], author):
        return True
    if (config["authors"] and not is_one_of(config["authors"], author)) or (
        config["mentions_only"] and not mentions(record, me)
    ):
        return False
    if config["words"] and not _has(config["words"], said):
        return False
    spoken = [_line(one, 20).casefold() for one in _list(record.get("langs"))]
    wanted = [str(one).casefold() for one in config["languages"]]
    return not wanted or not spoken or any(one.partition("-")[0] in wanted or one in wanted for one in spoken)


def is_one_of(names: Sequence[Json], author: Mapping[str, Any]) -> bool:
    """Return whether an author is one of those with these handles or DIDs."""
    own = {str(author.get(key)).casefold() for key in ("did", "handle")}
    return any(str(name).removeprefix("@").casefold() in own for name in names)


def mentions(record: Mapping[str, Any], did: str) -> bool:
    """Return whether a post mentions an account: its facets say so, not its words."""
    facets = (one for one in _list(record.get("facets")) if isinstance(one, Mapping))
    features = (each for one in facets for each in _list(one.get("features")) if isinstance(each, Mapping))
    return any(one.get("did") == did for one in features)


def _has(excluded: Sequence[Json], said: str) -> bool:
    return any(str(word).casefold() in said.casefold() for word in excluded)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _line(value: object, chars_max: int = ALT_CHARS_MAX) -> str:
    """Return a text of bounded length; nothing for what is not a text."""
    text = value if isinstance(value, str) else ""
    return text if len(text) <= chars_max else f"{text[:chars_max]}…"


def words(post: Post, exclude_authors: Sequence[Json] = ()) -> str:
    """Return what a post says, and what it has besides words."""
    said = [_line(post["record"].get("text"), TEXT_CHARS_MAX)]
    embed = post.get("embed")
    if isinstance(embed, Mapping):
        said += _embedded(embed, exclude_authors)
    return "\n".join(filter(None, said))


def _embedded(embed: Mapping[str, Any], exclude_authors: Sequence[Json]) -> Iterator[str]:
    match _line(embed.get("$type")).removeprefix("app.bsky.embed.").partition("#")[0]:
        case "images":
            images = [one for one in _list(embed.get("images")) if isinstance(one, Mapping)]
            yield f"[images: {len(images)}]"
            yield from (f"[image: {alt}]" for one in images[:4] if (alt := _line(one.get("alt"))))
        case "external" if isinstance(link := embed.get("external"), Mapping):
            yield f"[link: {_line(link.get('title'))} {_line(link.get('uri'), 1_000)}]"
        case "video":
            yield f"[video: {_line(embed.get('alt'))}]"
        case "record" if isinstance(quote := embed.get("record"), Mapping):
            author, value = quote.get("author"), quote.get("value")
            if not isinstance(author, Mapping) or not isinstance(value, Mapping):
                yield "[quotes something that cannot be shown]"
            elif is_one_of(exclude_authors, author):
                yield "[quotes something that is left out]"
            else:
                yield f"[quotes @{_line(author.get('handle'))}: {_line(value.get('text'), TEXT_CHARS_MAX)}]"
        case "recordWithMedia":
            for part in (embed.get("media"), embed.get("record")):
                if isinstance(part, Mapping):
                    # A part has no parts of its own: that would be without end.
                    yield from _embedded({**part, "$type": _part_type(part)}, exclude_authors)
        case _:
            yield "[something that cannot be shown]"


def _part_type(part: Mapping[str, Any]) -> str:
    kind = _line(part.get("$type")) or "record"
    return "" if "recordWithMedia" in kind else kind
