"""Run encode tasks on Spark: sessions, clusters, the warm server, transforms.

Importing a module of this package starts nothing and does not import pyspark; sessions do.
"""
