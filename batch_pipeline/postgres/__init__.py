"""Loads published batches into a table of a Postgres server by COPY.

`loader` is the way through: it makes the table ready (`tables`), reads part files (`parts`,
`json_lines`) as Arrow batches, turns these into the fields of a binary COPY (`rows`, `cells`,
`copy_fields`) and writes them, with the bookkeeping (`ledger`), in one transaction. Nothing here
knows the inventory, Spark or Singer.
"""
