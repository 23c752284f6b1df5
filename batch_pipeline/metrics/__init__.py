"""Metrics of streams for Prometheus, read from the inventory at each scrape.

`reading` asks the inventory, `families` gives the answers their names, `server` hands them out.
Nothing else knows Prometheus, and nothing is written here.
"""
