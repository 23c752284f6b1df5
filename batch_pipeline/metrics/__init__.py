"""Metrics of streams for Prometheus, read from the inventory at each scrape.

`families` names the metrics, `server` reads the inventory and serves them. Nothing is written.
"""
