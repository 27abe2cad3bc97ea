"""The protocol of OpenAI, for programs that already speak it. Source: OpenAI's API reference, 2026."""
