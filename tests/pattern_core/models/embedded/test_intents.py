from __future__ import annotations

import time
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.models.embedded.intents import (
    Correct,
    Forget,
    Intent,
    Recall,
    Remember,
    Send,
    ShowMemory,
    SmallTalk,
    Talked,
    Unknown,
    WhoAreYou,
    parse,
)


def recall(topic: str) -> Recall:
    return Recall(topic=topic)


def question(topic: str) -> Recall:
    return Recall(topic=topic, is_question=True)


PHRASES: list[tuple[str, Intent]] = [
    ("Remember that my sister Ruth lives in Lisbon.", Remember(fact="My sister Ruth lives in Lisbon.")),
    ("Please remember that Ruth is allergic to walnuts.", Remember(fact="Ruth is allergic to walnuts.")),
    (
        "Note that the boiler was serviced in March by Mr. Okafor.",
        Remember(fact="The boiler was serviced in March by Mr. Okafor."),
    ),
    ("remember: the code is 4711", Remember(fact="The code is 4711")),
    ("remember this: the code is 4711", Remember(fact="The code is 4711")),
    ("Can you please remember that I moved to Porto?", Remember(fact="I moved to Porto?")),
    ("Hey Ada, remember that tea is at five", Remember(fact="Tea is at five")),
    ("Ada, please remember that tea is at five", Remember(fact="Tea is at five")),
    ("Ada, who is Ruth?", question("who is Ruth")),
    ("Well, hello", SmallTalk(kind="hello")),
    ("Hello! Remember that tea is at five", Remember(fact="Tea is at five")),
    ("Don't forget that the bins go out on Monday", Remember(fact="The bins go out on Monday")),
    ("don’t forget to buy milk", Remember(fact="To buy milk")),
    ("never forget: measure twice", Remember(fact="Measure twice")),
    ("Make a note of the wifi password: hunter2", Remember(fact="The wifi password: hunter2")),
    ("take note that the lift is broken", Remember(fact="The lift is broken")),
    ("write down that Bo owes me 20", Remember(fact="Bo owes me 20")),
    ("Keep in mind that I dislike phones", Remember(fact="I dislike phones")),
    ("save this: 12 eggs", Remember(fact="12 eggs")),
    ("store that the key is under the mat", Remember(fact="The key is under the mat")),
    ("FYI the office is closed on Friday", Remember(fact="The office is closed on Friday")),
    ("for the record, I said no", Remember(fact="I said no")),
    ("I want you to know that I am 40", Remember(fact="I am 40")),
    ("My name is Željko", Remember(fact="My name is Željko")),
    ("I live in Zürich", Remember(fact="I live in Zürich")),
    ("I'm allergic to cats.", Remember(fact="I'm allergic to cats.")),
    ("my favourite colour is green", Remember(fact="My favourite colour is green")),
    ("Remember that Ruth is a doctor. She works nights.", Remember(fact="Ruth is a doctor. She works nights.")),
    ("What do you know about Ruth?", recall("Ruth")),
    ("What do you remember about the boiler?", recall("the boiler")),
    ("what do you know about Mr. Okafor?", recall("Mr. Okafor")),
    ("Tell me everything you know about Ruth", recall("Ruth")),
    ("tell me about Ruth", recall("Ruth")),
    ("Do you remember Ruth?", recall("Ruth")),
    ("do you know anything about boilers?", recall("boilers")),
    ("What did I tell you about the boiler?", recall("the boiler")),
    ("remind me about the boiler", recall("the boiler")),
    ("What do you know about me?", recall("me")),
    ("Remember me?", recall("me")),
    ("Can you remember where I parked?", recall("where I parked")),
    ("search for walnuts", recall("walnuts")),
    ("Who is Ruth?", question("Who is Ruth")),
    ("When was the boiler serviced?", question("When was the boiler serviced")),
    ("where does my sister live", question("where does my sister live")),
    ("Is Ruth allergic to anything?", question("Is Ruth allergic to anything")),
    ("Hi. Who serviced the boiler?", question("Who serviced the boiler")),
    ("Forget Ruth's address", Forget(topic="Ruth's address")),
    ("Please forget that Ruth is allergic to walnuts.", Forget(topic="Ruth is allergic to walnuts")),
    ("forget about the boiler", Forget(topic="the boiler")),
    ("forget what I said about the boiler", Forget(topic="the boiler")),
    ("Forget everything about Ruth", Forget(topic="Ruth", everything=True)),
    ("forget everything you know about Ruth", Forget(topic="Ruth", everything=True)),
    ("forget everything", Forget(topic="", everything=True)),
    ("delete the boiler from your memory", Forget(topic="the boiler")),
    ("Change Lisbon to Porto", Correct(old="Lisbon", new="Porto")),
    ("please correct March to April.", Correct(old="March", new="April")),
    ("replace “walnuts” with “hazelnuts”", Correct(old="walnuts", new="hazelnuts")),
    ("Actually, it's Porto, not Lisbon.", Correct(old="Lisbon", new="Porto")),
    ("No, Porto, not Lisbon", Correct(old="Lisbon", new="Porto")),
    ("Actually Porto not Lisbon", Correct(old="Lisbon", new="Porto")),
    ("It's Porto, not Lisbon", Correct(old="Lisbon", new="Porto")),
    ("it is not Lisbon but Porto", Correct(old="Lisbon", new="Porto")),
    ("It isn't Lisbon, it's Porto", Correct(old="Lisbon", new="Porto")),
    ("Who are you?", WhoAreYou()),
    ("what's your name?", WhoAreYou()),
    ("Tell me about yourself", WhoAreYou()),
    ("Are you a language model?", WhoAreYou()),
    ("What did we talk about?", Talked()),
    ("What did we talk about yesterday?", Talked()),
    ("what have we discussed so far", Talked()),
    ("Summarise our conversation", Talked()),
    ("What did we talk about regarding the boiler?", Talked(topic="the boiler")),
    ("What did we say about the boiler?", Talked(topic="the boiler")),
    ("Show me your memory", ShowMemory()),
    ("what is in your memory block human?", ShowMemory(label="human")),
    ("Tell bob that dinner is ready", Send(target="bob", content="Dinner is ready")),
    ("send a message to bob: come home", Send(target="bob", content="Come home")),
    ("Hello", SmallTalk(kind="hello")),
    ("good morning ada!", SmallTalk(kind="hello")),
    ("help", SmallTalk(kind="help")),
    ("What can you do?", SmallTalk(kind="help")),
    ("Thanks!", SmallTalk(kind="thanks")),
    ("thank you very much", SmallTalk(kind="thanks")),
    ("good night", SmallTalk(kind="bye")),
    ("How are you?", SmallTalk(kind="how_are_you")),
    ("forget it", SmallTalk(kind="never_mind")),
    ("Write a poem.", Unknown()),
    ("The weather turned cold on Tuesday", Unknown()),
    ("", Unknown()),
    ("?", Unknown()),
    ("remember", Unknown()),
    ("remember that …", Unknown()),
]


@pytest.mark.parametrize(("text", "intent"), PHRASES, ids=[text for text, _ in PHRASES])
def test_phrases(text: str, intent: Intent) -> None:
    assert parse(text) == intent


def test_there_are_many_phrases() -> None:
    assert len(PHRASES) >= 60


WORDS = st.sampled_from(
    [
        *("remember", "that", "forget", "actually", "not", "?", "what do you know about", "change", "to", "is", "."),
        *("my sister", "tell", "bob", ":", "everything", "\n", "ż", "😀", "", "it's", "hello,", "from memory"),
    ]
)


@settings(max_examples=300)
@given(st.text(alphabet=st.characters(codec=None)) | st.lists(WORDS, max_size=15).map(" ".join))
def test_any_text_means_something_and_adds_nothing(text: str) -> None:
    intent = parse(text)
    assert type(intent) in get_args(Intent)
    known = set(text.upper()) | {" "}
    for said in (getattr(intent, name, "") or "" for name in ("fact", "topic", "old", "new", "content", "target")):
        assert set(said.upper()) <= known, said


@pytest.mark.parametrize(
    "text",
    [
        "remember that " + "long " * 40_000,
        "is " * 60_000 + "?",
        "my sister is " * 20_000 + "?",
        "actually a " * 20_000,
        "please " * 30_000,
        "? " * 100_000,
        "change a " * 20_000,
        "hello, " * 30_000,
    ],
)
def test_long_messages_take_little_time(text: str) -> None:
    started = time.thread_time()  # of the processor: the machine may be busy
    parse(text)
    assert time.thread_time() - started < 10
