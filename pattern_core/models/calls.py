"""Tool calls as models write them: arguments that should be JSON objects, and ids that some servers leave out."""

from __future__ import annotations

import hashlib
import json
import math
from typing import NoReturn

from pattern_core.messages import ToolCall
from pattern_core.models.model import ModelRequest
from pattern_core.models.words import mended
from pattern_db.columns import check_depth


def tool_call(call_id: str, tool: str, arguments: str) -> ToolCall:
    """The call with its arguments parsed; no text at all means no arguments.

    What is not a JSON object (RFC 8259, so neither NaN nor Infinity) or nests too deep ends up in `invalid` as it came.
    """
    raw = mended(arguments)
    try:
        parsed: object = json.loads(raw, parse_constant=_refuse, parse_float=_finite) if raw.strip() else {}
        if "\\ud" in raw.lower():
            # Escaped halves of a character pass the parser and would later fail wherever text becomes UTF-8.
            parsed = json.loads(mended(json.dumps(parsed, ensure_ascii=False)))
        check_depth(parsed)
    except (ValueError, RecursionError):
        return ToolCall(call_id=call_id, tool=tool, invalid=raw)
    if not isinstance(parsed, dict):
        return ToolCall(call_id=call_id, tool=tool, invalid=raw)
    return ToolCall(call_id=call_id, tool=tool, arguments=parsed)


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is beyond what JSON readers agree on")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def made_up_call_id(request: ModelRequest, index: int) -> str:
    """An id for the call at `index` (from 0) of the answer to `request`, where the model gave none.

    The same request and index give the same id; another step of the conversation gives another one, so that a call
    and its result can be told from those of earlier steps.
    """
    last = request.messages[-1] if request.messages else None
    seen = (len(request.messages), last.id if last else "", repr(last.parts) if last else "")
    return f"call_{index}_{hashlib.blake2s(repr(seen).encode('utf-8', 'backslashreplace'), digest_size=5).hexdigest()}"
