"""Spark sessions: a tuned local one, a cluster's, a Connect client's. No record is seen here."""
