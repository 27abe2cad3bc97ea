"""Storage: tables, transactions, search, migrations and backup. Bytes are opaque; Loro is not known here.

Everything is a synchronous function of a connection, but for `database`, which takes such functions to its threads.
"""
