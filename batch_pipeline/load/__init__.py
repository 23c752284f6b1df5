"""Load published batches into tables of Postgres, or through the process of a Singer target.

`postgres` loads a batch in one transaction: it prepares the table (`tables`), reads part files as
Arrow batches (`part_blocks`), converts them to the fields of a binary COPY (`types`) and writes
them (`copy`) together with the bookkeeping. `singer_loader` runs a Singer target
(`singer_process`), sends it messages that it can read (`singer_capabilities`), and counts a batch
as loaded only when the target has printed its STATE. Neither loader accesses the inventory.
"""
