"""Inventories that were put back: noticing it, and taking over what storages hold."""
