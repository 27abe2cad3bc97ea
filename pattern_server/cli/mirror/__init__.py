"""Memory blocks as files: what `pattern memory sync` does.

`plan` decides, and knows neither disk nor network; `disk` reads and writes files and remembers what both sides had in
common, `remote` speaks to the API, `rounds` brings them together, `sync` says when.
"""
