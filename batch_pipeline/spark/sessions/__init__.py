"""Spark sessions: local, on a cluster, or of a Spark Connect client; and the JVMs behind them."""
