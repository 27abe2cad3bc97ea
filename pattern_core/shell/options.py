"""Options among the words of a command."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pattern_core.shell.script import Word


def has_option(words: Sequence[Word], wanted: Collection[str]) -> bool:
    """Whether one of `wanted` (single letters and long names without dashes) is among the words, or may be.

    Letters are looked for in clusters, also where they may belong to a value; long names also by their beginnings.
    """
    for one in words:
        if one.text == "--":
            return False
        if one.text is None:
            if one.may_be_option:
                return True
            continue
        if one.text.startswith("--"):
            name = one.text[2:].split("=", 1)[0]
            if any(option == name or (len(option) > 1 and option.startswith(name)) for option in wanted):
                return True
        elif one.text.startswith("-") and (set(one.text[1:]) & set(wanted) or one.text[1:].split("=", 1)[0] in wanted):
            return True
    return False


def operands(words: Sequence[Word]) -> list[Word]:
    """The words that are no options, as far as that is certain; values of options count among them."""
    found: list[Word] = []
    for place, one in enumerate(words):
        if one.text == "--":
            return found + list(words[place + 1 :])
        if one.text is None or not one.may_be_option:
            found.append(one)
    return found


def after_options(words: Sequence[Word], with_value: Collection[str], flags: Collection[str]) -> Sequence[Word] | None:
    """The words that follow a wrapper's options: those `with_value` take the rest of their word or the next one,
    `flags` none. None if that is uncertain.
    """
    place = 0
    while place < len(words):
        text = words[place].text
        if text is None:
            return words[place:] if not words[place].may_be_option else None
        if text == "--":
            return words[place + 1 :]
        if not text.startswith("-") or text == "-":
            return words[place:]
        if text in with_value:
            place += 2
        elif text in flags or text.split("=", 1)[0] in with_value or (text[1] != "-" and text[:2] in with_value):
            place += 1
        else:
            return None
    return ()
