"""`python -m pattern_server` is `pattern`."""

from __future__ import annotations

from pattern_server.cli import main

if __name__ == "__main__":
    main()
