"""Metrics for Prometheus: what the inventory tells of streams, read when somebody scrapes.

`reading` asks the inventory, `families` gives the answers their names, `server` hands them out.
Nothing else knows Prometheus, and nothing is written here.
"""
