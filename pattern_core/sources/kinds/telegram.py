"""Telegram: the agent is a bot that people write to. Updates come by a long poll, so no public address is needed.

Source: core.telegram.org/bots/api. The offset that a poll sends acknowledges all updates before it, so it is sent only
after they are stored. The service does not know a repeated message, so an answer with an unknown outcome is in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import quote

from pattern_core.errors import PatternError
from pattern_core.sources.service import BUTTONS, ServiceApi, ServiceKind, hiding, pressed
from pattern_core.sources.source import (
    UNREADABLE,
    Arrivals,
    Outgoing,
    SourceAccount,
    SourceEvent,
    SourceFile,
    bytes_of,
    multipart,
)
from pattern_db.columns import Json

POLL_S = 50  # how long the service waits for an update
UPDATES_MAX = 50  # of one poll
ALLOWED = ("message", "edited_message", "callback_query")
_FILES = ("document", "photo")  # are downloaded
_OTHERS = ("voice", "audio", "video", "video_note", "sticker", "animation", "location", "contact")
_API = ServiceApi(name="Telegram", advice="copy the token again from @BotFather", means={404: 401})  # of a wrong token
_CALLBACK = "callback/"  # how the name of an event that is a pressed button begins


class TelegramChannel(ServiceKind):
    """People talk to a bot: each chat and each topic is a conversation."""

    fields: ClassVar = {
        "token": "name of a secret below [sources.secrets] with the bot's token from @BotFather",
        "base_url": "address of the Bot API; another one than Telegram's for a Bot API server of your own",
    }
    secret_fields: ClassVar = ("token",)
    home: ClassVar = "https://api.telegram.org"
    chars_max: ClassVar = 4096

    async def check(self, account: SourceAccount) -> str:
        """Return the address of the bot, as `SourceKind.check`. Two polls at once would disturb each other."""
        return f"https://t.me/{(await _call(account, 'getMe', {}))['username']}"

    async def poll(self, account: SourceAccount) -> Arrivals:
        """Return new updates, as `SourceKind.poll`; waits for the first one."""
        cursor = account.cursor
        bot = cursor.get("bot")
        if bot is None:
            found = await _call(account, "getMe", {})
            bot = {"id": found["id"], "username": found["username"]}
        asked = {"limit": UPDATES_MAX, "allowed_updates": ALLOWED, "timeout": POLL_S if cursor else 0}
        if "offset" in cursor:
            asked["offset"] = cursor["offset"]
        updates = await _call(account, "getUpdates", asked, timeout_s=POLL_S)
        events = []
        for update in updates:
            with suppress(*UNREADABLE):
                events += [event for event in [_event(update, bot)] if event is not None]
        offset = {"offset": max(update["update_id"] for update in updates) + 1} if updates else {}
        return Arrivals(events=events, cursor={**cursor, "bot": bot, **offset})

    async def signal(self, account: SourceAccount, chat: str) -> None:
        """Show that the bot is typing, as `SourceKind.signal`."""
        await _call(account, "sendChatAction", {**_place(chat), "action": "typing"})

    async def show(self, account: SourceAccount, chat: str, text: str, shown: str) -> str:
        """Show what the agent does, as `SourceKind.show`."""
        about = {**_place(chat), "text": text, "disable_notification": True}
        if not shown:
            return str((await _call(account, "sendMessage", about))["message_id"])
        await _call(account, "editMessageText" if text else "deleteMessage", {**about, "message_id": int(shown)})
        return shown

    async def send(self, account: SourceAccount, chat: str, said: Outgoing, send_id: str) -> None:
        """Send a message, with two buttons if it is a question, as `SourceKind.send`."""
        message: dict[str, Json] = {**_place(chat), "text": said.text, "link_preview_options": {"is_disabled": True}}
        if said.reply_to.startswith(_CALLBACK):
            # The button stops waiting. It does not matter if that fails, such as for one that is old.
            about = {"callback_query_id": said.reply_to.removeprefix(_CALLBACK)}
            with suppress(PatternError):
                await _call(account, "answerCallbackQuery", about)
        elif said.reply_to:
            number = int(said.reply_to.split("/")[1])
            message["reply_parameters"] = {"message_id": number, "allow_sending_without_reply": True}
        if said.approval is not None:
            buttons = [{"text": text, "callback_data": f"{sign}:{said.approval}"} for text, sign in BUTTONS]
            message["reply_markup"] = {"inline_keyboard": [buttons]}
        await _call(account, "sendMessage", message)

    async def send_file(self, account: SourceAccount, chat: str, said: Outgoing, data: bytes, send_id: str) -> None:
        """Send a file, as `SourceKind.send_file`."""
        place = {key: str(value) for key, value in _place(chat).items()}
        await _call(account, "sendDocument", multipart(place, "document", said.file_name, data))

    async def download(self, account: SourceAccount, ref: str) -> bytes:
        """Return the bytes of a file, as `SourceKind.download`."""
        path = (await _call(account, "getFile", {"file_id": ref}))["file_path"]
        token = await _API.secret(account)
        url = f"{account.config['base_url'].rstrip('/')}/file/bot{token}/{quote(path)}"
        with hiding(url, (token,)):
            page = await account.fetch(url, redirects_max=0)
        return bytes_of(replace(page, url="Telegram"))


def _place(chat: str) -> dict[str, Json]:
    """Return where a chat or a topic is, as methods want it."""
    number, _, topic = chat.partition(":")
    return {"chat_id": int(number), **({"message_thread_id": int(topic)} if topic else {})}


def _event(update: Mapping[str, Any], bot: Mapping[str, Json]) -> SourceEvent | None:
    """Return the event of an update; None if it is of no kind that is known.

    Raises:
        LookupError, TypeError: it is not as the protocol says.
    """
    button = update.get("callback_query")
    message = button.get("message") if button else update.get("message") or update.get("edited_message")
    if message is None:
        return None
    chat, author = message["chat"], (button or message).get("from")
    if author is None or chat["type"] == "channel":
        return None
    topic = f":{message['message_thread_id']}" if message.get("is_topic_message") else ""
    about: dict[str, Any] = {
        "chat": f"{chat['id']}{topic}",
        "chat_name": chat.get("title") or chat.get("username") or "",
        "room": "" if chat["type"] == "private" else str(chat["id"]),
        "author": str(author["id"]),
        "author_name": " ".join(filter(None, (author.get("first_name"), author.get("last_name")))),
        "is_bot": bool(author.get("is_bot")),
    }
    if button:
        decides = pressed(str(button.get("data", "")))
        return SourceEvent(native=f"{_CALLBACK}{button['id']}", text="", decides=decides, **about)
    text, mention = _words(message), f"@{bot['username']}"
    answered = (message.get("reply_to_message") or {}).get("from") or {}
    is_addressed = not about["room"] or mention.casefold() in text.casefold() or answered.get("id") == bot["id"]
    edited = f"/{message['edit_date']}" if "edited_message" in update else ""
    return SourceEvent(
        native=f"{chat['id']}/{message['message_id']}{edited}",
        text=f"{'(edited) ' if edited else ''}{text.replace(mention, '').strip()}",
        is_addressed=is_addressed,
        files=() if edited else _files(message),
        **about,
    )


def _words(message: Mapping[str, Any]) -> str:
    """Return what a message says; of files that are not downloaded only that they are there."""
    said = message.get("text") or message.get("caption") or ""
    files = [f"[{kind}]" for kind in _OTHERS if kind in message]
    shown = "\n".join(filter(None, (said, " ".join(files))))
    return shown or ("" if any(kind in message for kind in _FILES) else "[something that cannot be shown]")


def _files(message: Mapping[str, Any]) -> list[SourceFile]:
    """Return the file that a message may have; of the sizes of a photo the largest, which comes last."""
    if (document := message.get("document")) is not None:
        return [SourceFile(name=str(document.get("file_name", "document")), ref=document["file_id"])]
    return [SourceFile(name="photo.jpg", ref=message["photo"][-1]["file_id"])] if message.get("photo") else []


async def _call(
    account: SourceAccount, method: str, given: Mapping[str, Json] | tuple[str, bytes], *, timeout_s: float = 0.0
) -> Any:
    """Return the result of a method of the Bot API, which gets an object or a form. The token is part of the address.

    Raises:
        PatternError: as `ServiceApi.call`.
    """
    token = await _API.secret(account)
    url = f"{account.config['base_url'].rstrip('/')}/bot{token}/{method}"
    return (await _API.call(account, url, given, secrets=(token,), timeout_s=timeout_s))[0]["result"]
