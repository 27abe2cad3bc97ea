"""Storage: tables, transactions, search, migrations and backup. Bytes are opaque; Loro is not known here.

Everything is a synchronous function of a connection, except `database`, which runs such functions on its threads.
"""
