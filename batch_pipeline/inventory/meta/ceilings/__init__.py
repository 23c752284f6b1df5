"""Ceilings: for every kind of meta table, the highest id below which no row can still appear.

Ids become visible when their transaction commits, not in their order, so `max(id)` loses rows. Each
module is one way to know better; `choose` picks one and says why. Nothing here plans a batch.
"""
