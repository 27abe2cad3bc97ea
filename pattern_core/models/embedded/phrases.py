"""The set phrases of the embedded provider; it says plainly what it is and is not."""

from __future__ import annotations

NO_MODEL = (
    "I have no language model configured: I am a set of rules that remembers, finds, corrects and forgets. To give me a"
    " model, set ANTHROPIC_API_KEY or OPENAI_API_KEY, or describe a server of your own in pattern.toml under"
    ' [providers.<name>] with kind = "openai" and its base_url; then set the agent\'s model_provider and model_name.'
)
WHAT_I_AM = (
    "I am not a language model: I answer by rules (provider embedded, model rules-1), from my memory and from what was"
    " said to me."
)
KNOWS_NOTHING_OF_YOU = "I know nothing about you yet. Tell me something, as in: remember that I live in Lisbon."
HISTORY_STAYS = "What was said in our conversations and what is in my archive stays where it is."
HELP = (
    "Without a language model I can do this:\n"
    "- remember that … (I keep it in my memory)\n"
    "- what do you know about …? who is …? when did …?\n"
    "- change … to … or: actually …, not …\n"
    "- forget …, forget everything about …\n"
    "- what did we talk about? what did we say about …?\n"
    "- show me your memory\n"
    "- tell NAME that … (a message to another agent)\n"
    f"{NO_MODEL}"
)
SMALL_TALK = {
    "hello": "Hello! Tell me what to remember, or ask me what I know; “help” lists what I can do.",
    "help": HELP,
    "thanks": "You are welcome.",
    "bye": "Goodbye. I keep what you told me.",
    "how_are_you": "I am rules, so always the same, thank you. What shall I remember or find?",
    "never_mind": "All right.",
}
