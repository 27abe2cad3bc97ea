"""Long dialogues between a person and an assistant, made up: the second set that search is developed on.

LoCoMo is two friends who chat. Who talks to an assistant tells facts on the way to a request, often in a message that
ends with a question, and gets long answers with lists and code that repeat the words. So a dialogue here is some 40
sessions of three months: small talk about work on code and texts, and between it what is asked about afterwards.

| category | what answers the question |
|---|---|
| fact | a message of the person that says it once, or a short reply to a question of the assistant |
| update | the later of two messages that say different things |
| assistant | a long answer of the assistant that recommends something |
| temporal | a message of the day or the week that the question names |
| sessions | several messages of different sessions, each of which holds a part |

The words are drawn from a seed, so that the set is the same on every machine. Most questions use other words than what
they ask for, as people do after months; so words alone find little.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import trio

from tests.bench.locomo import Conversation, Question, measure
from tests.bench.report import Figure

DIALOGUES = 6
SESSIONS = 40
BEGIN = datetime(2025, 2, 3, 8, tzinfo=UTC)
FACTS, UPDATED, RECOMMENDED, DATED, GATHERED = 20, 10, 12, 12, 5
SHORT_REPLY = 0.3  # of the facts are a short reply to the assistant's question

# What is said with `{}` for the value, what the assistant asks for it, the question afterwards, values.
_FACTS: Sequence[tuple[str, str, str, str]] = (
    (
        "we adopted a puppy and called her {}",
        "What is the puppy called?",
        "What is the name of my dog?",
        "Mabel Juno Pixie Biscuit Waffle Nala",
    ),
    (
        "I start at my new employer {} on Monday",
        "Where do you work now?",
        "Which company hired me?",
        "Northwind Acmetrics Lumenia Brightforge Halden",
    ),
    (
        "my daughter turned {} last weekend",
        "How old is your daughter?",
        "What age is my little girl?",
        "four six seven nine eleven",
    ),
    (
        "I cannot eat {} without a rash",
        "Is there any food you avoid?",
        "What am I allergic to?",
        "peanuts shellfish strawberries sesame kiwi",
    ),
    (
        "our flat is on the {} floor and has no lift",
        "Which floor do you live on?",
        "How many stairs do I have to climb to get home, up to which storey?",
        "third fourth fifth sixth",
    ),
    (
        "my bike is a {}, bought second-hand",
        "What bike do you ride?",
        "What brand is my bicycle?",
        "Brompton Canyon Cannondale Surly Bianchi",
    ),
    (
        "my sister {} got engaged in the mountains",
        "What is your sister's name?",
        "Who in my family is going to marry?",
        "Teresa Ingrid Yasmin Paola Renske",
    ),
    (
        "the backup runs every night to {}",
        "Where do your backups go?",
        "Where are the nightly copies of my data stored?",
        "Backblaze Hetzner Wasabi Tarsnap Synology",
    ),
    (
        "my thesis is about {}",
        "What is your thesis about?",
        "What subject does my dissertation treat?",
        "lichens glaciers tardigrades kelp permafrost",
    ),
    (
        "I play the {} in a small band",
        "Which instrument do you play?",
        "What do I play in our music group?",
        "cello trombone banjo accordion vibraphone",
    ),
    (
        "our landlord, Mr {}, raises the rent again",
        "Who is your landlord?",
        "Who owns the apartment that we rent?",
        "Okafor Lindqvist Petrov Marchetti Duval",
    ),
    (
        "I take {} for my blood pressure",
        "Which pills do you take?",
        "What medication was I prescribed?",
        "ramipril amlodipine losartan bisoprolol",
    ),
    (
        "the garden has a {} tree right by the fence",
        "What grows by your fence?",
        "What kind of tree stands in our garden?",
        "quince mulberry walnut medlar persimmon",
    ),
    (
        "I passed the {} exam with the best grade",
        "Which exam did you take?",
        "Which test did I do so well in?",
        "Cantonese notary sommelier pilot paramedic",
    ),
    (
        "we spend Christmas in {} with my parents",
        "Where do your parents live?",
        "Where will the family celebrate the holidays?",
        "Tromsø Cádiz Ljubljana Galway Heraklion",
    ),
    (
        "the staging cluster lives in {}",
        "In which region is staging?",
        "In what data centre do we run the test environment?",
        "eu-north-1 ap-south-2 us-west-4 sa-east-1",
    ),
    (
        "our product's code name is {}",
        "What is the project called internally?",
        "How do we call the thing we build among ourselves?",
        "Kestrel Tangerine Obelisk Marmot Cobalt",
    ),
    (
        "I have a weak spot for {} cake",
        "Which cake do you like?",
        "What should my birthday cake taste of?",
        "rhubarb pistachio hazelnut lemon buckwheat",
    ),
    (
        "my physiotherapist is called {} and very strict",
        "Who treats your knee?",
        "Who works on my knee every week?",
        "Benedikt Solveig Tomasz Aurelia Kwame",
    ),
    (
        "we named our sourdough starter {}",
        "Does your starter have a name?",
        "What do we call the dough in the fridge?",
        "Clint Bubbles Gertrude Herman Doughlas",
    ),
    (
        "my laptop is a {} with a cracked corner",
        "Which laptop do you have?",
        "What computer do I work on?",
        "ThinkPad Framework Zenbook Latitude MateBook",
    ),
    (
        "the kids go to the {} school across the river",
        "Which school do the kids go to?",
        "Where are my children taught?",
        "Montessori Waldorf Fröbel Lindenhof Riverside",
    ),
    (
        "I support {} since I was a child",
        "Which club do you support?",
        "Which football team am I a fan of?",
        "Sevilla Feyenoord Celtic Torino Rosenborg",
    ),
    (
        "my grandfather was a {} before the war",
        "What did your grandfather do?",
        "What was the job of my mother's father?",
        "lamplighter cooper cartographer beekeeper typesetter",
    ),
)
# The same for what changes: said first, said later, asked.
_UPDATES: Sequence[tuple[str, str, str, str]] = (
    (
        "I moved to {} for work",
        "we left that city, I live in {} now",
        "Where do I live these days?",
        "Leipzig Porto Utrecht Gdańsk Bergen",
    ),
    (
        "I run {} kilometres a week at the moment",
        "the training goes up: it is {} kilometres each week from now on",
        "What is my current weekly running distance?",
        "20 30 45 60 75",
    ),
    (
        "we use {} for all services",
        "we migrated, everything is on {} since the release",
        "Which database does our system use now?",
        "MySQL Postgres Cassandra CockroachDB MariaDB",
    ),
    (
        "my boss is {}, whom I like a lot",
        "there was a reorganisation and I report to {} now",
        "Who is my manager at present?",
        "Henrike Marcus Odile Rajesh Fatima",
    ),
    (
        "I drive an old {}",
        "the car was sold, a {} stands in front of the house",
        "What car do I have?",
        "Volvo Skoda Fiat Subaru Citroën",
    ),
    (
        "the wedding will be on the {} of June",
        "we had to shift the wedding to the {} of June",
        "On which day do we marry?",
        "7th 14th 21st 28th",
    ),
    (
        "my gym days are {} and Friday",
        "I swapped the gym to {} since the course moved",
        "When do I go and work out?",
        "Monday Tuesday Wednesday Thursday Sunday",
    ),
    (
        "I read {} in the evenings",
        "finished that one, the book on my night stand is {}",
        "Which novel am I reading?",
        "Middlemarch Beloved Stoner Austerlitz Solaris",
    ),
    (
        "the budget for the kitchen is {} euros",
        "the kitchen got out of hand, we allow {} euros for it",
        "How much may the new kitchen cost?",
        "9,000 12,500 15,000 18,400 22,000",
    ),
    (
        "I learn {} with an app",
        "I gave that language up and take lessons in {}",
        "Which language am I studying?",
        "Hungarian Swahili Icelandic Basque Welsh",
    ),
    (
        "my desk is in room {}",
        "facilities moved me, you find me in room {}",
        "Where is my office?",
        "B204 C117 A350 D012 E441",
    ),
    (
        "the release is planned for version {}",
        "the plan slipped, we call the next release {}",
        "Which version comes out next?",
        "4.2 4.5 5.0 5.1 6.0",
    ),
)
# What is asked of the assistant, what it recommends, the question afterwards, values.
_RECOMMENDED: Sequence[tuple[str, str, str, str]] = (
    (
        "Which tool should I use to profile the slow import?",
        "I would begin with {}: it shows where the time is spent without changing the program.",
        "What did you suggest for finding out why the import is slow?",
        "py-spy scalene austin perf yappi",
    ),
    (
        "Where could we go for a long weekend with small children?",
        "My first choice is {}: short ways, a beach, and museums that are fun at four.",
        "Which place did you propose for the short trip with the kids?",
        "Ghent Trieste Valencia Aarhus Annecy",
    ),
    (
        "What can I cook for eight people without much work?",
        "Make {}: one pot, and it tastes better the next day.",
        "What dish did you say is easy for a large group?",
        "mole feijoada goulash dal cassoulet",
    ),
    (
        "How should I name the class that retries requests?",
        "`{}` says what it does and does not promise more.",
        "What name did you come up with for the code that repeats failed calls?",
        "Retrier Persistence SecondChance Backoff Repeater",
    ),
    (
        "Which exercise helps against a stiff neck?",
        "Do the {} twice a day, ten slow repetitions, and stop if it hurts.",
        "Which movement did you advise for my neck pain?",
        "chin-tuck shoulder-roll wall-angel doorway-stretch thread-the-needle",
    ),
    (
        "What should I plant on a balcony that gets no sun?",
        "{} is the safest choice: it forgives shade and irregular water.",
        "Which plant did you recommend for the dark balcony?",
        "Fuchsia Hosta Begonia Heuchera Astilbe",
    ),
    (
        "How do I keep the cats off the keyboard?",
        "A {} beside the desk works better than any word: they go where it is warm.",
        "What was your idea to distract my cats?",
        "heating-pad cardboard-box window-hammock radiator-bed",
    ),
    (
        "Which format is best for exchanging the measurements?",
        "I would write {}: small, typed, and every language reads it.",
        "Which file format did you think fits the sensor data?",
        "Parquet Avro MessagePack HDF5 Arrow",
    ),
    (
        "What is a good first book about statistics for my nephew?",
        "Give him {}: few formulas, many pictures, and it is honest about doubt.",
        "Which introduction to probability did you pick for a teenager?",
        "Freakonomics Factfulness Superforecasting Chancemaker Numbersense",
    ),
    (
        "How can I get the red wine out of the carpet?",
        "Cover it with {} at once, wait an hour and vacuum; never rub.",
        "What did you tell me to put on the stain?",
        "salt chalk cornstarch bentonite bicarbonate",
    ),
    (
        "Which algorithm should group the similar tickets?",
        "With so few tickets {} is enough, and you can explain it to the team.",
        "Which method did you favour for clustering the support requests?",
        "k-medoids DBSCAN HDBSCAN agglomerative spectral",
    ),
    (
        "What shall I say at the farewell of a colleague?",
        "Begin with the story of the {}: everybody knows it, and it is kind.",
        "Which anecdote did you think would open my speech?",
        "coffee-machine lost-badge fire-drill birthday-cake broken-projector",
    ),
    (
        "Which lens should I take on the safari?",
        "Take the {} and leave the rest at home; dust is worse than a missing focal length.",
        "What camera equipment did you advise me to pack for Africa?",
        "100-400 70-200 150-600 24-105",
    ),
    (
        "How do I call the meeting in which we look back?",
        "Call it {}: short, friendly, and nobody has to look it up.",
        "How did you want to title our review session?",
        "Rearview Harvest Debrief Lookback Campfire",
    ),
)
_DATED: Sequence[str] = (
    "I finished the half marathon, slower than I had hoped",
    "the washing machine flooded the bathroom",
    "I gave the talk in front of two hundred people",
    "we signed the contract for the house",
    "the tooth was pulled and I could eat only soup",
    "my passport was stolen on the train",
    "the first tomatoes are ripe",
    "I was promoted to team lead",
    "the server room was without power for six hours",
    "we saw a wolf at the edge of the forest",
    "my brother came back from Canada",
    "I broke my left wrist while skating",
    "the choir sang in the cathedral",
    "the investor said no",
    "I quit smoking",
    "the heating failed on the coldest day",
)
# A part of several: what is said of each, the question, values.
_GATHERED: Sequence[tuple[str, str, str]] = (
    (
        "we tried the restaurant {}, quite good",
        "Which restaurants have we been to?",
        "Trullo Mayura Kestane Oxalis Bodega",
    ),
    ("I ordered {} for the workshop", "What tools have I bought?", "a-plane clamps a-router chisels a-vise"),
    (
        "{} reported the bug with the time zones, too",
        "Which customers complained about time zones?",
        "Helvetia Orange Sonova Kuoni Swisscom",
    ),
    ("I watched {} on the plane", "Which films did I see while flying?", "Parasite Amélie Arrival Moonlight Roma"),
    ("we hiked up the {}, with rain of course", "Which mountains did we climb?", "Säntis Rigi Pilatus Niesen Napf"),
    ("I applied at {} as well", "Where have I sent my CV?", "Siemens Roche Zalando Bosch Adyen"),
    (
        "gave {} away, the shelf gets lighter",
        "Which board games did I part with?",
        "Catan Agricola Azul Carcassonne Dominion",
    ),
)

_OPENERS = (
    "By the way, ",
    "Some news: ",
    "You should know that ",
    "Before I forget: ",
    "",
    "",
    "So, ",
    "Today a short note: ",
)
_REQUESTS = (
    "Can you help me to write a mail about it?",
    "Any tips?",
    "What should I think of now?",
    "Could you make a checklist for me?",
    "Is that normal?",
    "How would you tell that to my family?",
    "What would you do next?",
    "Please remember that.",
    "Keep it in mind.",
    "Nothing to do for you, I only wanted to say it.",
)
_CHATTER = (
    "Write a function that reads a CSV file and drops the empty rows.",
    "Summarise this article about heat pumps, please.",
    'Translate "I look forward to the meeting" into French.',
    "Why does my test pass alone and fail in the suite?",
    "Give me five titles for a newsletter about cycling.",
    "Explain eventual consistency as if I were ten.",
    "How do I politely say no to an invitation?",
    "Make a shopping list for a vegetarian week.",
    "What is the difference between a process and a thread?",
    "Rewrite this paragraph so that it sounds friendlier.",
    "Which questions should I ask in the interview?",
    "Sort these notes by topic.",
    "Thanks, that helped!",
    "Ok, next.",
    "Hm, that did not work. What else?",
    "Write a regular expression for dates.",
    "Plan two hours of work on the report.",
)
_SENTENCES = (
    "Start with the smallest step that tells you something.",
    "Write down what you expect before you look.",
    "Most of the time is lost in waiting for others, so ask early.",
    "A list on paper is fine; what matters is that it is one list.",
    "If it fails again, keep the exact message and the time.",
    "Check the input first: an empty file looks like a bug elsewhere.",
    "Be friendly and short, people answer that sooner.",
    "Leave a buffer of a fifth for what nobody thought of.",
    "Measure it once, change one thing, and measure again.",
    "Drink enough water and take a break every hour.",
    "The second version is usually the better one, so do not polish the first.",
    "Ask a person who has done it before.",
    "The cache may be stale: clear it and compare.",
    "Sleep a night over the decision.",
    "Numbers convince more than adjectives.",
)
_CODE = (
    "```python\ndef rows(file):\n    for line in file:\n        yield line.split(',')\n```",
    "```python\npattern = re.compile(r'\\d{4}-\\d{2}-\\d{2}')\nprint(pattern.findall(text))\n```",
    "```sql\nSELECT name, count(*) AS orders\nFROM customers JOIN orders USING (id)\nGROUP BY name;\n```",
    '```bash\nset -euo pipefail\nfor file in *.log; do\n  gzip --best "$file"\ndone\n```',
)


@dataclass
class _Dialogue:
    """A dialogue in the making. `planned` are the exchanges of each session: what is said by whom, and whether it is
    evidence of a question's number.
    """

    chance: random.Random
    planned: list[list[list[tuple[str, str, int | None]]]] = field(
        default_factory=lambda: [[] for _ in range(SESSIONS)]
    )
    asked: list[tuple[str, int]] = field(default_factory=list)

    def question(self, text: str, category: int) -> int:
        """Ask it in the end; its number."""
        self.asked.append((text, category))
        return len(self.asked) - 1

    def tell(self, session: int, statement: str, asking: str | None, number: int | None) -> None:
        """Have the person say it, in a message with a request, or as a reply to `asking`."""
        if asking is not None:
            self.planned[session].append(
                [
                    ("user", self.chance.choice(_CHATTER), None),
                    ("assistant", f"{self.answer()}\n\n{asking}", None),
                    ("user", statement, number),
                    ("assistant", self.answer(short=True), None),
                ]
            )
            return
        said = self.chance.choice(_OPENERS) + statement
        text = f"{said[0].upper()}{said[1:]}. {self.chance.choice(_REQUESTS)}"
        reply = (
            f"Noted: {statement.replace('my ', 'your ').replace('I ', 'you ').replace('we ', 'you ')}. {self.answer()}"
        )
        self.planned[session].append([("user", text, number), ("assistant", reply, None)])

    def answer(self, *, short: bool = False) -> str:
        """What an assistant says at length."""
        sentences = self.chance.sample(_SENTENCES, 2 if short else self.chance.randint(4, 9))
        if short or self.chance.random() < 0.4:
            return " ".join(sentences)
        listed = "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(sentences[1:], start=1))
        code = "\n\n" + self.chance.choice(_CODE) if self.chance.random() < 0.4 else ""
        return f"{sentences[0]}\n\n{listed}{code}"

    def chat(self, session: int) -> None:
        """Add what is only said in passing."""
        for _ in range(self.chance.randint(2, 5)):
            self.planned[session].append(
                [("user", self.chance.choice(_CHATTER), None), ("assistant", self.answer(), None)]
            )


def conversations() -> list[Conversation]:
    """Return all dialogues with their questions."""
    return [_dialogue(number) for number in range(DIALOGUES)]


def run() -> list[Figure]:
    """Return the figures of `locomo` for these dialogues."""
    return trio.run(measure, conversations())


def _dialogue(number: int) -> Conversation:
    chance = random.Random(f"dialogue {number}")
    made = _Dialogue(chance)
    for statement, asking, question, values in chance.sample(_FACTS, FACTS):
        value, session = chance.choice(values.split()), chance.randrange(SESSIONS)
        is_short = chance.random() < SHORT_REPLY
        said = f"{value}." if is_short else statement.format(value)
        plain = f" {asking}".replace(" you ", " I ").replace(" your ", " my ").strip()
        made.tell(session, said, asking if is_short else None, made.question(chance.choice((question, plain)), 1))
    for first, later, question, values in chance.sample(_UPDATES, UPDATED):
        old, new = chance.sample(values.split(), 2)
        made.tell(chance.randrange(SESSIONS // 2), first.format(old), None, None)
        made.tell(chance.randrange(SESSIONS // 2, SESSIONS), later.format(new), None, made.question(question, 2))
    for request, advice, question, values in chance.sample(_RECOMMENDED, RECOMMENDED):
        advised = advice.format(chance.choice(values.split()))
        before, after = made.answer(), made.answer()
        lines = [("user", request, None), ("assistant", f"{before}\n\n{advised} {after}", made.question(question, 3))]
        made.planned[chance.randrange(SESSIONS)].append(lines)
    for event in chance.sample(_DATED, DATED):
        session = chance.randrange(SESSIONS)
        day = _start(session)
        when = chance.choice((f"on {day:%d %B %Y}", f"in the week of {day:%Y-%m-%d}", f"on {day:%B} {day.day}"))
        made.tell(session, event, None, made.question(f"What happened to me {when}?", 4))
    for statement, question, values in chance.sample(_GATHERED, GATHERED):
        asked = made.question(question, 5)
        several = chance.sample(values.split(), chance.randint(2, 4))
        for session, value in zip(chance.sample(range(SESSIONS), len(several)), several, strict=True):
            made.tell(session, statement.format(value.replace("-", " ")), None, asked)
    for session in range(SESSIONS):
        made.chat(session)
        chance.shuffle(made.planned[session])
    return _conversation(f"dialogue-{number}", made)


def _start(session: int) -> datetime:
    return BEGIN + timedelta(days=2 * session + session // 3, hours=session % 9)


def _conversation(name: str, made: _Dialogue) -> Conversation:
    said: list[dict[str, Any]] = []
    evidence: dict[int, set[str]] = {}
    sessions: dict[int, set[str]] = {}
    for session, exchanges in enumerate(made.planned):
        moment = _start(session)
        for role, content, number in (line for lines in exchanges for line in lines):
            moment += timedelta(seconds=40)
            fields = {"role": role, "content": content, "session_id": f"s{session}", "created_at": moment.isoformat()}
            if number is not None:
                evidence.setdefault(number, set()).add(str(len(said)))
                sessions.setdefault(number, set()).add(f"s{session}")
            said.append(fields)
    questions = [
        Question(text=text, turns=frozenset(evidence[number]), sessions=frozenset(sessions[number]), category=category)
        for number, (text, category) in enumerate(made.asked)
    ]
    turn_ids = [str(number) for number in range(len(said))]
    return Conversation(name=name, messages=said, turn_ids=turn_ids, questions=questions)
