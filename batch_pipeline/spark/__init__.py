"""Everything that knows Spark: the Java it starts with, sessions, the warm server, the encoder.

Importing a module of this package starts nothing and imports no pyspark; sessions do.
"""
